"""Spellings of the published layout that are met in the wild, all read, and written on demand."""

import dataclasses
import re

import ml_dtypes
import numpy as np

from vit_jax.errors import UsageError, closest

_POSITIONS = "Transformer/posembed_input/pos_embedding"
_PREFIXES = ("params/img/", "opt/target/", "params/", "img/")
_ROOTS = ("embedding/", "conv_root/", "resnet/", "Transformer/")  # some start any network here

# (published, newer) counters inside an encoder block.
_COUNTERS = (
    ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
    ("LayerNorm_2", "LayerNorm_1"),
    ("MlpBlock_3", "MlpBlock_0"),
)


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a file departs from the published spelling."""

    prefix: str = ""
    newer_counters: bool = False
    stacked: bool = False  # blocks in one array, with a leading layer axis
    folded_class_token: bool = False  # its position is added to it, the table has none
    squeezed_norms: bool = False  # GroupNorm leaves (C) and not (1, 1, 1, C)
    bfloat16: bool = False


DIALECTS = {
    "published": Dialect(),
    "big_vision": Dialect(newer_counters=True, folded_class_token=True, squeezed_norms=True),
    "big_vision_stacked": Dialect(
        newer_counters=True, folded_class_token=True, squeezed_norms=True, stacked=True
    ),
}


def dialect(name: str) -> Dialect:
    """A dialect by name."""
    if name not in DIALECTS:
        raise UsageError(
            f"unknown dialect {name!r}.{closest(name, DIALECTS)} "
            f"Expected one of {', '.join(DIALECTS)}"
        )
    return DIALECTS[name]


def to_published(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays in any dialect -> in the published spelling; and keys outside of the network."""
    arrays, others = _without_prefix(arrays)
    spelled: dict[str, np.ndarray] = {}
    for key, value in arrays.items():
        if match := re.fullmatch(r"Transformer/encoderblock(_\d+)?/(.+)", key):
            name = _counters(match[2], to_newer=False)
            if match[1] or not value.ndim:
                spelled[f"Transformer/encoderblock{match[1] or '_0'}/{name}"] = value
            else:
                spelled |= {
                    f"Transformer/encoderblock_{i}/{name}": layer for i, layer in enumerate(value)
                }
        elif key == "pos_embedding" and value.ndim == 3:
            row = np.zeros_like(value[:, :1])
            spelled[_POSITIONS] = np.concatenate([row, value], axis=1) if "cls" in arrays else value
        else:
            spelled[key] = value
    return spelled, others


def from_published(arrays: dict[str, np.ndarray], dialect: Dialect) -> dict[str, np.ndarray]:
    """Arrays in the published spelling -> in another dialect."""
    arrays = dict(arrays)
    if dialect.folded_class_token and _POSITIONS in arrays:
        table = arrays.pop(_POSITIONS)
        if "cls" in arrays:
            arrays["cls"] = arrays["cls"] + table[:, :1]
            table = table[:, 1:]
        arrays["pos_embedding"] = table
    if dialect.squeezed_norms:
        arrays = {k: v.reshape(-1) if "/gn" in f"/{k}" else v for k, v in arrays.items()}
    if dialect.newer_counters:
        arrays = {_in_blocks(key): value for key, value in arrays.items()}
    if dialect.stacked:
        arrays = _stacked(arrays)
    if dialect.bfloat16:
        arrays = {k: v.astype(ml_dtypes.bfloat16) for k, v in arrays.items()}
    return {dialect.prefix + key: value for key, value in arrays.items()}


def _without_prefix(
    arrays: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], list[str]]:
    for prefix in _PREFIXES:
        if any(key.startswith(tuple(prefix + root for root in _ROOTS)) for key in arrays):
            inside = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            return inside, [key for key in arrays if not key.startswith(prefix)]
    return arrays, []


def _in_blocks(key: str) -> str:
    match = re.fullmatch(r"(Transformer/encoderblock_\d+/)(.+)", key)
    return match[1] + _counters(match[2], to_newer=True) if match else key


def _counters(name: str, *, to_newer: bool) -> str:
    for published, newer in _COUNTERS:
        old, new = (published, newer) if to_newer else (newer, published)
        if name == old or name.startswith(f"{old}/"):
            return new + name.removeprefix(old)
    return name


def _stacked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    layers: dict[str, dict[int, np.ndarray]] = {}
    others = {}
    for key, value in arrays.items():
        if match := re.fullmatch(r"Transformer/encoderblock_(\d+)/(.+)", key):
            layers.setdefault(match[2], {})[int(match[1])] = value
        else:
            others[key] = value
    return others | {
        f"Transformer/encoderblock/{name}": np.stack([by_layer[i] for i in sorted(by_layer)])
        for name, by_layer in layers.items()
    }
