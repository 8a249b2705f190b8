"""A csv or jsonl file that lists images and their labels, one or several each.

    image,label,split                       {"image": "a/1.jpg", "label": ["cat", "sofa"]}
    a/1.jpg,cat,train                       {"image": "a/2.jpg", "label": "dog", "split": "test"}
    a/2.jpg,cat;sofa,test

Paths are relative to the list. Without a split a tenth is held out, as of a folder.
"""

import csv
import io
import json
from typing import Any

import numpy as np

from vit_jax.data import files
from vit_jax.data.folder import ImageFiles, is_held_out, shuffled
from vit_jax.data.source import PADDING_LABEL
from vit_jax.errors import UsageError

SUFFIXES = (".csv", ".jsonl")
_BETWEEN_LABELS = ";"
_SPLITS = {"train": ("train",), "val": ("val", "validation"), "test": ("test",)}


def image_list(path: str, split: str) -> ImageFiles:
    """The split of the images that the file at `path` lists."""
    rows = _read(path)
    classes = sorted({label for _, labels, _ in rows for label in labels})
    number = {name: label for label, name in enumerate(classes)}
    is_split = any(which for _, _, which in rows)
    spellings = _SPLITS[split]
    if split != "train" and is_split and not any(which in spellings for _, _, which in rows):
        spellings = (*_SPLITS["val"], *_SPLITS["test"])  # the one there is, as of folders
    chosen = [
        (image, labels)
        for image, labels, which in rows
        if (which in spellings if is_split else is_held_out(image) == (split != "train"))
    ]
    if not chosen:
        raise UsageError(f"{path} lists no images for the split {split!r}")
    chosen.sort(key=lambda row: shuffled(row[0]))
    most = max(len(labels) for _, labels, _ in rows)
    if any(len(labels) != 1 for _, labels, _ in rows):
        numbers = np.full((len(chosen), most), PADDING_LABEL, np.int32)
        for row, (_, labels) in enumerate(chosen):
            numbers[row, : len(labels)] = [number[label] for label in labels]
    else:
        numbers = np.array([number[label] for _, (label,) in chosen], np.int32)
    folder = path.rpartition("/")[0] or "."
    places = (image if _is_absolute(image) else f"{folder}/{image}" for image, _ in chosen)
    return ImageFiles(path, tuple(classes), tuple(places), numbers)


def _read(path: str) -> list[tuple[str, list[str], str]]:
    """(image, labels, split or nothing) for each row."""
    if not files.is_file(path):
        raise UsageError(f"no such list of images: {path}")
    text = files.read(path).decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text))) if path.endswith(".csv") else _jsonl(text, path)
    if not rows:
        raise UsageError(f"{path} lists nothing: expected a row for each image")
    result = []
    for number, row in enumerate(rows, start=2 if path.endswith(".csv") else 1):
        try:
            labels = row["label"]
            if isinstance(labels, str) and path.endswith(".csv"):
                labels = [part.strip() for part in labels.split(_BETWEEN_LABELS) if part.strip()]
            elif not isinstance(labels, list):
                labels = [labels]
            result.append((row["image"], [str(x) for x in labels], row.get("split") or ""))
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} line {number}: expected image and label (and split), as in a/1.jpg,cat or "
                f'{{"image": "a/1.jpg", "label": "cat"}}; found {row}'
            ) from error
    return result


def _jsonl(text: str, path: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise UsageError(f"{path} line {number} is no JSON: {error}") from error
    return rows


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or files.is_remote(path)
