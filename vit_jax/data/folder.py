"""A folder of images, one folder per class, read as they are asked for, here or in a bucket."""

import dataclasses
import zlib

import numpy as np

from vit_jax.data import files
from vit_jax.data.source import Example, check_index
from vit_jax.errors import UsageError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
HELD_OUT_PERCENT = 10

# What to look for, in this order, where a split may go by another's name.
_SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "test"), "test": ("test", "val")}


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
        return Example(image=files.read(self.paths[index]), label=self.labels[index])

    def where(self, index: int) -> str:
        return self.paths[index]


def image_folder(root: str, split: str) -> ImageFiles:
    """`root/CLASS/image.jpg`, or `root/{train,val,test}/CLASS/image.jpg`.

    Without split folders a tenth of the images is held out, for "val" and "test" alike; which ones
    follows from their names, so that adding images moves none from one side to the other.
    """
    root = root.rstrip("/")
    found = [path for path in files.find(root) if path.lower().endswith(EXTENSIONS)]
    splits = _split_folders(found)
    folder = _choose(splits, split, root) if splits else ""
    # Over all splits: a class without test images must not renumber those behind it.
    depth = 1 if splits else 0
    in_classes = [p.split("/") for p in found if p.count("/") > depth]
    classes = sorted({parts[depth] for parts in in_classes if not splits or parts[0] in splits})
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


def is_held_out(path: str) -> bool:
    """Whether an image is one to test on; its path within the data set decides."""
    return zlib.crc32(path.encode()) % 100 < HELD_OUT_PERCENT


def shuffled(path: str) -> tuple[int, str]:
    """To sort by: not by class, so that any slice of a split is a fair sample of it."""
    return zlib.crc32(b"order " + path.encode()), path


def _split_folders(paths: list[str]) -> set[str]:
    """Those of train, val and test that hold class folders: "train" may be a class itself."""
    return {p.split("/")[0] for p in paths if p.count("/") > 1} & _SPLIT_FOLDERS.keys()


def _choose(splits: set[str], split: str, root: str) -> str:
    for name in _SPLIT_FOLDERS[split]:
        if name in splits:
            return name
    raise UsageError(
        f"{root} is divided into splits but has none for {split!r}: expected a folder "
        f"{' or '.join(f'{root}/{name}' for name in _SPLIT_FOLDERS[split])}"
    )
