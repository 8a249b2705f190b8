"""Which array of a file is which part of which parameter: one table, read in both directions.

`published` is the layout of the ViT and hybrid releases, `bit` that of the BiT release, `hf` and
`timm` those of two libraries (torch_layouts.py); `native` names parameters as they are named here
and fits any network. Spellings of `published` that other programs write are dialects.py.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig
from vit_jax.models.network import abstract_params
from vit_jax.weights import torch_layouts
from vit_jax.weights.piece import Axes, Piece

LAYOUTS = ("published", "bit", "native")  # of npz files


_ALL = slice(None)
_BLOCK = "Transformer/encoderblock_{i}"

# Our path -> its pieces. A leaf of stacked blocks has a piece for each layer i; _QKV and the like
# lie side by side in one parameter here, and apart in files.
_QKV = ("query", "key", "value")
_NAMES = {
    "embedding/class_token": "cls",
    "embedding/patches/": "embedding/",
    "embedding/positions/table": "Transformer/posembed_input/pos_embedding",
    "embedding/stem/root_conv/": "conv_root/",
    "encoder/blocks/attention_norm/": f"{_BLOCK}/LayerNorm_0/",
    "encoder/blocks/attention/out/": f"{_BLOCK}/MultiHeadDotProductAttention_1/out/",
    "encoder/blocks/mlp_norm/": f"{_BLOCK}/LayerNorm_2/",
    "encoder/blocks/mlp/up/": f"{_BLOCK}/MlpBlock_3/Dense_0/",
    "encoder/blocks/mlp/down/": f"{_BLOCK}/MlpBlock_3/Dense_1/",
    "encoder/norm/": "Transformer/encoder_norm/",
    "pooling/probe": "MAPHead_0/probe",
    "pooling/out/": "MAPHead_0/MultiHeadDotProductAttention_0/out/",
    "pooling/norm/": "MAPHead_0/LayerNorm_0/",
    "pooling/mlp/up/": "MAPHead_0/MlpBlock_0/Dense_0/",
    "pooling/mlp/down/": "MAPHead_0/MlpBlock_0/Dense_1/",
    "pre_logits/": "pre_logits/",
    "head/": "head/",
}
_UNIT_NAMES = {
    "conv1": "conv1", "mixer/conv": "conv2", "conv3": "conv3", "projection": "conv_proj",
    "norm1": "gn1", "mixer/norm": "gn2", "norm3": "gn3", "projection_norm": "gn_proj",
}  # fmt: skip
_BIT_UNIT_NAMES = {
    "conv1": "a/standardized_conv2d", "conv2": "b/standardized_conv2d",
    "conv3": "c/standardized_conv2d", "projection": "a/proj/standardized_conv2d",
    "norm1": "a/group_norm", "norm2": "b/group_norm", "norm3": "c/group_norm",
}  # fmt: skip
_GROUP_NORM: Axes = ((), (), (), (0,))  # (1, 1, 1, C) in the releases
_GAMMA_BETA = {"kernel": "kernel", "scale": "gamma", "bias": "beta"}


def layout_of(network: NetworkConfig) -> str:
    """The layout that others read too, where it can express the network, else `native`."""
    layout = "bit" if network.family == "resnet" else "published"
    try:
        for path, leaf in flat(abstract_params(network)).items():
            pieces(layout, path, leaf.shape)
    except KeyError:
        return "native"
    return layout


def pieces(layout: str, path: str, shape: tuple[int, ...]) -> list[Piece]:
    """Where the parameter at `path` lies in a file; KeyError if the layout has no place for it."""
    tables = {
        "published": _published, "bit": _bit, "native": _native,
        "hf": torch_layouts.hugging_face, "timm": torch_layouts.timm,
    }  # fmt: skip
    return list(tables[layout](path, shape))


def to_arrays(params: dict[str, Any], layout: str) -> dict[str, np.ndarray]:
    """Parameters as the arrays of a file."""
    arrays = {}
    for path, leaf in flat(params).items():
        leaf = np.asarray(leaf)
        for piece in pieces(layout, path, leaf.shape):
            arrays[piece.key] = piece.to_file(leaf[piece.index])
    return arrays


def from_arrays(
    arrays: dict[str, np.ndarray], network: NetworkConfig, layout: str, where: str
) -> tuple[dict[str, Any], list[str]]:
    """The parameters of `network`, and the keys that it had no use for.

    What is missing or has the wrong shape is told all at once; `where` says of what.
    """
    params, problems, used = {}, [], set()
    for path, leaf in flat(abstract_params(network)).items():
        value = np.empty(leaf.shape, np.float32)
        for piece in pieces(layout, path, leaf.shape):
            key, part = piece.key, value[piece.index].shape
            used.add(key)
            expected = piece.shape(part)
            found = arrays.get(key)
            if found is None:
                problems.append(f"{key} {expected} is missing")
            elif found.dtype.kind not in "fiu":
                problems.append(f"{key} holds {found.dtype}, expected real numbers")
            elif _without_ones(found.shape) != _without_ones(expected):
                problems.append(f"{key} has shape {found.shape}, expected {expected}")
            else:
                value[piece.index] = piece.from_file(found, part)
        params[path] = value
    if problems:
        raise UsageError(f"{where} does not hold {network.name}: {'; '.join(problems)}")
    return nested(params), sorted(arrays.keys() - used)


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """A nested dict by its paths, joined by slashes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}


def nested(leaves: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = leaf
    return tree


def _published(path: str, shape: tuple[int, ...]) -> Iterator[Piece]:
    if match := re.fullmatch(r"encoder/blocks/attention/qkv/(kernel|bias)", path):
        before = (_ALL,) if match[1] == "kernel" else ()
        for i in range(shape[0]):
            for part, name in enumerate(_QKV):
                block = f"{_BLOCK.format(i=i)}/MultiHeadDotProductAttention_1"
                yield Piece((i, *before, part), f"{block}/{name}/{match[1]}")
    elif match := re.fullmatch(r"pooling/(query|key_value)/(kernel|bias)", path):
        before = (_ALL,) if match[2] == "kernel" else ()
        for part, name in enumerate(match[1].split("_")):
            key = f"MAPHead_0/MultiHeadDotProductAttention_0/{name}/{match[2]}"
            yield Piece((*before, part), key)
    elif path.startswith("embedding/stem/root_norm/"):
        yield Piece((), f"gn_root/{path.split('/')[-1]}", _GROUP_NORM)
    elif path.startswith("embedding/stem/stages/"):
        for index, stage, unit, name, leaf in _units(path.removeprefix("embedding/stem/"), shape):
            axes = None if leaf == "kernel" else _GROUP_NORM
            yield Piece(index, f"block{stage}/unit{unit}/{_UNIT_NAMES[name]}/{leaf}", axes)
    else:
        yield from _by_name(path, shape)


def _by_name(path: str, shape: tuple[int, ...]) -> Iterator[Piece]:
    name = path if path in _NAMES else path[: path.rindex("/") + 1]
    key = _NAMES[name] + path.removeprefix(name)
    if "{i}" not in key:
        yield Piece((), key)
        return
    for i in range(shape[0]):
        yield Piece((i,), key.format(i=i))


def _bit(path: str, shape: tuple[int, ...]) -> Iterator[Piece]:
    leaf = path.split("/")[-1]
    if path == "trunk/root_conv/kernel":
        yield Piece((), "resnet/root_block/standardized_conv2d/kernel")
    elif path.startswith("trunk/norm/"):
        yield Piece((), f"resnet/group_norm/{_GAMMA_BETA[leaf]}")
    elif path.startswith("head/"):
        axes = ((), (), (0,), (1,)) if leaf == "kernel" else None
        yield Piece((), f"resnet/head/conv2d/{leaf}", axes)
    else:
        for index, stage, unit, name, leaf in _units(path.removeprefix("trunk/"), shape):
            unit_name = f"resnet/block{stage}/unit{unit:02d}/{_BIT_UNIT_NAMES[name]}"
            yield Piece(index, f"{unit_name}/{_GAMMA_BETA[leaf]}")


def _units(
    path: str, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], int, int, str, str]]:
    """(index, stage, unit, name in the unit, leaf), units counted from 1 as the releases do."""
    match = re.fullmatch(r"stages/stage(\d+)/(first|rest)/(.+)/(\w+)", path)
    if not match:
        raise KeyError(path)
    stage, which, name, leaf = match.groups()
    if which == "first":
        yield (), int(stage), 1, name, leaf
        return
    for i in range(shape[0]):
        yield (i,), int(stage), i + 2, name, leaf


def _native(path: str, shape: tuple[int, ...]) -> Iterator[Piece]:
    yield Piece((), path)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without leading ones, which files have and leave out as they like."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape
