"""Where a name in a config or on a command line becomes a data set."""

from collections.abc import Callable
from pathlib import Path

import cv2

from vit_jax.data import files
from vit_jax.data.compose import Mixture, mixture_parts, sliced, split_parts
from vit_jax.data.digits import Digits
from vit_jax.data.folder import image_folder
from vit_jax.data.glyphs import Glyphs
from vit_jax.data.listing import SUFFIXES, image_list
from vit_jax.data.records import JOURNAL, MANIFEST, Records
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
TFDS, VTAB = "tfds:", "vtab:"


def open_source(name: str, split: str, image_size: ImageSize) -> Source:
    """The split of a data set, or a slice of it ("train[:98%]").

    `name`: a built-in; the path of a folder of class folders, of a csv or jsonl list, or of what
    `vit-jax prepare` wrote; tfds:NAME; vtab:TASK; or a mixture, as in "glyphs*0.7+digits*0.3".
    `image_size` (one side, or height and width) is the size in which procedural images are drawn;
    all others keep the size they have.
    """
    # Batches are made by many threads, one image each. OpenCV would open a pool of its own in every
    # one of them, and they would wait for each other.
    cv2.setNumThreads(0)
    if parts := mixture_parts(name):
        opened = [open_source(part, split, image_size) for part, _ in parts]
        return Mixture(opened, [weight for _, weight in parts])
    if name.startswith(TFDS):
        from vit_jax.data.tfds_source import open_tfds  # an extra, which not everybody installs

        return open_tfds(name.removeprefix(TFDS), split)
    if name.startswith(VTAB):
        from vit_jax.data.vtab import open_vtab

        return open_vtab(name.removeprefix(VTAB), split)
    base, bounds = split_parts(split)
    source = _open(name, base, image_size)
    return source if bounds is None else sliced(source, bounds, split)


def open_splits(name: str, image_size: ImageSize) -> dict[str, Source]:
    """All splits of a data set; those of a folder or list that has no splits of its own are train
    and test."""
    if name.startswith(TFDS):
        from vit_jax.data.tfds_source import split_names

        return {s: open_source(name, s, image_size) for s in split_names(name.removeprefix(TFDS))}
    found: dict[str, Source] = {}
    for split in ("train", "val", "test"):
        try:
            source = open_source(name, split, image_size)
        except UsageError as error:
            missing = error
            continue
        paths = getattr(source, "paths", None)
        if paths is None or not any(paths == getattr(s, "paths", None) for s in found.values()):
            found[split] = source
    if not found:
        raise missing
    return found


def _open(name: str, split: str, image_size: ImageSize) -> Source:
    if "/" in name or name.startswith((".", "~")) or name.endswith(SUFFIXES):
        return _open_path(name, split)
    if name not in BUILT_IN:
        hint = f" Did you mean ./{name}?" if Path(name).is_dir() else closest(name, BUILT_IN)
        raise UsageError(f"unknown data set {name!r}.{hint} {_EXPECTED}")
    return BUILT_IN[name](_checked(split, ("train", "test"), name), image_size)


def _open_path(name: str, split: str) -> Source:
    path = name if files.is_remote(name) else str(Path(name).expanduser())
    if path.endswith(SUFFIXES):
        return image_list(path, _checked(split, ("train", "val", "test"), name))
    if not files.is_folder(path):
        raise UsageError(f"no such folder: {name}. {_EXPECTED}")
    if any(files.is_file(f"{path}/{name}") for name in (MANIFEST, JOURNAL)):
        return Records(path, split)
    return image_folder(path, _checked(split, ("train", "val", "test"), name))


_EXPECTED = (
    f"Expected {', '.join(BUILT_IN)}, tfds:NAME, vtab:TASK, or the path of a folder with one "
    f"folder per class, of a csv or jsonl list, or of prepared records."
)


def _checked(split: str, splits: tuple[str, ...], name: str) -> str:
    if split not in splits:
        raise UsageError(
            f"unknown split {split!r} of {name}.{closest(split, splits)}"
            f" Expected one of {', '.join(splits)}."
        )
    return split
