"""ImageNet ReaL: all the labels that are true of a validation image (Beyer et al., 2020).

The labels are those of real.json, from github.com/google-research/reassessed-imagenet.
"""

import json
import re
from pathlib import Path

import numpy as np

from vit_jax.data.source import PADDING_LABEL, Example, Source, where
from vit_jax.errors import UsageError

IMAGES = 50_000
CLASSES = 1_000

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


def read_real_labels(path: str | Path) -> np.ndarray:
    """int32 [50000, k], padded: row n holds the labels of ILSVRC2012_val_ number n + 1. Images of
    which nothing could be agreed on have none."""
    try:
        labels = json.loads(Path(path).expanduser().read_text())
    except OSError as error:
        raise UsageError(
            f"cannot read the ReaL labels {path}: {error.strerror}. They are real.json of"
            " github.com/google-research/reassessed-imagenet"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not the real.json of ImageNet ReaL: no JSON") from error
    if problem := _problem(labels):
        raise UsageError(f"{path} is not the real.json of ImageNet ReaL: {problem}")
    most = max(1, *map(len, labels))
    padded = np.full((IMAGES, most), PADDING_LABEL, np.int32)
    for row, found in zip(padded, labels, strict=True):
        row[: len(found)] = found
    return padded


class RealLabels:
    """The images of an ImageNet validation set with their ReaL labels, int32 [k], padded.

    Each gets its own by the number in its file's name, in whatever order the source has them. One
    without labels is all padding; leaving it out of the score is the metric's business.
    """

    def __init__(self, source: Source, labels: np.ndarray):
        if source.num_classes != CLASSES:
            raise UsageError(
                f"ReaL labels are for ImageNet's {CLASSES:,} classes,"
                f" {source.name} has {source.num_classes:,}"
            )
        self.name = f"{source.name} with ReaL labels"
        self.class_names = source.class_names
        self._source = source
        self._labels = labels
        self._row(0)  # the wrong data set is noticed now and not when the training is over

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Example:
        image = self._source[index]["image"]
        return Example(image=image, label=self._labels[self._row(index)].copy())

    def where(self, index: int) -> str:
        return where(self._source, index)

    def _row(self, index: int) -> int:
        # TFDS keeps the name of the file beside the image.
        file_name = getattr(self._source, "file_name", None)
        name = file_name(index) if file_name else self.where(index)
        found = _NUMBER.search(name)
        if not found or not 1 <= int(found[1]) <= len(self._labels):
            raise UsageError(
                f"no ReaL labels for {self.where(index)}: expected a file name with"
                f" ILSVRC2012_val_00000001 to ILSVRC2012_val_{len(self._labels):08}, found {name!r}"
            )
        return int(found[1]) - 1


def _problem(labels: object) -> str:
    if not isinstance(labels, list) or len(labels) != IMAGES:
        found = f"a list of {len(labels):,}" if isinstance(labels, list) else type(labels).__name__
        return f"expected a list of {IMAGES:,}, one entry for each image, found {found}"
    for number, found in enumerate(labels, start=1):
        if not isinstance(found, list) or not all(
            type(label) is int and 0 <= label < CLASSES for label in found
        ):
            return (
                f"expected a list of classes from 0 to {CLASSES - 1} for image {number:,}, found"
                f" {str(found)[:50]}"
            )
    return ""
