"""One array of a file as a part of one parameter, with its axes in the file's order."""

import math
from typing import NamedTuple

import numpy as np

Axes = tuple[tuple[int, ...], ...]


class Piece(NamedTuple):
    """`parameter[index]` is the array `key` of the file.

    `axes` says which axes of the part make up each axis of the array: ((1, 2), (0,)) is a kernel
    [in, head, channel] as a matrix [out, in], and () is an axis of 1. None: as it is.
    """

    index: tuple[int | slice, ...]
    key: str
    axes: Axes | None = None

    def shape(self, part: tuple[int, ...]) -> tuple[int, ...]:
        """Of the array, for a part of this shape."""
        if self.axes is None:
            return part
        return tuple(math.prod(part[axis] for axis in group) for group in self.axes)

    def to_file(self, part: np.ndarray) -> np.ndarray:
        """The part as an array of the file."""
        ordered = part if self.axes is None else part.transpose(self._order())
        return np.ascontiguousarray(ordered.reshape(self.shape(part.shape)))

    def from_file(self, array: np.ndarray, part: tuple[int, ...]) -> np.ndarray:
        """The inverse; leading axes of 1 in the array may be more or fewer."""
        if self.axes is None:
            return array.reshape(part)
        order = self._order()
        ordered = array.reshape([part[axis] for axis in order])
        return ordered.transpose(np.argsort(order).tolist())

    def _order(self) -> list[int]:
        return [axis for group in self.axes or () for axis in group]
