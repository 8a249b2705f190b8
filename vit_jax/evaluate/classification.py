"""Accuracy on a whole split: every example counts exactly once."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from vit_jax.data.augment import normalize
from vit_jax.data.batches import eval_batches, host_batches, local_rows, on_device
from vit_jax.data.labels import multi_hot, top1_correct
from vit_jax.data.source import Source, some_label
from vit_jax.errors import UsageError
from vit_jax.evaluate.placement import default_sharding, on_mesh_of
from vit_jax.evaluate.scores import Scores


@dataclasses.dataclass(frozen=True)
class Classification:
    """A value that measures a model: `Classification(source)(model)` -> {"accuracy", "loss"}.

    The loss is softmax cross-entropy, whatever the model was trained with.
    """

    source: Source
    batch_size: int = 256
    sharding: jax.sharding.Sharding | None = None  # of a batch; None: one device
    crop: str = "resize"
    on_bad_image: str = "raise"

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        graphdef, params = nnx.split(model)
        sharding = self.sharding or default_sharding()
        batches = eval_batches(
            self.source,
            batch_size=self.batch_size,
            image_size=model.config.image_size,
            rows=local_rows(sharding, self.batch_size),
            crop=self.crop,
            on_bad_image=self.on_bad_image,
        )
        sums = {"accuracy": 0.0, "loss": 0.0, "examples": 0.0}
        with on_mesh_of(sharding):
            for batch in on_device(batches, sharding, self.batch_size):
                for key, value in _batch_sums(graphdef, params, batch).items():
                    sums[key] += float(value)
        examples = max(sums.pop("examples"), 1)
        return {key: value / examples for key, value in sums.items()}


def score(model: nnx.Module, source: Source, batch_size: int = 256, crop: str = "resize") -> Scores:
    """Everything that can be said of a model's answers on a split, on one device."""
    graphdef, params = nnx.split(model)
    scores = Scores(source.num_classes, several_labels=some_label(source).ndim > 0)
    batches = eval_batches(
        source, batch_size=batch_size, image_size=model.config.image_size, crop=crop
    )
    for batch in host_batches(batches):
        logits = np.asarray(model_logits(graphdef, params, batch["image"]))
        targets = np.asarray(multi_hot(batch["label"], source.num_classes))
        scores.add(logits, targets, batch["mask"])
    return scores


def check_classes(source: Source, num_classes: int, class_names: Sequence[str] = ()) -> None:
    """Raises where a model's answers cannot be compared with a data set's labels.

    `class_names` are the model's, where they are known: other names may mean the same classes, but
    the same names in another order are a mistake.
    """
    theirs = tuple(source.class_names)
    if theirs != tuple(class_names) and sorted(theirs) == sorted(class_names):
        pairs = zip(class_names, theirs, strict=True)
        number, (own, other) = next((n, p) for n, p in enumerate(pairs) if p[0] != p[1])
        raise UsageError(
            f"{source.name} has the model's classes in another order: number {number} is {other!r} "
            f"there and {own!r} here"
        )
    if source.num_classes != num_classes:
        raise UsageError(
            f"the model knows {num_classes} classes, {source.name} has {source.num_classes}: "
            f"fine-tune it on {source.name} first, or measure it with fewshot"
        )


@functools.partial(jax.jit, static_argnums=0)
def model_logits(graphdef: nnx.GraphDef, params: Any, images: jax.Array) -> jax.Array:
    """Of uint8 images."""
    return nnx.merge(graphdef, params)(normalize(images))


@functools.partial(jax.jit, static_argnums=0)
def _batch_sums(
    graphdef: nnx.GraphDef, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    logits = nnx.merge(graphdef, params)(normalize(batch["image"]))
    targets = multi_hot(batch["label"], logits.shape[-1])
    correct = top1_correct(logits, targets)
    labels = targets.sum(axis=-1, keepdims=True)
    loss = optax.softmax_cross_entropy(logits, targets / jnp.maximum(labels, 1))
    counts = batch["mask"] * (labels[:, 0] > 0)  # what has no label cannot be right or wrong
    values = {"accuracy": correct, "loss": loss, "examples": jnp.ones_like(loss)}
    return {key: (value * counts).sum() for key, value in values.items()}
