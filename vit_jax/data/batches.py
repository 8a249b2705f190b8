"""Batches as a pure function of (seed, step): no iterator state, nothing to checkpoint.

The global batch of a step is fixed by the seed alone. Each host makes the rows that its devices
hold, so the batch is the same, row for row, for any number of hosts, and resuming at a step is
starting there.
"""

import collections
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import jax
import numpy as np

from vit_jax.data.crop import check_crop, fit, resize
from vit_jax.data.source import Example, Source

Batch = dict[str, Any]


def train_batches(
    source: Source,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    seed: int,
    crop: str = "resize",
    rows: Sequence[int] | None = None,
) -> grain.MapDataset:
    """An endless data set whose element s is (these rows of) the global batch of step s.

    {"image": uint8 [rows, h, w, 3], "label": int32 [rows] or [rows, k]}. Every epoch is a new
    permutation of the source; it is computed, not stored.
    """
    check_crop(crop)

    def prepare(example: Example, rng: np.random.Generator) -> Example:
        return {**example, "image": fit(example["image"], image_size, crop, rng)}

    examples = grain.MapDataset.source(source).seed(seed).shuffle().repeat().random_map(prepare)
    rows = range(batch_size) if rows is None else rows

    def batch(step: int) -> Batch:
        return _stack([examples[step * batch_size + row] for row in rows])

    return grain.MapDataset.range(sys.maxsize // batch_size).map(batch)


def train_indices(source: Source, *, batch_size: int, seed: int, step: int) -> list[int]:
    """Which examples of the source are the rows of that step's batch."""
    order = grain.MapDataset.range(len(source)).seed(seed).shuffle().repeat()
    return [int(order[step * batch_size + row]) for row in range(batch_size)]


def eval_batches(
    source: Source,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    rows: Sequence[int] | None = None,
) -> grain.MapDataset:
    """Every example once, in order. The last batch is filled up with black images, mask 0."""
    rows = range(batch_size) if rows is None else rows
    padding = {
        "image": np.zeros((*image_size, 3), np.uint8),
        "label": np.zeros_like(source[0]["label"]),
        "mask": np.float32(0),
    }

    def example(index: int) -> dict[str, Any]:
        if index >= len(source):
            return padding
        example = source[index]
        image = resize(example["image"], image_size)
        return {**example, "image": image, "mask": np.float32(1)}

    def batch(number: int) -> Batch:
        return _stack([example(number * batch_size + row) for row in rows])

    return grain.MapDataset.range(-(-len(source) // batch_size)).map(batch)


def on_device(
    batches: grain.MapDataset,
    sharding: jax.sharding.Sharding,
    batch_size: int,
    *,
    start: int = 0,
    threads: int = 0,
    ahead: int = 2,
) -> Iterator[Batch]:
    """Batches from number `start` on as global device arrays, made and sent `ahead` of their use.

    `batches` must hold the rows that `local_rows` gives for the same sharding. `threads` of 0 is
    one per core. They start working at once, while the caller may still be compiling.
    """
    threads = threads or os.cpu_count() or 1
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + ahead)
    iterator = iter(batches[start:].to_iter_dataset(options))
    iterator.start_prefetch()
    return _ahead(iterator, sharding, batch_size, ahead)


def _ahead(
    batches: Iterator[Batch], sharding: jax.sharding.Sharding, batch_size: int, ahead: int
) -> Iterator[Batch]:
    rows = local_rows(sharding, batch_size)
    queue: collections.deque[Batch] = collections.deque()
    for batch in batches:
        queue.append(_place(batch, sharding, batch_size, rows))
        if len(queue) > ahead:
            yield queue.popleft()
    yield from queue


def local_rows(sharding: jax.sharding.Sharding, batch_size: int) -> list[int]:
    """The rows of a global batch that this host's devices hold."""
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    return sorted({row for (rows,) in slices for row in range(*rows.indices(batch_size))})


def _place(
    batch: Batch, sharding: jax.sharding.Sharding, batch_size: int, rows: list[int]
) -> Batch:
    position = {row: number for number, row in enumerate(rows)}

    def place(local: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...]) -> np.ndarray:
            first, last, _ = index[0].indices(batch_size)
            return local[position[first] : position[first] + last - first]

        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, shard)

    return {key: place(value) for key, value in batch.items()}


def _stack(examples: list[dict[str, Any]]) -> Batch:
    return {key: np.stack([example[key] for example in examples]) for key in examples[0]}
