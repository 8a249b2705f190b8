"""A csv or jsonl file that lists images and their labels, one or several each.

    image,label,split                       {"image": "a/1.jpg", "label": ["cat", "sofa"]}
    a/1.jpg,cat,train                       {"image": "a/2.jpg", "label": "dog", "split": "test"}
    a/2.jpg,cat;sofa,test

Paths are relative to the list. Without a split a tenth is held out, as of a folder.
"""

import csv
import io
import json
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data import files
from vit_jax.data.folder import (
    SPELLINGS,
    STAND_IN,
    ImageFiles,
    in_order,
    is_held_out,
    shuffled,
)
from vit_jax.data.source import PADDING_LABEL
from vit_jax.errors import UsageError, closest

SUFFIXES = (".csv", ".jsonl")
_BETWEEN_LABELS = ";"


class _Row(NamedTuple):
    image: str
    labels: tuple[str, ...]
    split: str  # train, val, test, or nothing


def image_list(path: str, split: str) -> ImageFiles:
    """The split of the images that the file at `path` lists."""
    rows = _read(path)
    names = _split_names(rows)
    wanted = split if split in names else STAND_IN.get(split, split)
    is_split = any(row.split for row in rows)
    chosen = [
        row
        for row in rows
        if (row.split == wanted if is_split else is_held_out(row.image) == (split != "train"))
    ]
    if not chosen:
        raise UsageError(f"{path} lists no images for the split {split!r}")
    chosen.sort(key=lambda row: shuffled(row.image))
    classes = in_order({label for row in rows for label in row.labels})
    number = {name: label for label, name in enumerate(classes)}
    most = max(len(row.labels) for row in rows)
    numbers = np.full((len(chosen), most), PADDING_LABEL, np.int32)
    for place, row in enumerate(chosen):
        numbers[place, : len(row.labels)] = [number[label] for label in row.labels]
    folder = path.rpartition("/")[0] or "."
    places = (row.image if _is_absolute(row.image) else f"{folder}/{row.image}" for row in chosen)
    labels = numbers if most > 1 else numbers[:, 0]
    return ImageFiles(path, tuple(classes), tuple(places), labels)


def split_names(path: str) -> tuple[str, ...]:
    """The splits that a list has."""
    return _split_names(_read(path))


def _split_names(rows: list[_Row]) -> tuple[str, ...]:
    found = {row.split for row in rows}
    return tuple(split for split in SPELLINGS if split in found) or ("train", "test")


def _read(path: str) -> list[_Row]:
    if not files.is_file(path):
        raise UsageError(f"no such list of images: {path}")
    try:
        text = files.read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8: {error}") from error
    is_csv = path.lower().endswith(".csv")
    rows = _csv(text) if is_csv else _jsonl(text, path)
    if not rows:
        raise UsageError(f"{path} lists nothing: expected a row for each image")
    read = [_row(path, number, values, is_csv) for number, values in rows]
    if max(len(row.labels) for row in read) < 2:  # else an image may have none
        for (number, values), row in zip(rows, read, strict=True):
            if not row.labels:
                raise _mistake(path, number, values)
    if 0 < sum(bool(row.split) for row in read) < len(read):
        missing = next(n for (n, _), row in zip(rows, read, strict=True) if not row.split)
        raise UsageError(f"{path} line {missing} has no split, others have: give all or none")
    return read


def _row(path: str, number: int, values: Any, is_csv: bool) -> _Row:
    if not isinstance(values, dict):
        raise _mistake(path, number, values)
    image, labels, split = values.get("image"), values.get("label"), values.get("split") or ""
    if is_csv and isinstance(labels, str):
        labels = [part.strip() for part in labels.split(_BETWEEN_LABELS) if part.strip()]
    elif isinstance(labels, str | int):
        labels = [labels]
    if not isinstance(image, str) or not image.strip() or not isinstance(labels, list):
        raise _mistake(path, number, values)
    spelled = {name: split for split, names in SPELLINGS.items() for name in names}
    if split and str(split).lower() not in spelled:
        raise UsageError(
            f"{path} line {number}: unknown split {split!r}.{closest(str(split), spelled)} "
            f"Expected one of {', '.join(SPELLINGS)}"
        )
    return _Row(image, tuple(map(str, labels)), spelled.get(str(split).lower(), ""))


def _mistake(path: str, number: int, values: Any) -> UsageError:
    return UsageError(
        f"{path} line {number}: expected image and label (and split), as in a/1.jpg,cat or "
        f'{{"image": "a/1.jpg", "label": "cat"}}; found {values}'
    )


def _csv(text: str) -> list[tuple[int, Any]]:
    reader = csv.DictReader(io.StringIO(text))
    return [(reader.line_num, row) for row in reader]


def _jsonl(text: str, path: str) -> list[tuple[int, Any]]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except ValueError as error:
                raise UsageError(f"{path} line {number} is no JSON: {error}") from error
    return rows


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or files.is_remote(path)
