"""Accuracy on a whole split: every example counts exactly once."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from flax import nnx
from jax.experimental.multihost_utils import process_allgather

from vit_jax.data.augment import normalize
from vit_jax.data.batches import eval_batches, local_rows, on_device
from vit_jax.data.labels import multi_hot
from vit_jax.data.source import Source, some_label
from vit_jax.errors import UsageError
from vit_jax.evaluate.features import Report, unreported
from vit_jax.evaluate.placement import default_sharding, on_mesh_of
from vit_jax.evaluate.scores import Scores, judged
from vit_jax.models.compiled import compiled


@dataclasses.dataclass(frozen=True)
class Classification:
    """A value that measures a model: `Classification(source)(model)` -> {"accuracy", "loss", ...}.

    The loss is softmax cross-entropy, whatever the model was trained with.
    """

    source: Source
    batch_size: int = 256
    sharding: jax.sharding.Sharding | None = None  # of a batch; None: one device
    crop: str = "resize"
    on_bad_image: str = "raise"

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        return self.scores(model).results()

    def scores(self, model: nnx.Module, report: Report = unreported) -> Scores:
        """All that can be said of the answers; `report` hears how many images are done."""
        several = some_label(self.source).ndim > 0
        scores = Scores(self.source.num_classes, several)
        for answers, logits, targets, mask in self.answers(model, report):
            scores.add(answers, mask)
            if several:
                scores.keep(_on_host(logits), _on_host(targets), mask)
        return scores

    def answers(self, model: nnx.Module, report: Report = unreported) -> Iterator[tuple[Any, ...]]:
        """Batch by batch in the order of the source: answers as `judged` (scores.py) has them,
        logits and targets, still on the devices, and a mask that is 0 where there is no image."""
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
        total = len(self.source)
        for number, batch in enumerate(on_device(batches, sharding, self.batch_size), start=1):
            with on_mesh_of(sharding):
                answers, logits, targets = _answers(graphdef, params, batch)
            yield _on_host(answers), logits, targets, _on_host(batch["mask"])
            report(min(number * self.batch_size, total), total)


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


@functools.partial(compiled, static_argnums=0)
def model_logits(graphdef: nnx.GraphDef, params: Any, images: jax.Array) -> jax.Array:
    """Of uint8 images."""
    return nnx.merge(graphdef, params)(normalize(images))


@functools.partial(compiled, static_argnums=0)
def _answers(
    graphdef: nnx.GraphDef, params: Any, batch: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:
    """What each is worth [batch]; logits and targets themselves [batch, class]."""
    logits = nnx.merge(graphdef, params)(normalize(batch["image"]))
    targets = multi_hot(batch["label"], logits.shape[-1])
    return judged(logits, targets), logits, targets


def _on_host(tree: Any) -> Any:
    """Rows of all hosts."""
    return process_allgather(tree, tiled=True)
