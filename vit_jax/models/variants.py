"""Names and what they mean: "B/16" -> a ViTConfig, everything that fixes the shape of a network.

Shapes are Table 1 of the paper and its published relatives; `Pico` is ours, small enough for
tests and for the demo on two CPU cores.
"""

import dataclasses
import re
from typing import Any, NamedTuple

from vit_jax.errors import UsageError, closest


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
}

# The patch sizes worth listing; any other is as valid.
LISTED = (
    "Pico/8", "Ti/16", "S/32", "S/16", "M/32", "M/16", "B/32", "B/16", "B/8", "L/32", "L/16",
    "So400m/14", "H/16", "H/14", "g/14", "G/14",
)  # fmt: skip

POOLINGS = ("token", "gap")
DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "dots", "full")


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """A network, completely. Sizes are (height, width) in pixels."""

    name: str
    width: int
    depth: int
    mlp_dim: int
    heads: int
    patch_size: tuple[int, int]
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000  # 0: no head, the model returns its representation
    pooling: str = "token"  # the paper's class token, or "gap" (Fig. 9), which has none
    representation_size: int = 0  # > 0: the tanh layer before the head (pre-training, section 3.1)
    dropout: float = 0.0
    stochastic_depth: float = 0.0  # of the last block; rises linearly from 0 at the first
    position_std: float = 0.02  # of fresh positions; larger ones are learned from sooner
    head_bias: float = 0.0  # -10 for sigmoid losses over thousands of classes
    dtype: str = "float32"  # of the computation; parameters are float32 always
    remat: str = "none"  # what the backward pass recomputes: nothing, all but matmuls, everything

    def __post_init__(self) -> None:
        _one_of("pooling", self.pooling, POOLINGS)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("remat", self.remat, REMAT_POLICIES)
        for rate in ("dropout", "stochastic_depth"):
            if not 0 <= getattr(self, rate) < 1:
                raise UsageError(f"{rate}={getattr(self, rate)}: expected 0 <= {rate} < 1")
        if self.width % self.heads:
            raise UsageError(
                f"width {self.width} does not divide into {self.heads} heads: "
                f"choose a width that is a multiple of {self.heads}"
            )
        for size, patch in zip(self.image_size, self.patch_size, strict=True):
            if size < patch or size % patch:
                below, above = size // patch * patch or patch, (size // patch + 1) * patch
                raise UsageError(
                    f"image size {size} is no multiple of the patch size {patch}: "
                    f"use {below} or {above}"
                )

    @property
    def grid(self) -> tuple[int, int]:
        """Patches per (column, row) of the image."""
        (height, width), (patch_h, patch_w) = self.image_size, self.patch_size
        return height // patch_h, width // patch_w

    @property
    def tokens(self) -> int:
        """Length of the sequence that the encoder sees."""
        return self.grid[0] * self.grid[1] + (self.pooling == "token")


def model_config(name: str, **overrides: Any) -> ViTConfig:
    """The config that `name` stands for, with some fields replaced.

    Sizes may be given as one number for a square: `model_config("B/16", image_size=384)`.
    """
    shape, patch = parse_name(name)
    values: dict[str, Any] = {**shape._asdict(), "patch_size": patch, **overrides}
    known = {field.name for field in dataclasses.fields(ViTConfig)} - {"name"}
    for key in values.keys() - known:
        raise UsageError(
            f"unknown model option {key!r}.{closest(key, known)} "
            f"Options: {', '.join(sorted(known))}"
        )
    for key in ("patch_size", "image_size"):
        if key in values:
            values[key] = as_size(values[key], key)
    return ViTConfig(name=name, **values)


def differences(old: ViTConfig, new: ViTConfig) -> dict[str, str]:
    """Field -> "field old -> new" for all fields in which two configs differ."""
    pairs = {
        field.name: (getattr(old, field.name), getattr(new, field.name))
        for field in dataclasses.fields(ViTConfig)
    }
    return {name: f"{name} {a} -> {b}" for name, (a, b) in pairs.items() if a != b}


def parse_name(name: str) -> tuple[Shape, int]:
    """ "B/16" -> (shape of B, 16)."""
    match = re.fullmatch(r"(?:ViT-)?(\w+?)/(\d+)", name)
    if not match or match[1] not in SHAPES or int(match[2]) == 0:
        raise UsageError(
            f"unknown model {name!r}.{closest(name, LISTED)} "
            f"Expected SHAPE/PATCH, as in B/16, with SHAPE one of {', '.join(SHAPES)}"
        )
    return SHAPES[match[1]], int(match[2])


def list_models() -> list[str]:
    """The names worth knowing; any SHAPE/PATCH works."""
    return list(LISTED)


def as_size(value: int | tuple[int, int] | list[int], what: str = "size") -> tuple[int, int]:
    """(height, width) from a pair, or from one number for a square."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or not all(isinstance(v, int) and v > 0 for v in pair):
        raise UsageError(
            f"{what}={value!r}: expected a positive number of pixels or a pair (height, width)"
        )
    return pair


def _one_of(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{what}={value!r}: expected one of {', '.join(choices)}")
