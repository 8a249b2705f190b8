"""Records of tfrecord files by number, without TensorFlow.

A record is its length (eight bytes), a checksum of that (four), its bytes, and a checksum of those
(four): the lengths alone tell where each begins, and a file is gone through once to find out.
"""

import dataclasses
import struct
from collections.abc import Iterable

import numpy as np

from vit_jax.errors import UsageError

_LENGTH = struct.Struct("<Q4x")
_CHECKSUM = 4


@dataclasses.dataclass(frozen=True)
class Tfrecords:
    """The records of several files, or of parts of them."""

    files: tuple[str, ...]
    which: np.ndarray  # int32: the file of each record
    starts: np.ndarray  # int64: where its bytes begin
    lengths: np.ndarray  # int64

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, index: int) -> bytes:
        with open(self.files[self.which[index]], "rb") as file:
            file.seek(self.starts[index])
            return file.read(self.lengths[index])


def find_records(parts: Iterable[tuple[str, int, int]]) -> Tfrecords:
    """Those of each (file, records to leave out first, records to take; -1: all)."""
    files, which, places = [], [], []
    for number, (name, skip, take) in enumerate(parts):
        files.append(name)
        found = _places(name)
        found = found[skip:] if take < 0 else found[skip : skip + take]
        places += found
        which += [number] * len(found)
    starts, lengths = np.array(places, np.int64).reshape(-1, 2).T
    return Tfrecords(tuple(files), np.array(which, np.int32), starts, lengths)


def _places(name: str) -> list[tuple[int, int]]:
    """(start, length) of each record in a file."""
    places = []
    with open(name, "rb") as file:
        size = file.seek(0, 2)
        start = 0
        while start < size:
            file.seek(start)
            header = file.read(_LENGTH.size)
            length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else size
            end = start + _LENGTH.size + length + _CHECKSUM
            if end > size:
                raise UsageError(
                    f"{name} is cut off or no tfrecord file: its record {len(places)} would end at "
                    f"byte {end}, the file does at {size}"
                )
            places.append((start + _LENGTH.size, length))
            start = end
    return places
