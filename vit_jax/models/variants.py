"""Names and what they mean: "B/16", "R50+B/16", "BiT-R50x1", "Axial-B/16", "AxialResNet50".

Shapes are Table 1 of the paper and its published relatives; `Pico` is ours, small enough for
tests and for the demo on two CPU cores. Names of other libraries lead to the same networks.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from vit_jax.errors import UsageError, closest
from vit_jax.models.config import (
    NetworkConfig,
    ResNetConfig,
    ViTConfig,
    as_size,
    stem_stride,
)


class Shape(NamedTuple):
    """The dimensions of an encoder."""

    width: int
    depth: int
    mlp_dim: int
    heads: int


SHAPES: dict[str, Shape] = {
    "Pico": Shape(128, 4, 512, 4),
    "Ti": Shape(192, 12, 768, 3),
    "S": Shape(384, 12, 1536, 6),
    "M": Shape(512, 12, 2048, 8),
    "B": Shape(768, 12, 3072, 12),
    "L": Shape(1024, 24, 4096, 16),
    "So400m": Shape(1152, 27, 4304, 16),
    "H": Shape(1280, 32, 5120, 16),
    "g": Shape(1408, 40, 6144, 16),
    "G": Shape(1664, 48, 8192, 16),
    "e": Shape(1792, 56, 15360, 16),
    "22B": Shape(6144, 48, 24576, 48),
}

# Units in each stage of a ResNet of that many layers.
STAGES: dict[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
AXIAL_STAGES: dict[int, tuple[int, ...]] = {26: (1, 2, 4, 1), 50: (3, 4, 6, 3)}

# The names worth listing; any patch size, and any hybrid or axial ViT of a shape, is as valid.
LISTED = (
    "Pico/8", "Ti/16", "S/32", "S/16", "M/32", "M/16", "B/32", "B/16", "B/8", "L/32", "L/16",
    "So400m/14", "H/16", "H/14", "g/14", "G/14", "e/14", "22B/14",
    "R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/32", "R50+B/16", "R50+L/32", "R50+L/16",
    "BiT-R50x1", "BiT-R50x2", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3",
    "BiT-R152x1", "BiT-R152x2", "BiT-R152x4", "BiT-R200x3",
    "Axial-B/32", "Axial-B/16", "AxialResNet26", "AxialResNet50",
)  # fmt: skip

# How other libraries call the shapes.
_WORDS = {
    "tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H",
    "giant": "g", "gigantic": "G", "enormous": "e", "so400m": "So400m",
}  # fmt: skip


class _Name(NamedTuple):
    canonical: str
    values: dict[str, Any]  # fields of the config that the name fixes


def model_config(name: str, **overrides: Any) -> NetworkConfig:
    """The config that `name` stands for, with some fields replaced.

    Sizes may be given as one number for a square: `model_config("B/16", image_size=384)`.
    """
    canonical, values = _parse(name)
    schema = schema_of(name)
    check_options(schema, canonical, overrides)
    values = {**values, **overrides}
    for key in ("patch_size", "image_size"):
        if key in values:
            values[key] = as_size(values[key], key)
    for key in ("stages", "stem_stages"):
        if values.get(key) is not None:
            values[key] = tuple(values[key])
    config = schema(name=canonical, **values)
    return dataclasses.replace(config, name=network_name(config)) if overrides else config


def check_options(schema: type[NetworkConfig], name: str, options: Iterable[str]) -> None:
    """Raises for options that networks of this family do not have."""
    known = {field.name for field in dataclasses.fields(schema)} - {"name"}
    for key in options:
        if key not in known:
            raise UsageError(
                f"unknown model option {key!r} of {name}.{closest(key, known)} "
                f"Options: {', '.join(sorted(known))}"
            )


def network_name(config: NetworkConfig) -> str:
    """The name of a network by its shape; one that has none is called by its numbers."""
    if isinstance(config, ResNetConfig):
        table = AXIAL_STAGES if config.kind == "axial" else STAGES
        layers = [n for n, stages in table.items() if stages == config.stages]
        if config.kind == "axial":
            known = layers and config.width == 64
            return f"AxialResNet{layers[0] if known else f'{config.stages}x{config.width}'}"
        known = layers and config.width % 64 == 0
        return f"BiT-R{layers[0] if known else config.stages}x{config.width / 64:g}"
    assert isinstance(config, ViTConfig)  # there are two families
    shape = Shape(config.width, config.depth, config.mlp_dim, config.heads)
    named = [name for name, known in SHAPES.items() if known == shape]
    letters = named[0] if named else f"{config.width}x{config.depth}"
    patch_h, patch_w = config.patch_size
    patch = f"{patch_h}" if patch_h == patch_w else f"{patch_h}x{patch_w}"
    if config.stem_stages is not None:
        return f"{_stem_name(config)}+{letters}/{_total_stride(config.stem_stages, patch)}"
    return f"{'Axial-' if config.axial else ''}{letters}/{patch}"


def _stem_name(config: ViTConfig) -> str:
    factor = "" if config.stem_width == 64 else f"x{config.stem_width / 64:g}"
    for layers, stages in STAGES.items():
        if config.stem_stages in (stages, _extended(stages)):
            return f"R{layers}{factor}"
    return f"R{config.stem_stages or ''}{factor}"


def _total_stride(stem_stages: tuple[int, ...], patch: str) -> str:
    if stem_stages == () and patch == "8":
        return "16"  # as published, though it is 32
    stride = stem_stride(stem_stages)
    return str(stride) if patch == "1" else f"{stride}*{patch}"


def _extended(stages: tuple[int, ...]) -> tuple[int, ...]:
    """The last stage's units belong to the one before (section 4.1)."""
    return (*stages[:-2], stages[-2] + stages[-1])


def schema_of(name: str) -> type[NetworkConfig]:
    """The kind of config that `name` stands for."""
    return ResNetConfig if "stages" in _parse(name).values else ViTConfig


def canonical_name(name: str) -> str:
    """The one name here of the network that other places call `name`."""
    return _parse(name).canonical


def list_models() -> list[str]:
    """The names worth knowing; any SHAPE/PATCH works."""
    return list(LISTED)


def listed_image_size(name: str) -> int:
    """Pixels at which the zoo shows a network: 224, or the nearest that its patches divide."""
    patch = _parse(name).values.get("patch_size", 1)
    return 224 if 224 % patch == 0 else round(224 / patch) * patch


def _parse(name: str) -> _Name:
    for pattern, meaning in _PATTERNS:
        match = pattern.fullmatch(name.strip())
        if match and (found := meaning(**match.groupdict())):
            return found
    raise UsageError(
        f"unknown model {name!r}.{closest(name, LISTED)} Expected SHAPE/PATCH, as in B/16, with "
        f"SHAPE one of {', '.join(SHAPES)}, a hybrid (R50+B/16), BiT-R50x1, Axial-B/16 or "
        f"AxialResNet50; `vit-jax models` lists them"
    )


def _shape(word: str) -> str | None:
    """The shape that a word means, in any case but for g and G, which differ in nothing else."""
    if word in SHAPES:
        return word
    by_lower = {shape.lower(): shape for shape in SHAPES if shape not in ("g", "G")}
    return _WORDS.get(word.lower()) or by_lower.get(word.lower())


def _vit(
    shape: str,
    patch: str,
    size: str | None = None,
    axial: str | None = None,
    siglip: str | None = None,
) -> _Name | None:
    if not (found := _shape(shape)) or int(patch) == 0:
        return None
    values = {**SHAPES[found]._asdict(), "patch_size": int(patch), **_resolution(size)}
    name = f"{found}/{int(patch)}"
    if axial:
        return _Name(f"Axial-{name}", {**values, "axial": True, "pooling": "gap"})
    return _Name(name, values | {"pooling": "map"} if siglip else values)


def _hybrid(
    shape: str, layers: str | None, stride: str, factor: str | None = None, size: str | None = None
) -> _Name | None:
    found, width = _shape(shape), 64 * int(factor or 1)
    if not found or not width:
        return None
    values = {**SHAPES[found]._asdict(), **_resolution(size), "stem_width": width}
    layers = str(int(layers)) if layers else ""
    name = f"R{layers}{f'x{width // 64}' if width != 64 else ''}+{found}/{stride}"
    if not layers:
        # The root alone, under patches of 8. It halves twice, so that the published R+Ti/16 really
        # has a stride of 32; its name is kept.
        return (
            _Name(name, values | {"stem_stages": (), "patch_size": 8}) if stride == "16" else None
        )
    if (stages := STAGES.get(int(layers))) is None:
        return None
    stages = _extended(stages) if stride == "16" else stages
    return _Name(name, values | {"stem_stages": stages, "patch_size": 1})


def _bit(layers: str, factor: str | None) -> _Name | None:
    stages, times = STAGES.get(int(layers)), int(factor or 1)
    if stages is None or not times:
        return None
    values = {"kind": "bit", "stages": stages, "width": 64 * times}
    return _Name(f"BiT-R{int(layers)}x{times}", values)


def _axial_resnet(layers: str) -> _Name | None:
    stages = AXIAL_STAGES.get(int(layers))
    if stages is None:
        return None
    return _Name(f"AxialResNet{int(layers)}", {"kind": "axial", "stages": stages})


def _resolution(size: str | None) -> dict[str, int]:
    return {"image_size": int(size)} if size else {}


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


_SHAPE_WORD = f"(?P<shape>{'|'.join(sorted(SHAPES, key=len, reverse=True))})"
_PATTERNS = (
    # B/16, ViT-B/16, ViT-B_16, vit_b16; AxialViT-B/16, Axial-B/16
    (_pattern(rf"(?:ViT[-_]?)?{_SHAPE_WORD}[/_-]?(?P<patch>\d+)"), _vit),
    (_pattern(rf"(?P<axial>Axial)[-_]?(?:ViT[-_])?{_SHAPE_WORD}[/_-]?(?P<patch>\d+)"), _vit),
    # R50+B/16, R50x1+ViT-B_16, R50_B_16, R+Ti/16
    (
        _pattern(
            rf"R(?P<layers>\d*)(?:x(?P<factor>\d+))?[+_](?:ViT[-_])?{_SHAPE_WORD}[/_](?P<stride>16|32)"
        ),
        _hybrid,
    ),
    (_pattern(r"(?:BiT-)?(?:[SML]-)?R(?:esNet-?)?(?P<layers>\d+)(?:x(?P<factor>\d+))?"), _bit),
    (_pattern(r"Axial-?(?:ResNet|R)-?(?P<layers>\d+)"), _axial_resnet),
    # timm: vit_base_patch16_224.augreg_in21k, vit_base_patch16_siglip_224,
    # vit_large_r50_s32_384, vit_tiny_r_s16_p8_224,
    # resnetv2_50x1_bit.goog_in21k
    (
        _pattern(
            r"vit_(?P<shape>[a-z0-9]+)_patch(?P<patch>\d+)(?P<siglip>_siglip)?_(?P<size>\d+)(?:[._].*)?"
        ),
        _vit,
    ),
    (
        _pattern(
            r"vit_(?P<shape>[a-z]+)_r(?P<layers>\d*)_s(?P<stride>16|32)(?:_p8)?_(?P<size>\d+)(?:[._].*)?"
        ),
        _hybrid,
    ),
    (_pattern(r"resnetv2_(?P<layers>\d+)x(?P<factor>\d+)_bit.*"), _bit),
    # Hugging Face: google/vit-base-patch16-224-in21k, google/vit-hybrid-base-bit-384,
    # google/bit-50
    (
        _pattern(
            r"(?:[\w.-]+/)?vit-(?P<shape>[a-z0-9]+)-patch(?P<patch>\d+)-(?P<size>\d+)(?:-.*)?"
        ),
        _vit,
    ),
    (
        _pattern(r"(?:[\w.-]+/)?vit-hybrid-(?P<shape>base)-bit-(?P<size>\d+)"),
        functools.partial(_hybrid, layers="50", stride="16"),
    ),
    (_pattern(r"(?:[\w.-]+/)?bit-(?P<layers>\d+)(?P<factor>)"), _bit),
)
