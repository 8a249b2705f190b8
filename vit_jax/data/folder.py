"""A folder of images, one folder per class, read as they are asked for, here or in a bucket."""

import dataclasses
import os
import zlib
from collections.abc import Iterable

import numpy as np

from vit_jax.data import files
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Example, check_index
from vit_jax.errors import UsageError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
HELD_OUT_PERCENT = 10

# How splits are called, in any case; and which other one to take where there is none.
SPELLINGS = {
    "train": ("train", "training"),
    "val": ("val", "validation", "valid", "dev"),
    "test": ("test", "testing"),
}
STAND_IN = {"val": "test", "test": "val"}


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """Files and their labels, in a fixed order that is as good as random."""

    name: str
    class_names: tuple[str, ...]
    paths: tuple[str, ...]
    labels: np.ndarray  # int32 [example] or [example, k]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Example:
        check_index(self, index)
        try:
            image = files.read(self.paths[index])
        except (OSError, ValueError) as error:  # gone, a folder, forbidden, no name of a file
            raise BadImage(str(error)) from error
        return Example(image=image, label=self.labels[index])

    def where(self, index: int) -> str:
        return self.paths[index]


def image_folder(root: str, split: str) -> ImageFiles:
    """`root/CLASS/image.jpg`, or `root/{train,val,test}/CLASS/image.jpg`.

    Without split folders a tenth of the images is held out, for "val" and "test" alike; which ones
    follows from their names, so that adding images moves none from one side to the other.
    """
    root = root.rstrip("/")
    found = _images(root)
    splits = _split_folders(found, root)
    folder = _choose(splits, split, root) if splits else ""
    # Over all splits: a class without test images must not renumber those behind it.
    depth = 1 if splits else 0
    in_classes = [p.split("/") for p in found if p.count("/") > depth]
    classes = in_order({parts[depth] for parts in in_classes})
    _check_empty(root, splits, set(classes))
    number = {name: label for label, name in enumerate(classes)}
    chosen = [
        "/".join(parts)
        for parts in in_classes
        if (parts[0] == folder if splits else is_held_out("/".join(parts)) == (split != "train"))
    ]
    if not chosen:
        here = f"{root}/{folder}".rstrip("/")
        raise UsageError(
            f"no images for the split {split!r} in {here}: expected one folder per class, "
            f"{here}/CLASS/*.jpg (or {', '.join(EXTENSIONS[1:])})"
        )
    chosen.sort(key=shuffled)
    labels = np.array([number[path.split("/")[depth]] for path in chosen], np.int32)
    return ImageFiles(root, tuple(classes), tuple(f"{root}/{path}" for path in chosen), labels)


def split_names(root: str) -> tuple[str, ...]:
    """The splits that a folder has."""
    found = _split_folders(_images(root.rstrip("/")), root)
    return tuple(split for split in SPELLINGS if split in found) or ("train", "test")


def is_held_out(path: str) -> bool:
    """Whether an image is one to test on; its path within the data set decides."""
    return zlib.crc32(os.fsencode(path)) % 100 < HELD_OUT_PERCENT


def shuffled(path: str) -> tuple[int, str]:
    """To sort by: not by class, so that any slice of a split is a fair sample of it."""
    return zlib.crc32(b"order " + os.fsencode(path)), path


def in_order(classes: Iterable[str]) -> list[str]:
    """Class names as people would sort them: 2 before 10."""
    names = list(classes)
    are_numbers = all(name.isdecimal() for name in names)
    return sorted(names, key=int) if are_numbers else sorted(names)


def _images(root: str) -> list[str]:
    return [path for path in files.find(root) if path.lower().endswith(EXTENSIONS)]


def _split_folders(paths: list[str], root: str) -> dict[str, str]:
    """Split -> its folder, where there are such folders that hold class folders."""
    with_classes = {p.split("/")[0] for p in paths if p.count("/") > 1}
    spelled = {name: split for split, names in SPELLINGS.items() for name in names}
    found = {spelled[n.lower()]: n for n in sorted(with_classes) if n.lower() in spelled}
    others = {p.split("/")[0] for p in paths if "/" in p} - set(found.values())
    if found and others:
        raise UsageError(
            f"{root} has folders of splits ({', '.join(found.values())}) beside others "
            f"({', '.join(sorted(others)[:3])}): expected either splits or classes in it"
        )
    return found


def _check_empty(root: str, splits: dict[str, str], classes: set[str]) -> None:
    """A class folder without images would silently be no class. (Buckets have no empty folders.)"""
    if files.is_remote(root):
        return
    for parent in [f"{root}/{name}" for name in splits.values()] or [root]:
        for entry in os.scandir(parent):
            is_class = entry.is_dir() and not entry.name.startswith(".")
            if is_class and entry.name not in classes:
                raise UsageError(
                    f"the class folder {entry.path} holds no images: add some "
                    f"({', '.join(EXTENSIONS)}), or move it away"
                )


def _choose(splits: dict[str, str], split: str, root: str) -> str:
    for name in (split, STAND_IN.get(split)):
        if name in splits:
            return splits[name]
    raise UsageError(
        f"{root} is divided into splits but has none for {split!r}: expected a folder "
        f"{' or '.join(f'{root}/{n}' for n in (split, STAND_IN.get(split)) if n)}"
    )
