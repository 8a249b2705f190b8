"""Frozen representations of a whole split, for everything that is fitted on top of them."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental.multihost_utils import process_allgather

from vit_jax.data.augment import normalize
from vit_jax.data.batches import eval_batches, local_rows, on_device
from vit_jax.data.source import Source
from vit_jax.evaluate.placement import default_sharding, on_mesh_of


@dataclasses.dataclass(frozen=True)
class OnFeatures:
    """What evaluators have in common that fit something on a training split and test it."""

    train: Source
    test: Source
    batch_size: int = dataclasses.field(default=256, kw_only=True)
    sharding: jax.sharding.Sharding | None = dataclasses.field(default=None, kw_only=True)
    crop: str = dataclasses.field(default="resize", kw_only=True)
    on_bad_image: str = dataclasses.field(default="raise", kw_only=True)

    def features(self, model: nnx.Module, source: Source) -> tuple[np.ndarray, ...]:
        """Of one of the splits, or of a part of it; see extract_features."""
        return extract_features(
            model, source, self.batch_size, self.sharding, self.crop, self.on_bad_image
        )


def extract_features(
    model: nnx.Module,
    source: Source,
    batch_size: int = 256,
    sharding: jax.sharding.Sharding | None = None,
    crop: str = "resize",
    on_bad_image: str = "raise",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(float32 [example, feature], int [example], bool [example]) in the order of the source; the
    last says which examples could be read."""
    graphdef, params = nnx.split(model)
    sharding = sharding or default_sharding()
    batches = eval_batches(
        source,
        batch_size=batch_size,
        image_size=model.config.image_size,
        rows=local_rows(sharding, batch_size),
        crop=crop,
        on_bad_image=on_bad_image,
    )
    features, labels, masks = [], [], []
    for batch in on_device(batches, sharding, batch_size):
        with on_mesh_of(sharding):
            batch_features = _features(graphdef, params, batch["image"])
        features.append(process_allgather(batch_features, tiled=True))
        labels.append(process_allgather(batch["label"], tiled=True))
        masks.append(process_allgather(batch["mask"], tiled=True))
    n = len(source)
    gathered = (np.concatenate(parts)[:n] for parts in (features, labels, masks))
    all_features, all_labels, mask = gathered
    return all_features, all_labels, mask > 0


@functools.partial(jax.jit, static_argnums=0)
def _features(graphdef: nnx.GraphDef, params: Any, images: jax.Array) -> jax.Array:
    return nnx.merge(graphdef, params).features(normalize(images))
