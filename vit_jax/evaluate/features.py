"""Frozen representations of a whole split, for everything that is fitted on top of them."""

import concurrent.futures
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental.multihost_utils import process_allgather

from vit_jax.data.augment import normalize
from vit_jax.data.batches import eval_batches, local_rows, on_device
from vit_jax.data.compose import Subset
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Example, Source, some_label
from vit_jax.evaluate.feature_cache import (
    UNREADABLE,
    FeatureCache,
    Known,
    content_digest,
    entry_key,
)
from vit_jax.evaluate.placement import default_sharding, on_mesh_of
from vit_jax.models.compiled import compiled

_AT_A_TIME = 256  # images that a thread looks up

Report = Callable[[int, int], None]  # of images done, and all


def unreported(done: int, total: int) -> None:
    """For work that nobody watches."""


@dataclasses.dataclass(frozen=True)
class OnFeatures:
    """What evaluators have in common that fit something on a training split and test it.

    A cache is for weights that do not change, and for one process: several would have to agree on
    what is in it.
    """

    train: Source
    test: Source
    batch_size: int = dataclasses.field(default=256, kw_only=True)
    sharding: jax.sharding.Sharding | None = dataclasses.field(default=None, kw_only=True)
    crop: str = dataclasses.field(default="resize", kw_only=True)
    on_bad_image: str = dataclasses.field(default="raise", kw_only=True)
    cache: FeatureCache | None = dataclasses.field(default=None, kw_only=True)
    report: Report = dataclasses.field(default=unreported, kw_only=True)

    def features(self, model: nnx.Module, source: Source) -> tuple[np.ndarray, ...]:
        """Of one of the splits, or of a part of it; see extract_features."""
        if self.cache is None or jax.process_count() > 1:
            return self._extract(model, source)
        return self._cached(self.cache, model, source)

    def _cached(
        self, cache: FeatureCache, model: nnx.Module, source: Source
    ) -> tuple[np.ndarray, ...]:
        key = entry_key(model, source.name, self.crop)
        known = cache.read(key)
        places, labels = _look_up(known, source)
        missing = np.flatnonzero(places < 0)
        logging.getLogger("vit_jax").info(
            "%s: features of %d of %d images are in the cache (%s)",
            source.name, len(source) - len(missing), len(source), cache.folder,
        )  # fmt: skip
        features, is_readable = known.features, np.ones(len(source), bool)
        if len(missing):
            noting = _Noting(source, missing)
            new, labels[missing], is_readable[missing] = self._extract(model, noting)
            features = np.concatenate([features, new]) if len(features) else new
            places[missing] = len(known.digests) + np.arange(len(missing))
            digests = [
                noting.digests[number] if is_readable[example] else UNREADABLE
                for number, example in enumerate(missing)
            ]
            cache.write(key, Known(known.digests + digests, features))
        return features[places], labels, is_readable

    def _extract(self, model: nnx.Module, source: Source) -> tuple[np.ndarray, ...]:
        return extract_features(
            model,
            source,
            self.batch_size,
            self.sharding,
            self.crop,
            self.on_bad_image,
            self.report,
        )


def extract_features(
    model: nnx.Module,
    source: Source,
    batch_size: int = 256,
    sharding: jax.sharding.Sharding | None = None,
    crop: str = "resize",
    on_bad_image: str = "raise",
    report: Report = unreported,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(float32 [example, feature], int [example], bool [example]) in the order of the source; the
    last says which examples could be read. `report` hears of every batch, from the first on, which
    takes longer than others."""
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
    n = len(source)
    features, labels, masks = [], [], []
    for number, batch in enumerate(on_device(batches, sharding, batch_size), start=1):
        with on_mesh_of(sharding):
            batch_features = _features(graphdef, params, batch["image"])
        features.append(process_allgather(batch_features, tiled=True))
        labels.append(process_allgather(batch["label"], tiled=True))
        masks.append(process_allgather(batch["mask"], tiled=True))
        report(min(number * batch_size, n), n)
    gathered = (np.concatenate(parts)[:n] for parts in (features, labels, masks))
    all_features, all_labels, mask = gathered
    return all_features, all_labels, mask > 0


@dataclasses.dataclass(frozen=True)
class _Noting(Subset):
    """Notes the content of each example as it is read, which saves reading it twice."""

    digests: dict[int, bytes] = dataclasses.field(default_factory=dict)

    def __getitem__(self, index: int) -> Example:
        example = super().__getitem__(index)
        self.digests[int(index)] = content_digest(example["image"])
        return example


def _look_up(known: Known, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """For each example its place among what is known, or -1; and its label where it has a place."""
    place = {digest: number for number, digest in enumerate(known.digests)}
    no_label = np.zeros_like(some_label(source))

    def find(index: int) -> tuple[int, np.ndarray]:
        try:
            example = source[index]
        except BadImage:  # whoever has to decode it deals with it
            return -1, no_label
        return place.get(content_digest(example["image"]), -1), example["label"]

    if not place:  # no need to read any
        return np.full(len(source), -1), np.stack([no_label] * len(source))
    numbers = range(len(source))
    parts = [numbers[i : i + _AT_A_TIME] for i in range(0, len(source), _AT_A_TIME)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = pool.map(lambda part: [find(index) for index in part], parts)
        places, labels = zip(*itertools.chain.from_iterable(found), strict=True)
    return np.array(places), np.stack(labels)


@functools.partial(compiled, static_argnums=0)
def _features(graphdef: nnx.GraphDef, params: Any, images: jax.Array) -> jax.Array:
    return nnx.merge(graphdef, params).features(normalize(images))
