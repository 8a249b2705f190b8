"""Which network a file holds, read off the names and shapes of its arrays."""

import dataclasses
import math
import re

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, ResNetConfig, ViTConfig, stem_stride
from vit_jax.models.variants import network_name

_BLOCK = "Transformer/encoderblock_{i}"


def infer_network(
    arrays: dict[str, np.ndarray], where: str, image_size: tuple[int, int] | None = None
) -> NetworkConfig:
    """The network whose arrays these are, in the published spelling.

    `image_size` helps where the file does not tell: fixed positions, or a grid that is no square.
    """
    try:
        is_resnet = any(key.startswith("resnet/") for key in arrays)
        found = _resnet(arrays, image_size) if is_resnet else _vit(arrays, where, image_size)
    except KeyError as error:
        some = ", ".join(sorted(arrays)[:5]) or "nothing"
        raise UsageError(
            f"{where} holds no network known here: expected {error.args[0]}; found {some} ..."
        ) from error
    return dataclasses.replace(found, name=network_name(found))


def _vit(
    arrays: dict[str, np.ndarray], where: str, image_size: tuple[int, int] | None
) -> ViTConfig:
    patch_h, patch_w, channels, width = shape_of(arrays, "embedding/kernel", 4)
    depth = count(arrays, r"Transformer/encoderblock_(\d+)/.*", first=0)
    block = _BLOCK.format(i=0)
    _, heads, _ = shape_of(arrays, f"{block}/MultiHeadDotProductAttention_1/query/kernel", 3)
    _, mlp_dim = shape_of(arrays, f"{block}/MlpBlock_3/Dense_0/kernel", 2)
    stages, stem_width, stride = None, 64, 1
    if "conv_root/kernel" in arrays:
        _, _, channels, stem_width = shape_of(arrays, "conv_root/kernel", 4)
        stages = _stages(arrays, r"block{}/unit(\d+)/.*")
        stride = stem_stride(stages)
    pooling = "token" if "cls" in arrays else "map" if "MAPHead_0/probe" in arrays else "gap"
    patch = (patch_h * stride, patch_w * stride)
    table = "Transformer/posembed_input/pos_embedding"
    if table in arrays:
        patches = shape_of(arrays, table, 3)[1] - (pooling == "token")
        size = image_size_of(patches, patch, image_size, where)
    else:
        # Fixed positions fit any grid; without a word of which, the nearest to 224 pixels.
        size = image_size or (round(224 / patch[0]) * patch[0], round(224 / patch[1]) * patch[1])
    return ViTConfig(
        name=where,
        width=width,
        depth=depth,
        mlp_dim=mlp_dim,
        heads=heads,
        patch_size=(patch_h, patch_w),
        stem_stages=stages,
        stem_width=stem_width,
        image_size=size,
        channels=channels,
        num_classes=_outputs(arrays, "head/kernel", 2),
        pooling=pooling,
        representation_size=_outputs(arrays, "pre_logits/kernel", 2),
        positions="1d" if table in arrays else "sincos2d",
    )


def _resnet(arrays: dict[str, np.ndarray], image_size: tuple[int, int] | None) -> ResNetConfig:
    root = "resnet/root_block/standardized_conv2d/kernel"
    _, _, channels, width = shape_of(arrays, root, 4)
    return ResNetConfig(
        name="BiT",
        stages=_stages(arrays, r"resnet/block{}/unit(\d+)/.*"),
        width=width,
        channels=channels,
        num_classes=_outputs(arrays, "resnet/head/conv2d/kernel", 4),
        image_size=image_size or (224, 224),
    )


def shape_of(arrays: dict[str, np.ndarray], key: str, rank: int) -> tuple[int, ...]:
    """KeyError, with what was expected, unless there is such an array."""
    if key not in arrays:
        raise KeyError(key)
    if arrays[key].ndim != rank:
        raise KeyError(f"{key} of {rank} axes, not of shape {arrays[key].shape}")
    return arrays[key].shape


def _outputs(arrays: dict[str, np.ndarray], key: str, rank: int) -> int:
    return shape_of(arrays, key, rank)[-1] if key in arrays else 0


def count(arrays: dict[str, np.ndarray], pattern: str, first: int) -> int:
    """How many there are, counted from `first`; gaps are found later, as missing arrays."""
    numbers = [int(match[1]) for key in arrays if (match := re.fullmatch(pattern, key))]
    if not numbers:
        raise KeyError(pattern.replace(r"(\d+)", str(first)).removesuffix(".*") + "...")
    return max(numbers) + 1 - first


def _stages(arrays: dict[str, np.ndarray], pattern: str) -> tuple[int, ...]:
    stages: list[int] = []
    while True:
        try:
            stages.append(count(arrays, pattern.format(len(stages) + 1), first=1))
        except KeyError:
            return tuple(stages)


def image_size_of(
    patches: int, patch: tuple[int, int], image_size: tuple[int, int] | None, where: str
) -> tuple[int, int]:
    """The size of images that make so many patches: as said where that fits, else a square."""
    side = math.isqrt(patches)
    if image_size and -(-image_size[0] // patch[0]) * -(-image_size[1] // patch[1]) == patches:
        return image_size
    if side**2 == patches:
        return side * patch[0], side * patch[1]
    raise UsageError(
        f"{where} has positions for {patches} patches, which are no square: say its own size, "
        f"file_image_size=(height, width), or convert it with --image-size=HEIGHTxWIDTH first"
    )
