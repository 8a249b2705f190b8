"""What every data set looks like to the rest of the house: numbered examples and class names."""

import concurrent.futures
import contextlib
from typing import Protocol, TypedDict

import numpy as np

from vit_jax.data.decode import BadImage
from vit_jax.errors import UsageError

PADDING_LABEL = -1


class Example(TypedDict):
    """One record. `image`: uint8 [height, width, 3], or the bytes of an image file, which
    `decode.py` opens. `label`: int32, a scalar for one label per image, or [k] for several, filled
    up with PADDING_LABEL."""

    image: np.ndarray | bytes
    label: np.ndarray


class Source(Protocol):
    """Random access to examples. `source[i]` is a pure function of i, safe to call from threads.

    Sources hold no image in memory that they can make or read again, and no cursor: order,
    shuffling and batching belong to `batches.py`.
    """

    name: str
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


def where(source: Source, index: int) -> str:
    """What to call an example when talking to people: its file, where it has one."""
    find = getattr(source, "where", None)
    return find(index) if find else f"{source.name}[{index}]"


def labels_of(source: Source) -> np.ndarray:
    """The labels of all examples, int32 [example] or [example, k], without decoding an image."""
    known = getattr(source, "labels", None)
    if known is not None:
        return known
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return np.stack(list(pool.map(lambda i: source[i]["label"], range(len(source)))))


def some_label(source: Source) -> np.ndarray:
    """Of an example that can be read: all have its shape and type."""
    known = getattr(source, "labels", None)
    if known is not None:
        return known[0]
    for index in range(len(source) - 1):
        with contextlib.suppress(BadImage):
            return source[index]["label"]
    return source[len(source) - 1]["label"]


def check_label(source: Source, index: int, label: np.ndarray) -> None:
    """Raises where an example's label is no class of its source; one of several may be padding."""
    least = PADDING_LABEL if np.ndim(label) else 0
    if np.min(label, initial=0) < least or np.max(label, initial=0) >= source.num_classes:
        raise UsageError(
            f"{where(source, index)} has the label {label}: expected a class from 0 to "
            f"{source.num_classes - 1} of {source.name}"
        )


def check_index(source: Source, index: int) -> None:
    """Raises where there is no such example: without it, -1 would be the last one."""
    if not 0 <= index < len(source):
        raise IndexError(f"{source.name} has {len(source)} examples, there is no number {index}")
