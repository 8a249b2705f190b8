"""Evaluators by name: what a config lists becomes values that measure a model."""

import functools
from collections.abc import Callable, Sequence

import jax
from flax import nnx

from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluate.classification import Classification, check_classes
from vit_jax.evaluate.fewshot import FewShot
from vit_jax.evaluate.probes import LinearProbe, Neighbours

Evaluator = Callable[[nnx.Module], dict[str, float]]
KINDS = ("classification", "fewshot", "linear", "neighbours")


def make_evaluator(
    kind: str,
    data: str,
    split: str,
    *,
    crop: str = "resize",
    on_bad_image: str = "raise",
    image_size: tuple[int, int],
    num_classes: int,
    class_names: Sequence[str] = (),
    batch_size: int,
    sharding: jax.sharding.Sharding | None = None,
    shots: tuple[int, ...] = (1, 5, 10, 25),
    seeds: int = 3,
) -> Evaluator:
    """Opens the data and returns the evaluator, for models of `num_classes`."""
    if kind not in KINDS:
        raise UsageError(f"evaluator kind {kind!r}: expected one of {', '.join(KINDS)}")
    test = open_source(data, split, image_size)
    if kind == "classification":
        check_classes(test, num_classes, class_names)
        return Classification(test, batch_size, sharding, crop, on_bad_image)
    probe = {
        "fewshot": functools.partial(FewShot, shots=shots, seeds=seeds),
        "linear": LinearProbe,
        "neighbours": Neighbours,
    }[kind]
    # On frozen features, with the training split of the same data.
    return probe(
        open_source(data, "train", image_size),
        test,
        batch_size=batch_size,
        sharding=sharding,
        crop=crop,
        on_bad_image=on_bad_image,
    )
