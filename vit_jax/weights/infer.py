"""Which network a file holds, read off the names and shapes of its arrays."""

import math
import re

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, ResNetConfig, ViTConfig
from vit_jax.models.variants import LISTED, SHAPES, STAGES, Shape, model_config

_BLOCK = "Transformer/encoderblock_{i}"


def infer_network(
    arrays: dict[str, np.ndarray], where: str, image_size: tuple[int, int] | None = None
) -> NetworkConfig:
    """The network whose arrays these are, in the published spelling.

    `image_size` helps where the file does not tell: fixed positions, or a grid that is no square.
    """
    try:
        if any(key.startswith("resnet/") for key in arrays):
            return _resnet(arrays, image_size)
        return _vit(arrays, where, image_size)
    except (KeyError, ValueError) as error:  # not there, or there with too few axes
        some = ", ".join(sorted(arrays)[:5]) or "nothing"
        raise UsageError(
            f"{where} holds no network known here: expected {error.args[0]!r}; found {some} ..."
        ) from error


def _vit(
    arrays: dict[str, np.ndarray], where: str, image_size: tuple[int, int] | None
) -> ViTConfig:
    patch_h, patch_w, channels, width = arrays["embedding/kernel"].shape
    depth = _count(arrays, r"Transformer/encoderblock_(\d+)/.*", first=0)
    block = _BLOCK.format(i=0)
    _, heads, _ = arrays[f"{block}/MultiHeadDotProductAttention_1/query/kernel"].shape
    _, mlp_dim = arrays[f"{block}/MlpBlock_3/Dense_0/kernel"].shape
    stages, stem_width = None, 64
    if "conv_root/kernel" in arrays:
        _, _, channels, stem_width = arrays["conv_root/kernel"].shape
        stages = _stages(arrays, r"block{}/unit(\d+)/.*")
    stride = 1 if stages is None else 4 * 2 ** max(len(stages) - 1, 0)
    pooling = "token" if "cls" in arrays else "map" if "MAPHead_0/probe" in arrays else "gap"
    table = arrays.get("Transformer/posembed_input/pos_embedding")
    patch = (patch_h * stride, patch_w * stride)
    if table is None:
        # Fixed positions fit any grid; without a word of which, the nearest to 224 pixels.
        size = image_size or (round(224 / patch[0]) * patch[0], round(224 / patch[1]) * patch[1])
    else:
        size = _image_size(table.shape[1] - (pooling == "token"), patch, image_size, where)
    shape = Shape(width, depth, mlp_dim, heads)
    return ViTConfig(
        name=_name(shape, (patch_h, patch_w), stages, stem_width),
        **shape._asdict(),
        patch_size=(patch_h, patch_w),
        stem_stages=stages,
        stem_width=stem_width,
        image_size=size,
        channels=channels,
        num_classes=_classes(arrays, "head/kernel"),
        pooling=pooling,
        representation_size=_classes(arrays, "pre_logits/kernel"),
        positions="sincos2d" if table is None else "1d",
    )


def _resnet(arrays: dict[str, np.ndarray], image_size: tuple[int, int] | None) -> ResNetConfig:
    _, _, channels, width = arrays["resnet/root_block/standardized_conv2d/kernel"].shape
    stages = _stages(arrays, r"resnet/block{}/unit(\d+)/.*")
    layers = [layers for layers, units in STAGES.items() if units == stages]
    known = layers and width % 64 == 0
    return ResNetConfig(
        name=f"BiT-R{layers[0]}x{width // 64}" if known else f"BiT-{stages}x{width}",
        stages=stages,
        width=width,
        channels=channels,
        num_classes=_classes(arrays, "resnet/head/conv2d/kernel"),
        image_size=image_size or (224, 224),
    )


def _classes(arrays: dict[str, np.ndarray], key: str) -> int:
    return arrays[key].shape[-1] if key in arrays else 0


def _count(arrays: dict[str, np.ndarray], pattern: str, first: int) -> int:
    """How many there are, counted from `first`; gaps are found later, as missing arrays."""
    numbers = [int(match[1]) for key in arrays if (match := re.fullmatch(pattern, key))]
    if not numbers:
        raise KeyError(pattern.replace(r"(\d+)", str(first)).removesuffix(".*") + "...")
    return max(numbers) + 1 - first


def _stages(arrays: dict[str, np.ndarray], pattern: str) -> tuple[int, ...]:
    stages: list[int] = []
    while True:
        try:
            stages.append(_count(arrays, pattern.format(len(stages) + 1), first=1))
        except KeyError:
            return tuple(stages)


def _image_size(
    patches: int, patch: tuple[int, int], image_size: tuple[int, int] | None, where: str
) -> tuple[int, int]:
    side = math.isqrt(patches)
    if side**2 == patches:
        return side * patch[0], side * patch[1]
    if image_size and -(-image_size[0] // patch[0]) * -(-image_size[1] // patch[1]) == patches:
        return image_size
    raise UsageError(
        f"{where} has positions for {patches} patches, which are no square: say its own "
        f"image_size=(height, width)"
    )


def _name(
    shape: Shape, patch: tuple[int, int], stages: tuple[int, ...] | None, stem_width: int
) -> str:
    hybrids = (model_config(name) for name in LISTED if "+" in name)
    for known in hybrids if stages is not None else ():
        stem = (known.stem_stages, known.stem_width, known.patch_size)
        known_shape = Shape(known.width, known.depth, known.mlp_dim, known.heads)
        if (stem, known_shape) == ((stages, stem_width, patch), shape):
            return known.name
    letters = [letters for letters, known in SHAPES.items() if known == shape]
    letters = letters[0] if letters else f"{shape.width}x{shape.depth}"
    suffix = str(patch[0]) if patch[0] == patch[1] else f"{patch[0]}x{patch[1]}"
    return f"{letters}/{suffix}" if stages is None else f"R{stages}+{letters}"
