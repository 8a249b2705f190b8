"""A folder of images, one folder per class, read from disk as they are asked for."""

import zlib
from pathlib import Path

import cv2
import numpy as np

from vit_jax.data.source import Example
from vit_jax.errors import UsageError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
HELD_OUT_PERCENT = 10

# What to look for, in this order, where a split may go by another's name.
_SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "test"), "test": ("test", "val")}


class ImageFolder:
    """`path/CLASS/image.jpg`, or `path/{train,val,test}/CLASS/image.jpg`.

    Without split folders a tenth of the images is held out, for "val" and "test" alike; which ones
    follows from their names, so that adding images moves none from one side to the other.
    """

    def __init__(self, path: str | Path, split: str):
        root = Path(path)
        self.name = str(path)
        folders = _split_folders(root)
        folder = root if not folders else _choose(folders, split, root)
        # Over all splits: a class without test images must not renumber those behind it.
        classes = {c.name for parent in folders.values() or [root] for c in _subfolders(parent)}
        self.class_names = tuple(sorted(classes))
        self._files = [
            (file, label)
            for label, name in enumerate(self.class_names)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in EXTENSIONS
            and (folders or _is_held_out(file, root) == (split != "train"))
        ]
        if not self._files:
            raise UsageError(
                f"no images for the split {split!r} in {folder}: expected one folder per class,"
                f" {folder}/CLASS/*.jpg (or {', '.join(EXTENSIONS[1:])})"
            )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} examples, there is no number {index}")
        file, label = self._files[index]
        return Example(image=_read(file), label=np.array(label, np.int32))


def _split_folders(root: Path) -> dict[str, Path]:
    """Those of train, val and test that exist and hold class folders: "train" may be a class."""
    return {
        name: root / name
        for name in _SPLIT_FOLDERS
        if (root / name).is_dir() and _subfolders(root / name)
    }


def _subfolders(folder: Path) -> list[Path]:
    return [e for e in folder.iterdir() if e.is_dir() and not e.name.startswith(".")]


def _choose(folders: dict[str, Path], split: str, root: Path) -> Path:
    for name in _SPLIT_FOLDERS[split]:
        if name in folders:
            return folders[name]
    raise UsageError(
        f"{root} is divided into splits but has none for {split!r}: expected a folder"
        f" {' or '.join(str(root / name) for name in _SPLIT_FOLDERS[split])}"
    )


def _is_held_out(file: Path, root: Path) -> bool:
    return zlib.crc32(file.relative_to(root).as_posix().encode()) % 100 < HELD_OUT_PERCENT


def _read(file: Path) -> np.ndarray:
    data = np.frombuffer(file.read_bytes(), np.uint8)
    # IMREAD_COLOR: three channels of eight bits, turned as its EXIF says, whatever the file holds.
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    if image is None:
        raise UsageError(f"cannot read the image {file}: it is broken or of no known format")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
