"""Fits parameters to another network: resolution, classes, channels, patch size."""

import collections
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from vit_jax.errors import UsageError
from vit_jax.models.config import NOT_IN_WEIGHTS, NetworkConfig, differences
from vit_jax.models.network import abstract_params, init_groups
from vit_jax.weights.layouts import flat, nested
from vit_jax.weights.resize import (
    resize_axis,
    resize_channels,
    resize_offsets,
    resize_patches,
    resize_positions,
)
from vit_jax.weights.table import LEFT_OUT, LOADED, NEW, RESIZED, Row

# What two networks may differ in and still share weights.
_ADAPTABLE = NOT_IN_WEIGHTS | {
    "image_size", "num_classes", "representation_size", "channels", "patch_size",
    "patch_outputs", "activation", "norm_epsilon",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Adapted:
    """Parameters for the new network, and what became of the old ones."""

    params: dict[str, Any]
    loaded: int  # arrays that were simply copied
    resized: tuple[str, ...]
    created: tuple[str, ...]
    left_out: tuple[str, ...]
    rows: tuple[Row, ...] = ()  # all of it, parameter by parameter

    def report(self) -> str:
        """One line."""
        parts = [f"loaded {self.loaded} arrays"]
        for what in ("resized", "created", "left_out"):
            if names := getattr(self, what):
                parts.append(f"{what.replace('_', ' ')} {', '.join(names)}")
        return "; ".join(parts)


def adapt(
    params: dict[str, Any],
    old: NetworkConfig,
    new: NetworkConfig,
    *,
    keep_head: bool = True,
    unused: tuple[str, ...] = (),
) -> Adapted:
    """`params` of network `old` made to fit `new`.

    The head is kept if wanted and if it has the same classes and reads the same representation,
    else it starts anew: from zero, as section 3.2 fine-tunes. `unused` is what a file held besides
    the parameters.
    """
    _check(old, new)
    stored, result, resized, created, rows = flat(params), {}, {}, {}, []
    dropped = set(_dropped(old, new, keep_head))
    wanted = flat(abstract_params(new))
    missing = {path.split("/")[0] for path in wanted if path not in stored} | dropped
    groups = tuple(sorted(missing))
    fresh = flat(init_groups(new, jax.random.key(0), groups)) if groups else {}
    for path, leaf in wanted.items():
        group = path.split("/")[0]
        if path not in stored or group in dropped:
            result[path] = fresh[path]
            created[f"{group} for {new.num_classes} classes" if group == "head" else group] = True
            rows.append(Row(NEW, path, None, leaf.shape))
            continue
        result[path], notes = stored[path], []
        for value, what in _fitted(path, stored[path], leaf.shape, old, new):
            result[path] = value
            notes.append(what)
        resized |= dict.fromkeys(notes)
        was = tuple(stored[path].shape)
        rows.append(Row(RESIZED if notes else LOADED, path, was, leaf.shape, ", ".join(notes)))
    wrong = [
        f"{path} has shape {result[path].shape}, expected {leaf.shape}"
        for path, leaf in wanted.items()
        if result[path].shape != leaf.shape
    ]
    if wrong:
        raise UsageError(f"weights of {old.name} do not fit {new.name}: {'; '.join(wrong)}")
    gone = [path for path in stored if path.split("/")[0] in dropped]
    left_out = {path.split("/")[0]: True for path in gone}
    rows += [Row(LEFT_OUT, path, tuple(stored[path].shape)) for path in gone]
    rows += [Row(LEFT_OUT, name, note="no part of the network") for name in unused]
    if "head" in left_out:
        del left_out["head"]
        left_out[f"head for {old.num_classes} classes"] = True
    loaded = sum(row.fate == LOADED for row in rows)
    left = (*left_out, *grouped(unused))
    return Adapted(nested(result), loaded, tuple(resized), tuple(created), left, tuple(rows))


def grouped(names: tuple[str, ...], separator: str = "/") -> tuple[str, ...]:
    """Names in a file; many are told by where they lie, as an optimizer's state may."""
    if len(names) <= 5:
        return names
    counts = collections.Counter(name.split(separator)[0] for name in names)
    return tuple(f"{folder}{separator}... ({count} arrays)" for folder, count in counts.items())


def _check(old: NetworkConfig, new: NetworkConfig) -> None:
    if old.family != new.family:
        raise UsageError(
            f"weights of {old.name} do not fit {new.name}: start from weights of the same family"
        )
    changed = differences(old, new)
    if getattr(old, "layer_scale", 0) and getattr(new, "layer_scale", 0):
        changed.pop("layer_scale", None)  # where branches start, which trained ones have left
    wrong = [text for field, text in changed.items() if field not in _ADAPTABLE]
    if wrong and old.name == new.name:
        raise UsageError(f"weights of {old.name} cannot be changed in {', '.join(wrong)}")
    if wrong:
        raise UsageError(
            f"weights of {old.name} do not fit {new.name}: {', '.join(wrong)}; "
            f"start from weights of the same shape"
        )


def _dropped(old: NetworkConfig, new: NetworkConfig, keep_head: bool) -> Iterator[str]:
    changed = differences(old, new).keys()
    if "representation_size" in changed:
        yield "pre_logits"
    if "patch_outputs" in changed:
        yield "prediction"
    if not keep_head or changed & {"representation_size", "num_classes"}:
        yield "head"


def _fitted(
    path: str, value: Any, shape: tuple[int, ...], old: NetworkConfig, new: NetworkConfig
) -> Iterator[tuple[np.ndarray, str]]:
    """What a parameter becomes, step by step, and a word for each; nothing if it stays."""
    if re.fullmatch(r"trunk/.*/mixer/(height|width)/offsets", path) and value.shape != shape:
        places, places_now = ((n + 1) // 2 for n in (value.shape[-2], shape[-2]))
        sizes = f"{_by(old.image_size)} -> {_by(new.image_size)} pixels"
        resized = resize_offsets(np.asarray(value), (1, places), (1, places_now))
        yield resized, f"relative positions {sizes}"
    for step in (_on_grid, _in_patches, _in_channels):
        if found := step(path, np.asarray(value), old, new):
            value = found[0]
            yield found


def _on_grid(
    path: str, value: np.ndarray, old: NetworkConfig, new: NetworkConfig
) -> tuple[np.ndarray, str] | None:
    if old.grid == new.grid:
        return None
    (old_rows, old_columns), (rows, columns) = old.grid, new.grid
    grids = f"{_by(old.grid)} -> {_by(new.grid)}"
    if path.endswith("positions/table"):
        return resize_positions(value, old.grid, new.grid), f"positions {grids}"
    if path.endswith(("positions/rows", "positions/columns")):
        size = rows if path.endswith("rows") else columns
        return resize_axis(value, size), f"positions {grids}"
    # Along a row, as many places as there are columns; a raster of all tokens has those of no grid.
    sequences = {
        "encoder/blocks/row/attention/offsets": ((1, old_columns), (1, columns), 0),
        "encoder/blocks/column/attention/offsets": ((1, old_rows), (1, rows), 0),
        "encoder/blocks/attention/offsets": (
            old.grid, new.grid, getattr(old, "tokens", 0) - old_rows * old_columns,
        ),
    }  # fmt: skip
    if path in sequences:
        return resize_offsets(value, *sequences[path]), f"relative positions {grids}"
    return None


def _in_patches(
    path: str, value: np.ndarray, old: NetworkConfig, new: NetworkConfig
) -> tuple[np.ndarray, str] | None:
    if path != "embedding/patches/kernel" or old.patch_size == new.patch_size:
        return None
    sizes = f"{_by(old.patch_size)} -> {_by(new.patch_size)}"
    return resize_patches(value, new.patch_size), f"patches {sizes}"


def _in_channels(
    path: str, value: np.ndarray, old: NetworkConfig, new: NetworkConfig
) -> tuple[np.ndarray, str] | None:
    is_hybrid = getattr(old, "stem_stages", None) is not None
    first = "embedding/stem/root_conv/kernel" if is_hybrid else "embedding/patches/kernel"
    if path not in (first, "trunk/root_conv/kernel") or old.channels == new.channels:
        return None
    return resize_channels(value, new.channels), f"channels {old.channels} -> {new.channels}"


def _by(grid: tuple[int, int]) -> str:
    return f"{grid[0]}x{grid[1]}"
