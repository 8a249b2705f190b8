"""A data set as `vit-jax prepare` leaves it: a folder of ArrayRecord shards and a manifest.

A record is the length of its header (four bytes), the header (JSON: labels, and the name of what
the image was made from), and the bytes of an image file.
"""

import bisect
import functools
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from vit_jax.data.decode import BadImage
from vit_jax.data.folder import SPELLINGS, STAND_IN
from vit_jax.data.source import PADDING_LABEL, Example, check_index
from vit_jax.errors import UsageError, closest

FORMAT = "vit_jax records"
VERSION = 1
MANIFEST = "manifest.json"  # written last: with it, the data set is complete
JOURNAL = "prepare.jsonl"  # what `prepare` has done so far

# Shards open at a time: each holds a file descriptor, of which a process often has 1024, and
# opening one again costs a tenth of decoding an image.
_OPEN_SHARDS = 256


class Records:
    """One split of a prepared folder. Opening it reads the manifest and lists the folder, no
    matter how many shards there are; a shard is opened when it is first read from."""

    def __init__(self, path: str | Path, split: str):
        folder = local_folder(path)
        manifest = read_manifest(folder)
        splits = manifest["splits"]
        split = next((name for name in _spellings(split) if name in splits), split)
        if split not in splits:
            raise UsageError(
                f"unknown split {split!r} of {path}.{closest(split, splits)}"
                f" Expected one of {', '.join(splits)}."
            )
        self.name = str(path)
        self.class_names = tuple(manifest["classes"])
        self._label_shape = tuple(manifest["label_shape"])
        shards = splits[split]["shards"]
        _check_shards(folder, shards)
        self._files = [str(folder / shard["file"]) for shard in shards]
        self._counts = [shard["count"] for shard in shards]
        self._open_readers()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Example:
        labels, _, image = self._read(index)
        label = np.full(self._label_shape, PADDING_LABEL, np.int32)
        label.reshape(-1)[: len(labels)] = labels
        return Example(image=image, label=label)

    def where(self, index: int) -> str:
        """What the image was made from."""
        _, name, _ = self._read(index)
        return name

    def _read(self, index: int) -> tuple[list[int], str, bytes]:
        check_index(self, index)
        shard = bisect.bisect_right(self._starts, index) - 1
        file = self._files[shard]
        position = int(index) - self._starts[shard]
        reader = self._reader(file, self._counts[shard])
        try:
            return unpack(reader.read([position])[0])
        except (RuntimeError, ValueError, IndexError) as error:
            raise BadImage(
                f"record {position} of the shard {file} is damaged ({_one_line(error)}): {_REPAIR}"
            ) from error

    def _open_readers(self) -> None:
        self._starts = [0, *itertools.accumulate(self._counts)]
        # Readers are safe to share between threads; one that falls out is closed with its last use.
        self._reader = functools.lru_cache(_OPEN_SHARDS)(_open)

    def __getstate__(self) -> dict[str, Any]:
        """Without the readers: they belong to this process."""
        return {key: value for key, value in vars(self).items() if key != "_reader"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open_readers()


def split_names(path: str | Path) -> tuple[str, ...]:
    """The splits that were prepared."""
    return tuple(read_manifest(local_folder(path))["splits"])


def _spellings(split: str) -> list[str]:
    """What a split may be called, and then the one that stands in for it, as of a folder."""
    others = [split, STAND_IN.get(split, split)]
    return [split, *(name for other in others for name in SPELLINGS.get(other, ()))]


def pack(labels: list[int], name: str, image: bytes) -> bytes:
    """A record."""
    header = json.dumps({"labels": labels, "name": name}, separators=(",", ":")).encode()
    return len(header).to_bytes(4, "little") + header + image


def unpack(record: bytes) -> tuple[list[int], str, bytes]:
    """Labels, name and image of a record."""
    end = 4 + int.from_bytes(record[:4], "little")
    header = json.loads(record[4:end])
    return header["labels"], header["name"], record[end:]


def local_folder(path: str | Path) -> Path:
    """The folder, if it can be read as files."""
    if re.match(r"\w+:/", str(path)):  # gs://, or what became of it as a Path
        raise UsageError(
            f"{path}: array_record reads local files: mount the bucket with gcsfuse or copy it"
        )
    return Path(path).expanduser()


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `prepare` says of the folder."""
    file = folder / MANIFEST
    if not file.is_file():
        if (folder / JOURNAL).is_file():
            raise UsageError(f"{folder} is incomplete: run vit-jax prepare again to finish it")
        raise UsageError(
            f"{folder} is no prepared data set: it has no {MANIFEST}; write one with"
            f" vit-jax prepare IN {folder}"
        )
    try:
        manifest = json.loads(file.read_bytes())
    except ValueError as error:
        raise UsageError(f"{file} is damaged, it is no JSON ({error}): {_REPAIR}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UsageError(f"{file} is not a manifest that vit-jax prepare wrote")
    if manifest["version"] != VERSION:
        raise UsageError(
            f"{file} is of version {manifest['version']}, this vit_jax reads {VERSION}:"
            f" prepare the data again"
        )
    return manifest


_REPAIR = "copy it again, or delete it and run vit-jax prepare again"


def _check_shards(folder: Path, shards: list[dict[str, Any]]) -> None:
    """By their sizes: one listing of the folder, where opening thousands would take minutes."""
    with os.scandir(folder) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries}
    for shard in shards:
        file, count = folder / shard["file"], shard["count"]
        size = sizes.get(shard["file"])
        if size is None:
            raise UsageError(
                f"the shard {file} is missing: expected {count} records, found none; {_REPAIR}"
            )
        if size != shard["bytes"]:
            _open(str(file), count)
            raise UsageError(
                f"the shard {file} has {size} bytes, expected {shard['bytes']}: {_REPAIR}"
            )


def _open(file: str, count: int) -> ArrayRecordReader:
    """The shard, if it holds that many records."""
    # No reading ahead: the next record wanted is hardly ever the next in the file.
    reader = ArrayRecordReader(file, "readahead_buffer_size:0", file_reader_buffer_size=2**15)
    if reader.ok() and reader.num_records() == count:
        return reader
    # A file that is cut off, or not there, opens without an error and has no records; what is
    # wrong comes out when one is read.
    reason = ""
    if not reader.ok():
        try:
            reader.read([0])
        except RuntimeError as error:
            reason = f" ({_one_line(error)})"
    raise UsageError(
        f"the shard {file} has {reader.num_records()} records, expected {count}{reason}: {_REPAIR}"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
