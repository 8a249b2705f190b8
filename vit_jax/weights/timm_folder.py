"""Networks as folders of timm: model.safetensors, and config.json as on its hub."""

import math
import pathlib
import re
from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, ViTConfig, as_size, stem_stride
from vit_jax.models.variants import model_config
from vit_jax.weights.foreign import (
    check_unused,
    exact_name,
    named_classes,
    with_normalization,
)
from vit_jax.weights.infer import count, image_size_of, shape_of
from vit_jax.weights.kind import read_config
from vit_jax.weights.layouts import from_arrays, to_arrays
from vit_jax.weights.refusals import TIMM_STEMS, check_fits
from vit_jax.weights.run_folder import write_json
from vit_jax.weights.safetensors_file import NAME, read_folder, write_safetensors
from vit_jax.weights.stored import Stored

_POOLS = {"token": "token", "gap": "avg", "map": "map"}
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", None: "gelu"}
# Names whose GELU is the approximate one; that of all others is exact.
_TANH = (
    r"vit_(so400m|giantopt)_patch16_siglip.*|vit_base_patch32_siglip.*|"
    r"vit_large_patch16_siglip(_gap)?_512.*"
)
# Names that timm has, whose shapes any other ViT is told by as changes in model_args.
_ARCHITECTURES = (
    "vit_tiny_patch16_224", "vit_small_patch32_224", "vit_small_patch16_224",
    "vit_base_patch32_224", "vit_base_patch16_224", "vit_base_patch8_224",
    "vit_large_patch32_224", "vit_large_patch16_224", "vit_large_patch14_224",
    "vit_huge_patch14_224", "vit_giant_patch14_224", "vit_gigantic_patch14_224",
)  # fmt: skip
_ANY = "vit_base_patch16_224"
_BACKBONE = "patch_embed.backbone."
_STEM = f"{_BACKBONE}stem."


def read_timm(folder: pathlib.Path) -> Stored:
    """The ViT or hybrid in a folder."""
    config = read_config(folder)
    arrays = _with_stem(read_folder(folder))
    network = _network(config, arrays, folder)
    table = arrays["pos_embed"]
    if network.pooling == "token" and table.shape[1] == math.prod(network.grid):
        # no_embed_class: the class token has no position there, and one of zeros here.
        arrays["pos_embed"] = np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)
    params, unused = from_arrays(arrays, network, "timm", str(folder))
    check_unused(unused, folder)
    trained = config.get("pretrained_cfg", {})
    half = [0.5] * network.channels
    mean, std = trained.get("mean", half), trained.get("std", half)
    params = with_normalization(params, network, mean, std, folder)
    names = config.get("label_names") or trained.get("label_names") or []
    names = [str(name) for name in names] if len(names) == network.num_classes else []
    return Stored(network, params, (), named_classes(names, ""))


def write_timm(
    folder: pathlib.Path,
    network: NetworkConfig,
    params: dict[str, Any],
    class_names: tuple[str, ...] = (),
) -> None:
    """A folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` takes."""
    check_fits(network, "timm")
    arrays = to_arrays(params, "timm")
    if network.stem_stages == ():
        arrays = {name.replace(_STEM, _BACKBONE): value for name, value in arrays.items()}
    write_safetensors(folder / NAME, arrays)
    write_json(folder / "config.json", _config(network, class_names))


def _with_stem(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Where a stem has no stages, timm calls it the backbone itself."""
    if f"{_BACKBONE}conv.weight" not in arrays:
        return arrays
    return {name.replace(_BACKBONE, _STEM): value for name, value in arrays.items()}


def _network(
    config: dict[str, Any], arrays: dict[str, np.ndarray], folder: pathlib.Path
) -> ViTConfig:
    options, trained = config.get("model_args", {}), config.get("pretrained_cfg", {})
    try:
        width, channels, *patch_size = shape_of(arrays, "patch_embed.proj.weight", 4)
        depth = count(arrays, r"blocks\.(\d+)\..*", first=0)
        mlp_dim, _ = shape_of(arrays, "blocks.0.mlp.fc1.weight", 2)
        positions = shape_of(arrays, "pos_embed", 3)[1]
        stages, stem_width, stride = None, 64, 1
        if (root := f"{_STEM}conv.weight") in arrays:
            stem_width, channels, _, _ = shape_of(arrays, root, 4)
            stages = _stages(arrays)
            stride = stem_stride(stages)
    except KeyError as error:
        raise UsageError(f"{folder} holds no ViT of timm: expected {error.args[0]}") from error
    pooling = _pooling(config, arrays, folder)
    patch = (patch_size[0] * stride, patch_size[1] * stride)
    said = options.get("img_size") or trained.get("input_size", [0, None])[1:]
    said = as_size(said, "img_size") if said != [None] else None
    rows = positions - (pooling == "token" and not options.get("no_embed_class", False))
    return exact_name(
        ViTConfig(
            name=str(folder),
            width=width,
            depth=depth,
            mlp_dim=mlp_dim,
            heads=_heads(config, width, folder),
            patch_size=(patch_size[0], patch_size[1]),
            stem_stages=stages,
            stem_width=stem_width,
            image_size=image_size_of(rows, patch, said, str(folder)),
            channels=channels,
            num_classes=len(arrays["head.weight"]) if "head.weight" in arrays else 0,
            pooling=pooling,
            activation=_activation(config, folder),
        )
    )


def _stages(arrays: dict[str, np.ndarray]) -> tuple[int, ...]:
    stages: list[int] = []
    while any(key.startswith(f"{_BACKBONE}stages.{len(stages)}.") for key in arrays):
        pattern = rf"{_BACKBONE}stages\.{len(stages)}\.blocks\.(\d+)\..*"
        stages.append(count(arrays, pattern, first=0))
    return tuple(stages)


def _pooling(config: dict[str, Any], arrays: dict[str, np.ndarray], folder: pathlib.Path) -> str:
    found = "token" if "cls_token" in arrays else "map" if "attn_pool.latent" in arrays else "gap"
    said = config.get("model_args", {}).get("global_pool") or config.get("global_pool")
    if "fc_norm.weight" in arrays:
        raise UsageError(f"{folder} normalises after its mean (fc_norm), networks here before it")
    if said and said != _POOLS[found]:
        raise UsageError(
            f"{folder} pools by {said!r} {'with' if found == 'token' else 'without'} a class "
            f"token: expected {_POOLS[found]!r}, which networks here know"
        )
    return found


def _heads(config: dict[str, Any], width: int, folder: pathlib.Path) -> int:
    """Which no array tells: from the arguments, or from the name."""
    architecture = str(config.get("architecture", ""))
    if heads := config.get("model_args", {}).get("num_heads"):
        return heads
    try:
        named = model_config(re.sub("^deit_", "vit_", architecture))
    except UsageError:
        named = None
    if isinstance(named, ViTConfig) and named.width == width:
        return named.heads
    raise UsageError(
        f"{folder}: {architecture} is no ViT known here, and its number of heads is said nowhere: "
        f'add "model_args": {{"num_heads": ...}} to config.json if it is a plain one'
    )


def _activation(config: dict[str, Any], folder: pathlib.Path) -> str:
    said = config.get("model_args", {}).get("act_layer")
    if said not in _ACTIVATIONS:
        raise UsageError(f"{folder}: act_layer={said!r} is not known here, only gelu and gelu_tanh")
    if said is None and re.fullmatch(_TANH, str(config.get("architecture", ""))):
        return "gelu_tanh"
    return _ACTIVATIONS[said]


def _config(network: ViTConfig, class_names: tuple[str, ...]) -> dict[str, Any]:
    pool = _POOLS[network.pooling]
    arguments = {
        "img_size": list(network.image_size),
        "patch_size": _patch(network),
        "in_chans": network.channels,
        "embed_dim": network.width,
        "depth": network.depth,
        "num_heads": network.heads,
        "mlp_ratio": _ratio(network),
        "global_pool": pool,
        "class_token": network.pooling == "token",
        "fc_norm": False,  # it would come after the mean, ours comes before
        "act_layer": network.activation,
    }
    half = [0.5] * network.channels
    trained = {
        "input_size": [network.channels, *network.image_size],
        "fixed_input_size": True,
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "crop_mode": "squash",
        "mean": half,
        "std": half,
        "num_classes": network.num_classes,
        "pool_size": None,
        "first_conv": _first_convolution(network),
        "classifier": "head",
        "license": "unknown",
    }
    labels = {"label_names": list(class_names)} if class_names else {}
    return {
        "architecture": _architecture(network),
        "num_classes": network.num_classes,
        "num_features": network.width,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": trained,
        **labels,
    }


def _architecture(network: ViTConfig) -> str:
    if network.stem_stages is not None:
        return TIMM_STEMS[network.stem_stages]
    for name in _ARCHITECTURES:
        if model_config(name).name == network.name:
            return name
    return _ANY


def _patch(network: ViTConfig) -> int | list[int]:
    height, width = network.patch_size
    return height if height == width else [height, width]


def _first_convolution(network: ViTConfig) -> str:
    if network.stem_stages is None:
        return "patch_embed.proj"
    return f"{_STEM if network.stem_stages else _BACKBONE}conv"


def _ratio(network: ViTConfig) -> float:
    """timm rounds down width times this: a ratio that comes out at the very number."""
    ratio = network.mlp_dim / network.width
    return ratio if int(network.width * ratio) == network.mlp_dim else math.nextafter(ratio, 9e9)
