"""The parameters of a checkpoint, without the optimizer, onto any devices of any machine."""

import pathlib
from typing import Any

import orbax.checkpoint as ocp

# The names under which a checkpoint keeps the parts of a train state: what a network is, its
# average where the run keeps one, and what only resuming needs.
PARAMS, AVERAGE, PROGRESS = "params", "average", "progress"


def restore_params(checkpoints: pathlib.Path, target: Any, step: int) -> dict[str, Any]:
    """The parameters of a step in a run's checkpoints folder, or their average if it keeps one,
    laid out as the abstract `target` says."""
    with ocp.StandardCheckpointer() as checkpointer:
        folder = checkpoints.resolve() / str(step)
        item = AVERAGE if (folder / AVERAGE).is_dir() else PARAMS
        return checkpointer.restore(folder / item, target)


def latest_step(checkpoints: pathlib.Path) -> int | None:
    """The newest finished step, or None."""
    if not checkpoints.is_dir():
        return None
    return max(
        (int(p.name) for p in checkpoints.iterdir() if p.name.isdigit() and (p / PARAMS).is_dir()),
        default=None,
    )
