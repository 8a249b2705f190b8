"""The parameters of a checkpoint, without the optimizer, onto any devices of any machine."""

import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig
from vit_jax.models.network import abstract_params

# The names under which a checkpoint keeps the parts of a train state: what a network is, its
# average where the run keeps one, and what only resuming needs.
PARAMS, AVERAGE, PROGRESS = "params", "average", "progress"


def restore_params(
    checkpoints: pathlib.Path, network: NetworkConfig, target: Any = None, step: int | None = None
) -> dict[str, Any]:
    """The newest parameters in a run's checkpoints folder; their average, if it keeps one.

    Laid out as the abstract `target` says, else whole on one device.
    """
    step = latest_step(checkpoints) if step is None else step
    if step is None:
        raise UsageError(
            f"{checkpoints.parent} has no checkpoint yet: wait for its first, or train"
        )
    if target is None:
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        target = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
            abstract_params(network),
        )
    with ocp.StandardCheckpointer() as checkpointer:
        newest = checkpoints.resolve() / str(step)
        item = AVERAGE if (newest / AVERAGE).is_dir() else PARAMS
        return checkpointer.restore(newest / item, target)


def latest_step(checkpoints: pathlib.Path) -> int | None:
    """The newest finished step, or None."""
    if not checkpoints.is_dir():
        return None
    return max(
        (int(p.name) for p in checkpoints.iterdir() if p.name.isdigit() and (p / PARAMS).is_dir()),
        default=None,
    )
