"""Batches as a pure function of (seed, step): no iterator state, nothing to checkpoint.

The global batch of a step is fixed by the seed alone. Each host makes the rows that its devices
hold, so the batch is the same, row for row, for any number of hosts, threads and worker processes,
and resuming at a step is starting there.
"""

import collections
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain
import jax
import numpy as np
from absl import flags

from vit_jax.data.crop import EVAL_CROPS, check_crop, fit, fit_for_evaluation
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Example, Source, check_label, some_label, where
from vit_jax.errors import UsageError

Batch = dict[str, Any]

ON_BAD_IMAGE = ("skip", "raise")

# A row's `replaced`: the example that should have been there and could not be read, or none.
NONE_REPLACED = -1
_TRIES = 100

# Rows that one thread or worker makes at a time: enough to outweigh handing them over, few enough
# that a batch is made by all.
_CHUNK = 16

_DEATHS_ALLOWED = 3  # of worker processes, before the run ends


@dataclasses.dataclass(frozen=True)
class Batches:
    """`batches[s]` is (these rows of) the global batch of step s."""

    length: int
    rows: Sequence[int]
    make: Callable[[int, Sequence[int]], list[dict[str, Any]]]  # (step, rows) -> examples

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, step: int) -> Batch:
        return _stack(self.make(step, self.rows))


def train_batches(
    source: Source,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    seed: int,
    crop: str = "resize",
    rows: Sequence[int] | None = None,
    on_bad_image: str = "raise",
) -> Batches:
    """Endless. {"image": uint8 [rows, h, w, 3], "label": int32 [rows] or [rows, k], "replaced":
    int64 [rows]}. Every epoch is a new permutation of the source; it is computed, not stored.

    An example that cannot be read is replaced by another, always the same one ("skip"), or ends
    the run ("raise").
    """
    check_crop(crop)
    if on_bad_image not in ON_BAD_IMAGE:
        raise UsageError(
            f"data.on_bad_image={on_bad_image!r}: expected one of {', '.join(ON_BAD_IMAGE)}"
        )

    def prepare(index: int, rng: np.random.Generator) -> dict[str, Any]:
        for chosen in _candidates(index, len(source)):
            try:
                example = source[chosen]
                image = fit(example["image"], image_size, crop, rng)
            except BadImage as error:
                if on_bad_image == "raise":
                    raise _named(source, chosen, error) from error
                continue
            check_label(source, chosen, example["label"])
            replaced = np.int64(NONE_REPLACED if chosen == index else index)
            return {**example, "image": image, "replaced": replaced}
        raise BadImage(
            f"{source.name}: {_TRIES} images, chosen at random, cannot be read, the first of them "
            f"{where(source, index)}: look at it with vit-jax doctor --data={source.name}"
        )

    examples = _order(len(source), seed).random_map(prepare)

    def make(step: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [examples[step * batch_size + row] for row in rows]

    rows = range(batch_size) if rows is None else rows
    return Batches(sys.maxsize // batch_size, rows, make)


def train_indices(source: Source, *, batch_size: int, seed: int, step: int) -> list[int]:
    """Which examples of the source are the rows of that step's batch."""
    order = _order(len(source), seed)
    return [int(order[step * batch_size + row]) for row in range(batch_size)]


def eval_batches(
    source: Source,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    rows: Sequence[int] | None = None,
    crop: str = "resize",
    on_bad_image: str = "raise",
) -> Batches:
    """Every example once, in order. The last batch is filled up with black images, mask 0.

    An image that cannot be read is an error, because leaving it out changes what is measured; or,
    during a run that must not end by it ("skip"), is left out by mask 0, and told of.
    """
    check_crop(crop, EVAL_CROPS, "crop")
    padding = {
        "image": np.zeros((*image_size, 3), np.uint8),
        "label": np.zeros_like(some_label(source)),
        "mask": np.float32(0),
    }

    def example(index: int) -> dict[str, Any]:
        if index >= len(source):
            return padding
        try:
            found: Example = source[index]
            image = fit_for_evaluation(found["image"], image_size, crop)
        except BadImage as error:
            if on_bad_image == "raise":
                raise _named(source, index, error) from error
            logging.getLogger("vit_jax").warning("left out: %s", _named(source, index, error))
            return padding
        check_label(source, index, found["label"])
        return {**found, "image": image, "mask": np.float32(1)}

    def make(number: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [example(number * batch_size + row) for row in rows]

    rows = range(batch_size) if rows is None else rows
    return Batches(-(-len(source) // batch_size), rows, make)


def on_device(
    batches: Batches,
    sharding: jax.sharding.Sharding,
    batch_size: int,
    *,
    start: int = 0,
    threads: int = 0,
    workers: int = 0,
    ahead: int = 2,
    seen: Callable[[np.ndarray], None] = lambda replaced: None,
) -> Iterator[Batch]:
    """Batches from number `start` on as global device arrays, made and sent `ahead` of their use.

    `batches` must hold the rows that `local_rows` gives for the same sharding. `threads` of 0 is
    one per core; `workers` of more than 0 makes batches in that many processes of as many threads.
    They start working at once, while the caller may still be compiling. `seen` is called with the
    `replaced` of each batch, which no device needs.
    """
    iterator = host_batches(batches, start=start, threads=threads, workers=workers, ahead=ahead)
    return _ahead(iterator, sharding, batch_size, ahead, seen)


def host_batches(
    batches: Batches, *, start: int = 0, threads: int = 0, workers: int = 0, ahead: int = 2
) -> Iterator[Batch]:
    """Batches from number `start` on, in order, each put together from chunks made side by side.

    Worker processes that die (of a lack of memory, say) are told of and started again where they
    were: a batch is the same whoever makes it.
    """
    chunks = [batches.rows[i : i + _CHUNK] for i in range(0, len(batches.rows), _CHUNK)]
    threads = threads or max(1, (os.cpu_count() or 1) // max(1, workers))
    options = grain.ReadOptions(
        num_threads=threads, prefetch_buffer_size=threads + ahead * len(chunks)
    )

    def begin(first: int) -> Iterator[Batch]:
        def chunk(number: int) -> Batch:
            step, which = divmod(number, len(chunks))
            return _stack(batches.make(first + step, chunks[which]))

        numbers = grain.MapDataset.range((len(batches) - first) * len(chunks))
        dataset = numbers.map(chunk).to_iter_dataset(options)
        if not workers:
            iterator = iter(dataset)
            iterator.start_prefetch()
            return iterator
        if not flags.FLAGS.is_parsed():  # grain's own, which it asks for in its workers
            flags.FLAGS.mark_as_parsed()
        return iter(
            dataset.mp_prefetch(
                grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=ahead + 1)
            )
        )

    return _restarted(begin, begin(start), start, len(chunks))


def local_rows(sharding: jax.sharding.Sharding, batch_size: int) -> list[int]:
    """The rows of a global batch that this host's devices hold."""
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    return sorted({row for (rows,) in slices for row in range(*rows.indices(batch_size))})


def _order(length: int, seed: int) -> grain.MapDataset:
    """Which example comes when: a new permutation in every epoch."""
    return grain.MapDataset.range(length).seed(seed).shuffle().repeat()


def _candidates(index: int, length: int) -> Iterator[int]:
    """An example, and what may stand in for it: a function of the example alone."""
    yield index
    others = np.random.default_rng(index)
    for _ in range(_TRIES):
        yield int(others.integers(length))


def _named(source: Source, index: int, error: BadImage) -> BadImage:
    return BadImage(f"cannot read the image {where(source, index)}: {error}")


def _restarted(
    begin: Callable[[int], Iterator[Batch]], chunks: Iterator[Batch], step: int, count: int
) -> Iterator[Batch]:
    """Batches from their chunks, which are begun again where workers died."""
    for deaths in range(1, _DEATHS_ALLOWED + 2):
        try:
            for batch in _joined(chunks, count):
                yield batch
                step += 1
            return
        except RuntimeError as error:
            if "Worker process was terminated" not in str(error):
                raise
            cause = str(error).split(".")[0]
            if deaths > _DEATHS_ALLOWED:
                raise UsageError(
                    f"data workers died {deaths} times, the last at step {step}: {cause}; exit "
                    f"code -9 is often a lack of memory: use fewer data.workers"
                ) from error
            logging.getLogger("vit_jax").warning(
                "data worker died at step %d (%s); starting the workers again there", step, cause
            )
            chunks = begin(step)


def _joined(chunks: Iterator[Batch], count: int) -> Iterator[Batch]:
    parts: list[Batch] = []
    for part in chunks:
        parts.append(part)
        if len(parts) == count:
            yield {key: np.concatenate([part[key] for part in parts]) for key in part}
            parts = []


def _ahead(
    batches: Iterator[Batch],
    sharding: jax.sharding.Sharding,
    batch_size: int,
    ahead: int,
    seen: Callable[[np.ndarray], None],
) -> Iterator[Batch]:
    rows = local_rows(sharding, batch_size)
    queue: collections.deque[Batch] = collections.deque()
    for batch in batches:
        seen(batch.pop("replaced", np.array([], np.int64)))
        queue.append(_place(batch, sharding, batch_size, rows))
        if len(queue) > ahead:
            yield queue.popleft()
    yield from queue


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
