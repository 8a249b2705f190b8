"""Where a name in a config or on a command line becomes a data set."""

from collections.abc import Callable
from pathlib import Path

from vit_jax.data import files, folder, listing, records
from vit_jax.data.compose import Mixture, mixture_parts, sliced, split_parts
from vit_jax.data.digits import Digits
from vit_jax.data.glyphs import Glyphs
from vit_jax.data.listing import SUFFIXES
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
    # Few enough classes to be learned on two CPU cores.
    "visual_atoms_mini": lambda split, size: VisualAtoms(
        split, size, classes=50, images=50_000, name="visual_atoms_mini"
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
    if parts := mixture_parts(name):
        opened = [open_source(part, split, image_size) for part, _ in parts]
        return Mixture(opened, [weight for _, weight in parts])
    if name.startswith(TFDS):
        from vit_jax.data.tfds_source import open_tfds  # an extra, which not everybody installs

        return open_tfds(name.removeprefix(TFDS), split)
    base, bounds = split_parts(split)
    if name.startswith(VTAB):
        from vit_jax.data.vtab import open_vtab

        source = open_vtab(name.removeprefix(VTAB), base)
    else:
        source = _open(name, base, image_size)
    return source if bounds is None else sliced(source, bounds, split)


def open_splits(name: str, image_size: ImageSize) -> dict[str, Source]:
    """All splits of a data set; of one that has none of its own, train and test."""
    return {split: open_source(name, split, image_size) for split in _split_names(name)}


def _split_names(name: str) -> tuple[str, ...]:
    if name.startswith(TFDS):
        from vit_jax.data.tfds_source import split_names

        return split_names(name.removeprefix(TFDS))
    if name.startswith(VTAB):
        return ("train800", "val200", "test")
    if mixture_parts(name) or not _is_path(name):
        return ("train", "test")
    path = _path(name)
    if path.endswith(SUFFIXES):
        return listing.split_names(path)
    if _is_prepared(path):
        return records.split_names(path)
    return folder.split_names(path)


def _open(name: str, split: str, image_size: ImageSize) -> Source:
    if _is_path(name):
        return _open_path(name, split)
    if name not in BUILT_IN:
        hint = f" Did you mean ./{name}?" if Path(name).is_dir() else closest(name, BUILT_IN)
        raise UsageError(f"unknown data set {name!r}.{hint} {_EXPECTED}")
    return BUILT_IN[name](_checked(split, ("train", "test"), name), image_size)


def _open_path(name: str, split: str) -> Source:
    path = _path(name)
    if path.lower().endswith(SUFFIXES):
        return listing.image_list(path, _checked(split, ("train", "val", "test"), name))
    if not files.is_folder(path):
        raise UsageError(f"no such folder: {name}. {_EXPECTED}")
    if _is_prepared(path):
        return records.Records(path, split)
    return folder.image_folder(path, _checked(split, ("train", "val", "test"), name))


def _is_path(name: str) -> bool:
    return "/" in name or name.startswith((".", "~")) or name.lower().endswith(SUFFIXES)


def _path(name: str) -> str:
    return name if files.is_remote(name) else str(Path(name).expanduser())


def _is_prepared(path: str) -> bool:
    return any(files.is_file(f"{path}/{name}") for name in (records.MANIFEST, records.JOURNAL))


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
