"""A batch as the network will see it: cropped, augmented and mixed, with its labels."""

import jax
import numpy as np

from vit_jax.data.batches import train_batches
from vit_jax.data.source import Source
from vit_jax.data.sources import open_source
from vit_jax.insight import figures
from vit_jax.models.config import as_size
from vit_jax.train.config import RunConfig
from vit_jax.train.step import prepared

_LABELS = 3  # of an image, the weightiest


def batch_picture(config: RunConfig, *, step: int = 0, count: int = 64) -> bytes:
    """A PNG grid of the first images of that step's batch."""
    size = as_size(config.image_size)
    source = open_source(config.data.name, config.data.split, size)
    batches = train_batches(
        source,
        batch_size=config.batch_size,
        image_size=size,
        seed=config.seed,
        crop=config.data.crop,
        rows=range(min(count, config.batch_size)),
        on_bad_image=config.data.on_bad_image,
    )
    # As in the train step, but for the partners of mixed images, which are these and no others.
    key = jax.random.fold_in(jax.random.key(config.seed), step)
    augment_key, _ = jax.random.split(key)
    batch = batches[step]
    images, targets = prepared(
        {"image": batch["image"], "label": batch["label"]},
        augment_key,
        config=config,
        num_classes=source.num_classes,
    )
    pixels = np.clip(np.round((np.asarray(images) + 1) * 127.5), 0, 255).astype(np.uint8)
    titles = [_title(weights, source) for weights in np.asarray(targets)]
    return figures.grid(pixels, titles, columns=8)


def _title(weights: np.ndarray, source: Source) -> str:
    """The classes of an image, with their weights where they are mixed."""
    best = [label for label in np.argsort(-weights)[:_LABELS] if weights[label] > 0]
    names = [source.class_names[label] for label in best]
    if all(weights[label] == 1 for label in best):
        return ", ".join(names)
    return ", ".join(
        f"{name} {weights[label]:.0%}" for name, label in zip(names, best, strict=True)
    )
