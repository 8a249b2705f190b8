"""What reading folders of other libraries has in common: classes, pixels, leftovers."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.models.config import ViTConfig
from vit_jax.models.variants import network_name
from vit_jax.weights.adapt import grouped


def check_unused(unused: Sequence[str], folder: pathlib.Path) -> None:
    """Raises where arrays are left over: what they do in that network, none here does."""
    if unused:
        raise UsageError(
            f"{folder} holds what networks here have no place for: "
            f"{', '.join(grouped(tuple(unused), '.'))}"
        )


def named_classes(names: Sequence[str], placeholder: str) -> tuple[str, ...]:
    """Names of all classes, or none where they are not known."""
    unknown = all(name in ("", placeholder.format(i)) for i, name in enumerate(names))
    return () if unknown else tuple(names)


def exact_name(network: ViTConfig) -> ViTConfig:
    """Called as networks of its shape are called here."""
    return dataclasses.replace(network, name=network_name(network))


def with_normalization(
    params: dict[str, Any],
    network: ViTConfig,
    mean: Sequence[float],
    std: Sequence[float],
    folder: pathlib.Path,
) -> dict[str, Any]:
    """Parameters for images in [-1, 1], where the network wants (pixel - mean) / std.

    Patches are cut without padding, so that their kernel and bias can take it over exactly.
    """
    mean, std = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if (mean == 0.5).all() and (std == 0.5).all():
        return params
    if network.stem_stages is not None or mean.shape != (network.channels,) or (std <= 0).any():
        raise UsageError(
            f"{folder} wants images of mean {mean.tolist()} and deviation {std.tolist()}: expected "
            f"0.5, which all networks here see (only the patches of a plain ViT can take others)"
        )
    patches = params["embedding"]["patches"]
    kernel = patches["kernel"].astype(np.float64) / std[:, None]  # [height, width, channel, out]
    bias = patches["bias"] + np.einsum("hwco,c->o", kernel, 0.5 - mean)
    folded = {"kernel": (kernel / 2).astype(np.float32), "bias": bias.astype(np.float32)}
    return params | {"embedding": params["embedding"] | {"patches": folded}}
