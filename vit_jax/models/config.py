"""What fixes a network, completely: a ViTConfig or a ResNetConfig. Sizes are (height, width)."""

import dataclasses
import operator
from typing import Any, ClassVar

from vit_jax.errors import UsageError

POOLINGS = ("token", "gap", "map")
POSITIONS = ("none", "1d", "2d", "relative", "sincos2d")
POSITION_PLACES = ("stem", "every_layer", "shared")
DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "qkv", "dots", "full")
ATTENTIONS = ("auto", "plain", "fused", "flat")
ACTIVATIONS = ("gelu_tanh", "gelu")
RESNET_KINDS = ("bit", "axial")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """What all networks have."""

    family: ClassVar[str]

    name: str
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000  # 0: no head, the model returns its representation
    head_bias: float = 0.0  # -10 for sigmoid losses over thousands of classes
    dtype: str = "float32"  # of the computation; parameters are float32 always
    # What the backward pass recomputes: nothing, the input of attention, all but matmuls, all. (By
    # TPU kernels, "dots" is "none": norms, softmax and GELU are always computed again there.
    # Without them "qkv" is "dots": logits are what takes the memory.)
    remat: str = "none"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_type(field.name, getattr(self, field.name), field.type)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("remat", self.remat, REMAT_POLICIES)
        _at_least(1, "channels", self.channels)
        _at_least(0, "num_classes", self.num_classes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(NetworkConfig):
    """A Vision Transformer: plain, behind a ResNet (hybrid), or with axial attention."""

    family: ClassVar[str] = "vit"

    width: int
    depth: int
    mlp_dim: int
    heads: int
    patch_size: tuple[int, int]  # of the image; behind a stem, of its feature map
    stem_stages: tuple[int, ...] | None = None  # hybrid: units in each ResNet stage; (): root only
    stem_width: int = 64
    axial: bool = False  # blocks attend along rows, then along columns (appendix D.6)
    pooling: str = "token"  # the paper's class token; "gap" (Fig. 9) and "map" have none
    representation_size: int = 0  # > 0: the tanh layer before the head (pre-training, section 3.1)
    positions: str = "1d"  # Table 8, and fixed sines and cosines
    positions_at: str = "stem"  # or "every_layer" with its own table, or "shared" by every layer
    position_std: float = 0.02  # of fresh positions; larger ones are learned from sooner
    patch_outputs: int = 0  # > 0: predicted for each masked patch (appendix B.1.2), with a head
    registers: int = 0  # tokens that belong to no patch (Darcet et al., 2023)
    layer_scale: float = 0.0  # > 0: branches start scaled by this (Touvron et al., 2021)
    qk_norm: bool = False  # normalise queries and keys (ViT-22B)
    activation: str = "gelu_tanh"  # as in the published weights; "gelu": exact, as others have it
    norm_epsilon: float = 1e-6  # likewise; of LayerNorms
    attention: str = "auto"  # blocks "fused" by TPU kernels, "flat" for CPUs, "plain"; "auto": best
    scan: bool = True  # over blocks: compiled as one, whatever the depth; else slower to compile
    dropout: float = 0.0
    stochastic_depth: float = 0.0  # of the last block; rises linearly from 0 at the first

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("pooling", self.pooling, POOLINGS)
        _one_of("positions", self.positions, POSITIONS)
        _one_of("positions_at", self.positions_at, POSITION_PLACES)
        _one_of("attention", self.attention, ATTENTIONS)
        _one_of("activation", self.activation, ACTIVATIONS)
        for count in ("width", "depth", "mlp_dim", "heads"):
            _at_least(1, count, getattr(self, count))
        for count in ("registers", "representation_size", "patch_outputs"):
            _at_least(0, count, getattr(self, count))
        if self.stem_stages is not None:
            _check_stages("stem_stages", self.stem_stages)
            _check_groups("stem_width", self.stem_width)
        for rate in ("dropout", "stochastic_depth"):
            if not 0 <= getattr(self, rate) < 1:
                raise UsageError(f"{rate}={getattr(self, rate)}: expected 0 <= {rate} < 1")
        _at_least(0, "layer_scale", self.layer_scale)
        _at_least(0, "norm_epsilon", self.norm_epsilon)
        if self.width % self.heads:
            raise UsageError(
                f"width {self.width} does not divide into {self.heads} heads: "
                f"choose heads that divide it, or a width that is a multiple of {self.heads}"
            )
        if self.axial and (self.pooling == "token" or self.registers):
            raise UsageError(
                f"{self.name}: tokens of axial attention are a grid, which has no place for a "
                f"class token or registers: use pooling=gap or map, and registers=0"
            )
        if self.positions in ("none", "relative") and self.positions_at != "stem":
            raise UsageError(
                f"positions_at={self.positions_at} means nothing for positions={self.positions}: "
                f"leave it out"
            )
        if (self.positions == "2d" and self.width % 2) or (
            self.positions == "sincos2d" and (self.width % 4)
        ):
            raise UsageError(
                f"positions={self.positions} splits the width among the axes: {self.width} is no "
                f"multiple of {2 if self.positions == '2d' else 4}"
            )
        self._check_sizes()

    def _check_sizes(self) -> None:
        for size, patch in zip(self.image_size, self.patch_size, strict=True):
            stride = 1 if self.stem_stages is None else stem_stride(self.stem_stages)
            features = size if self.stem_stages is None else _halved(size, self.stem_stages)
            if features < patch or features % patch:
                patch *= stride
                below, above = size // patch * patch or patch, (size // patch + 1) * patch
                raise UsageError(
                    f"image size {size} is no multiple of the patch size {patch}: "
                    f"use {below} or {above}"
                )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.image_size
        if self.stem_stages is not None:
            height, width = (_halved(size, self.stem_stages) for size in (height, width))
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def patch_tokens(self) -> int:
        """Tokens that stand for patches, and the class token: those that have positions."""
        return self.grid[0] * self.grid[1] + (self.pooling == "token")

    @property
    def tokens(self) -> int:
        """Length of the sequence that the encoder sees."""
        return self.patch_tokens + self.registers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig(NetworkConfig):
    """A ResNet that the paper compares with: BiT (v2, GroupNorm), or with axial attention."""

    family: ClassVar[str] = "resnet"

    kind: str = "bit"
    stages: tuple[int, ...]  # units in each
    width: int = 64  # channels of the root and of the first stage's bottleneck
    heads: int = 8  # (axial)

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("kind", self.kind, RESNET_KINDS)
        if not self.stages:
            raise UsageError("stages=(): expected units for each stage, as in (3, 4, 6, 3)")
        _check_stages("stages", self.stages)
        _check_groups("width", self.width)
        _at_least(1, "heads", self.heads)
        if self.kind == "axial" and self.width % (2 * self.heads):
            raise UsageError(
                f"width {self.width} does not divide into {self.heads} heads of an even number of "
                f"channels: choose heads that divide {self.width // 2}"
            )

    @property
    def features(self) -> int:
        """Channels that the head reads."""
        return 4 * self.width * 2 ** (len(self.stages) - 1)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the last feature map."""
        height, width = (_halved(size, self.stages) for size in self.image_size)
        return height, width


# Fields that change how a network is trained or computed, but none of its parameters' shapes.
NOT_IN_WEIGHTS = {
    "name", "dropout", "stochastic_depth", "position_std", "head_bias", "dtype", "remat",
    "attention", "scan",
}  # fmt: skip

_FAMILIES: dict[str, type[NetworkConfig]] = {c.family: c for c in (ViTConfig, ResNetConfig)}


def config_to_dict(config: NetworkConfig) -> dict[str, Any]:
    """A network as plain values, for JSON."""
    return {"family": config.family, **dataclasses.asdict(config)}


def config_from_dict(values: dict[str, Any]) -> NetworkConfig:
    """The inverse, whatever JSON made of its tuples."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return _FAMILIES[values.pop("family", "vit")](**values)


def differences(old: NetworkConfig, new: NetworkConfig) -> dict[str, str]:
    """Field -> "field old -> new" for all fields in which two configs of one family differ."""
    pairs = {
        field.name: (getattr(old, field.name), getattr(new, field.name))
        for field in dataclasses.fields(old)
    }
    return {name: f"{name} {a} -> {b}" for name, (a, b) in pairs.items() if a != b}


def as_size(value: int | tuple[int, int] | list[int], what: str = "size") -> tuple[int, int]:
    """(height, width) from a pair, or from one number for a square."""
    try:
        pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
        height, width = (operator.index(side) for side in pair)
    except (TypeError, ValueError):
        height = width = 0
    if isinstance(value, bool) or min(height, width) < 1:
        raise UsageError(
            f"{what}={value!r}: expected a positive number of pixels or a pair (height, width)"
        )
    return height, width


def stem_stride(stages: tuple[int, ...]) -> int:
    """Pixels per place of a ResNet's feature map."""
    # The root halves twice, every stage but the first once.
    return 4 * 2 ** max(len(stages) - 1, 0)


def fitting_size(network: NetworkConfig, most: int) -> int:
    """The largest side up to `most` that the patches divide: of 384, 378 for patches of 14."""
    if not isinstance(network, ViTConfig):
        return most
    stride = 1 if network.stem_stages is None else stem_stride(network.stem_stages)
    patch = max(network.patch_size) * stride
    return max(1, most // patch) * patch


def _halved(size: int, stages: tuple[int, ...]) -> int:
    """One side of a ResNet's feature map; each halving rounds up."""
    return -(-size // stem_stride(stages))


def _check_type(what: str, value: Any, hint: Any) -> None:
    """Configs are made of plain values; numbers of another kind would fail later, and far away."""
    kinds = {
        int: lambda v: isinstance(v, int) and not isinstance(v, bool),
        float: lambda v: isinstance(v, int | float) and not isinstance(v, bool),
        bool: lambda v: isinstance(v, bool),
        str: lambda v: isinstance(v, str),
    }
    if hint in kinds and not kinds[hint](value):
        raise UsageError(f"{what}={value!r}: expected {hint.__name__}")
    if isinstance(value, tuple) and not all(kinds[int](part) for part in value):
        raise UsageError(f"{what}={value!r}: expected whole numbers")


def _check_stages(what: str, stages: tuple[int, ...]) -> None:
    if any(units < 1 for units in stages):
        raise UsageError(f"{what}={stages}: expected 1 unit or more in each stage, as in (3, 4)")


def _check_groups(what: str, width: int) -> None:
    if width < 1 or width % 32:
        raise UsageError(f"{what}={width}: expected a multiple of 32, the groups of GroupNorm")


def _one_of(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{what}={value!r}: expected one of {', '.join(choices)}")


def _at_least(least: int, what: str, value: float) -> None:
    if value < least:
        raise UsageError(f"{what}={value}: expected {least} or more")
