"""Where a name in a config or on a command line becomes a data set."""

from collections.abc import Callable
from pathlib import Path

import cv2

from vit_jax.data.digits import Digits
from vit_jax.data.folder import ImageFolder
from vit_jax.data.glyphs import Glyphs
from vit_jax.data.source import Source
from vit_jax.data.visual_atoms import VisualAtoms
from vit_jax.errors import UsageError, closest

ImageSize = int | tuple[int, int]

BUILT_IN: dict[str, Callable[[str, ImageSize], Source]] = {
    "digits": lambda split, size: Digits(split),
    "glyphs": lambda split, size: Glyphs(split, size),
    "visual_atoms": lambda split, size: VisualAtoms(split, size),
    # As many images as ImageNet-1k, so that a schedule in epochs means the same number of steps.
    "visual_atoms_1k": lambda split, size: VisualAtoms(
        split, size, classes=1_000, images=1_281_167, name="visual_atoms_1k"
    ),
    "visual_atoms_multi": lambda split, size: VisualAtoms(
        split, size, multi_label=True, name="visual_atoms_multi"
    ),
}


def open_source(name: str, split: str, image_size: ImageSize) -> Source:
    """The split of a built-in data set, or of a folder of images if `name` is a path.

    `image_size` (one side, or height and width) is the size in which procedural images are drawn;
    digits and folders keep the size they have.
    """
    # Batches are made by many threads, one image each. OpenCV would open a pool of its own in every
    # one of them, and they would wait for each other.
    cv2.setNumThreads(0)
    if "/" in name or name.startswith((".", "~")):
        path = Path(name).expanduser()
        if not path.is_dir():
            raise UsageError(f"no such folder: {name}. {_EXPECTED}")
        return ImageFolder(path, _checked(split, ("train", "val", "test"), name))
    if name not in BUILT_IN:
        hint = f" Did you mean ./{name}?" if Path(name).is_dir() else closest(name, BUILT_IN)
        raise UsageError(f"unknown data set {name!r}.{hint} {_EXPECTED}")
    return BUILT_IN[name](_checked(split, ("train", "test"), name), image_size)


_EXPECTED = f"Expected {', '.join(BUILT_IN)}, or the path of a folder with one folder per class."


def _checked(split: str, splits: tuple[str, ...], name: str) -> str:
    if split not in splits:
        raise UsageError(
            f"unknown split {split!r} of {name}.{closest(split, splits)}"
            f" Expected one of {', '.join(splits)}."
        )
    return split
