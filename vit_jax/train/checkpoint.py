"""Saving and resuming a run: Orbax, asynchronous, parameters apart from the rest."""

import pathlib

import orbax.checkpoint as ocp

from vit_jax.train.step import TrainState
from vit_jax.weights.checkpoint import PARAMS, PROGRESS


class Checkpoints:
    """The checkpoints of one run. A context manager: leaving it waits for saves under way."""

    def __init__(self, folder: pathlib.Path, keep: int) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def save(self, step: int, state: TrainState) -> None:
        """Copies the state off the devices and writes it in the background."""
        progress = {"step": state.step, "opt_state": state.opt_state}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                **{
                    PARAMS: ocp.args.StandardSave(state.params),
                    PROGRESS: ocp.args.StandardSave(progress),
                }
            ),
        )

    def restore_latest(self, abstract: TrainState) -> TrainState | None:
        """The newest state, laid out as `abstract` says, or None where there is none."""
        step = self._manager.latest_step()
        if step is None:
            return None
        progress = {"step": abstract.step, "opt_state": abstract.opt_state}
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                **{
                    PARAMS: ocp.args.StandardRestore(abstract.params),
                    PROGRESS: ocp.args.StandardRestore(progress),
                }
            ),
        )
        return TrainState(params=restored[PARAMS], **restored[PROGRESS])
