"""Saving and resuming a run: Orbax, asynchronous, parameters apart from the rest."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import orbax.checkpoint as ocp

from vit_jax.train.step import TrainState
from vit_jax.weights.best import Best
from vit_jax.weights.checkpoint import AVERAGE, PARAMS, PROGRESS


class Checkpoints:
    """The checkpoints of one run. A context manager: leaving it waits for saves under way."""

    def __init__(self, folder: pathlib.Path, keep: int, best: Best | None = None) -> None:
        """Keeps the newest `keep`, and that of the `best` step, if there is one so far."""
        self._best = _BestStep(best.step if best else None)
        newest = ocp.checkpoint_managers.LatestN(keep)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.AnyPreservationPolicy([newest, self._best]),
            enable_async_checkpointing=True,
        )
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def save(self, step: int, state: TrainState, *, is_best: bool = False) -> None:
        """Copies the state off the devices and writes it in the background."""
        if is_best:
            self._best.step = step
        items = {name: ocp.args.StandardSave(value) for name, value in _items(state).items()}
        self._manager.save(step, args=ocp.args.Composite(**items))

    def wait(self) -> None:
        """Until saves under way are on disk."""
        self._manager.wait_until_finished()

    def restore_latest(self, abstract: TrainState) -> TrainState | None:
        """The newest state, laid out as `abstract` says, or None where there is none."""
        step = self._manager.latest_step()
        return None if step is None else self.restore(step, abstract)

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state after that step."""
        items = {name: ocp.args.StandardRestore(v) for name, v in _items(abstract).items()}
        restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        average = restored[AVERAGE] if AVERAGE in items else {}
        return TrainState(params=restored[PARAMS], average=average, **restored[PROGRESS])


@dataclasses.dataclass
class _BestStep(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps one step, whichever it is by now."""

    step: int | None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        return [checkpoint.step == self.step for checkpoint in checkpoints]


def _items(state: TrainState) -> dict[str, Any]:
    """The parts of a state that are kept apart."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    apart = {PARAMS: fields.pop(PARAMS), AVERAGE: fields.pop(AVERAGE)}
    return {**{name: part for name, part in apart.items() if part}, PROGRESS: fields}
