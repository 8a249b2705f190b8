"""Fits pre-trained parameters to another network: new resolution, new classes."""

import dataclasses
from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.models.variants import ViTConfig, differences
from vit_jax.weights.positions import resize_positions

# What two networks may differ in and still share an encoder.
_ADAPTABLE = {
    "name", "image_size", "num_classes", "representation_size",
    "dropout", "stochastic_depth", "position_std", "head_bias", "dtype", "remat",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Adapted:
    """Parameters for the new network, and a line for each thing that was not simply copied."""

    params: dict[str, Any]
    changes: tuple[str, ...]


def adapt(
    params: dict[str, Any],
    old: ViTConfig,
    new: ViTConfig,
    fresh: dict[str, Any],
    *,
    keep_head: bool = True,
) -> Adapted:
    """`params` of network `old` made to fit `new`; what cannot be kept comes from `fresh`.

    Positions are interpolated. The head is kept if wanted and if it has the same classes and reads
    the same representation, else it starts from `fresh`: zero, as section 3.2 fine-tunes.
    """
    wrong = [text for field, text in differences(old, new).items() if field not in _ADAPTABLE]
    if wrong:
        raise UsageError(
            f"weights of {old.name} do not fit {new.name}: {', '.join(wrong)}; "
            f"start from weights of the same shape"
        )
    changes = []
    embedding = dict(params["embedding"])
    if old.grid != new.grid:
        embedding["positions"] = resize_positions(
            np.asarray(embedding["positions"]), old.grid, new.grid
        )
        changes.append(f"positions resized from {_by(old.grid)} to {_by(new.grid)}")
    adapted = {"embedding": embedding, "encoder": params["encoder"]}
    same_features = old.representation_size == new.representation_size
    if new.representation_size:
        adapted["pre_logits"] = (params if same_features else fresh)["pre_logits"]
    if old.representation_size and not same_features:
        changes.append("pre_logits dropped")
    if new.num_classes:
        same_head = keep_head and same_features and old.num_classes == new.num_classes
        adapted["head"] = (params if same_head else fresh)["head"]
        if not same_head:
            changes.append(f"new head for {new.num_classes} classes (had {old.num_classes})")
    return Adapted(adapted, tuple(changes))


def _by(grid: tuple[int, int]) -> str:
    return f"{grid[0]}x{grid[1]}"
