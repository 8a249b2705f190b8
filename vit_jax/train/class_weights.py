"""How much each class counts in the loss, for data in which some are rare."""

import numpy as np

from vit_jax.data.source import Source, labels_of
from vit_jax.errors import UsageError, closest

BALANCED = "balanced"


def class_weights(text: str, source: Source) -> np.ndarray | None:
    """float32 [class] from "balanced", or from "cat=2, dog=0.5" (others count 1); None from "".

    Balanced weights are in inverse proportion to how often a class occurs, and 1 on average over
    the examples.
    """
    if not text:
        return None
    if text == BALANCED:
        labels = labels_of(source)
        counts = np.bincount(labels[labels >= 0], minlength=source.num_classes)
        weights = counts.sum() / np.maximum(counts, 1) / np.count_nonzero(counts)
        return np.where(counts > 0, weights, 1).astype(np.float32)
    weights = np.ones(source.num_classes, np.float32)
    numbers = {name: number for number, name in enumerate(source.class_names)}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in numbers or not equals:
            raise UsageError(
                f"config.class_weights={text!r}: {name!r} is no class of {source.name}."
                f"{closest(name, numbers)} Expected '{BALANCED}', or as in "
                f"'{source.class_names[0]}=2'"
            )
        try:
            weights[numbers[name]] = float(value)
        except ValueError as error:
            raise UsageError(
                f"config.class_weights={text!r}: {value!r} is no number for {name!r}"
            ) from error
    if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() > 0):
        raise UsageError(f"config.class_weights={text!r}: expected numbers of 0 or more")
    return weights
