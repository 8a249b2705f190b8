"""The layouts of Hugging Face's ViT and of timm: which array is which part of which parameter.

Both keep matrices as [out, in] and kernels of convolutions as [out, in, height, width].
"""

import re
from collections.abc import Iterator

from vit_jax.weights.piece import Axes, Piece

_ALL = slice(None)

# A norm's or a linear layer's arrays, by ours.
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}

_MATRIX: Axes = ((1,), (0,))
_CONVOLUTION: Axes = ((3,), (2,), (0,), (1,))
_TO_HEADS: Axes = ((1, 2), (0,))  # a kernel [in, head, channel]
_FROM_HEADS: Axes = ((2,), (0, 1))  # a kernel [head, channel, out]
_PARTS_TO_HEADS: Axes = ((1, 2, 3), (0,))  # a kernel [in, part, head, channel]

_HF_BLOCK = "vit.encoder.layer.{i}"
_HF_ARRAYS = {
    "embedding/class_token": "vit.embeddings.cls_token",
    "embedding/positions/table": "vit.embeddings.position_embeddings",
}
_HF_MODULES = {
    "embedding/patches": ("vit.embeddings.patch_embeddings.projection", _CONVOLUTION),
    "encoder/blocks/attention_norm": (f"{_HF_BLOCK}.layernorm_before", None),
    "encoder/blocks/attention/out": (f"{_HF_BLOCK}.attention.output.dense", _FROM_HEADS),
    "encoder/blocks/mlp_norm": (f"{_HF_BLOCK}.layernorm_after", None),
    "encoder/blocks/mlp/up": (f"{_HF_BLOCK}.intermediate.dense", _MATRIX),
    "encoder/blocks/mlp/down": (f"{_HF_BLOCK}.output.dense", _MATRIX),
    "encoder/norm": ("vit.layernorm", None),
    "pre_logits": ("vit.pooler.dense", _MATRIX),
    "head": ("classifier", _MATRIX),
}

_TIMM_BLOCK = "blocks.{i}"
_STEM = "patch_embed.backbone"
_TIMM_ARRAYS = {
    "embedding/class_token": "cls_token",
    "embedding/positions/table": "pos_embed",
    "pooling/probe": "attn_pool.latent",
}
_TIMM_MODULES = {
    "embedding/patches": ("patch_embed.proj", _CONVOLUTION),
    "embedding/stem/root_conv": (f"{_STEM}.stem.conv", _CONVOLUTION),
    "embedding/stem/root_norm": (f"{_STEM}.stem.norm", None),
    "encoder/blocks/attention_norm": (f"{_TIMM_BLOCK}.norm1", None),
    "encoder/blocks/attention/qkv": (f"{_TIMM_BLOCK}.attn.qkv", _PARTS_TO_HEADS),
    "encoder/blocks/attention/out": (f"{_TIMM_BLOCK}.attn.proj", _FROM_HEADS),
    "encoder/blocks/mlp_norm": (f"{_TIMM_BLOCK}.norm2", None),
    "encoder/blocks/mlp/up": (f"{_TIMM_BLOCK}.mlp.fc1", _MATRIX),
    "encoder/blocks/mlp/down": (f"{_TIMM_BLOCK}.mlp.fc2", _MATRIX),
    "encoder/norm": ("norm", None),
    "pooling/query": ("attn_pool.q", _PARTS_TO_HEADS),
    "pooling/key_value": ("attn_pool.kv", _PARTS_TO_HEADS),
    "pooling/out": ("attn_pool.proj", _FROM_HEADS),
    "pooling/norm": ("attn_pool.norm", None),
    "pooling/mlp/up": ("attn_pool.mlp.fc1", _MATRIX),
    "pooling/mlp/down": ("attn_pool.mlp.fc2", _MATRIX),
    "head": ("head", _MATRIX),
}
_UNITS = {
    "conv1": "conv1", "mixer/conv": "conv2", "conv3": "conv3", "projection": "downsample.conv",
    "norm1": "norm1", "mixer/norm": "norm2", "norm3": "norm3",
    "projection_norm": "downsample.norm",
}  # fmt: skip


def hugging_face(path: str, shape: tuple[int, ...]) -> Iterator[Piece]:
    """Pieces of the parameter at `path` in transformers' files; KeyError: no place for it."""
    if match := re.fullmatch(r"encoder/blocks/attention/qkv/(kernel|bias)", path):
        is_kernel = match[1] == "kernel"
        before, axes = ((_ALL,), _TO_HEADS) if is_kernel else ((), ((0, 1),))
        for i in range(shape[0]):
            for part, name in enumerate(("query", "key", "value")):
                key = f"{_HF_BLOCK.format(i=i)}.attention.attention.{name}.{_LEAVES[match[1]]}"
                yield Piece((i, *before, part), key, axes)
    elif path in _HF_ARRAYS:
        yield Piece((), _HF_ARRAYS[path])
    else:
        yield from _module(_HF_MODULES, path, shape)


def timm(path: str, shape: tuple[int, ...]) -> Iterator[Piece]:
    """Likewise in timm's files."""
    if match := re.fullmatch(r"embedding/stem/stages/stage(\d+)/(first|rest)/(.+)/(\w+)", path):
        stage, which, name, leaf = match.groups()
        axes = _CONVOLUTION if leaf == "kernel" else None
        for i in range(shape[0] if which == "rest" else 1):
            index, unit = ((i,), i + 1) if which == "rest" else ((), 0)
            key = f"{_STEM}.stages.{int(stage) - 1}.blocks.{unit}.{_UNITS[name]}.{_LEAVES[leaf]}"
            yield Piece(index, key, axes)
    elif path in _TIMM_ARRAYS:
        yield Piece((), _TIMM_ARRAYS[path])
    else:
        yield from _module(_TIMM_MODULES, path, shape)


def _module(
    modules: dict[str, tuple[str, Axes | None]], path: str, shape: tuple[int, ...]
) -> Iterator[Piece]:
    module, _, leaf = path.rpartition("/")
    name, axes = modules[module]
    is_stacked = "{i}" in name
    if leaf == "bias":
        axes = (tuple(range(len(shape) - is_stacked)),)  # of heads, one after the other
    for i in range(shape[0] if is_stacked else 1):
        yield Piece((i,) if is_stacked else (), f"{name.format(i=i)}.{_LEAVES[leaf]}", axes)
