"""Saving and resuming a run: Orbax, asynchronous, parameters apart from the rest, verified."""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from vit_jax.errors import CannotWrite, RunFailed
from vit_jax.train.cluster import is_lead
from vit_jax.train.step import TrainState
from vit_jax.weights.checkpoint import (
    AVERAGE,
    PARAMS,
    PROGRESS,
    all_steps,
    is_marked,
    mark,
    no_good_one,
    read_items,
    save_args,
    what_is_left,
)
from vit_jax.weights.manifest import Damaged, read_manifest, verify
from vit_jax.weights.paths import in_bucket, move_folder, resolved

SET_ASIDE = "set_aside"  # beside the checkpoints: steps that could not be restored

_ATTEMPTS = 3  # to save, before the run ends
_PAUSE_SECONDS = 2.0


class Restored(NamedTuple):
    """A state, and the notes that were saved with it."""

    state: TrainState
    notes: dict[str, Any]


@dataclasses.dataclass
class Retention:
    """Which steps are kept: the newest, the first of every so many, and the best so far."""

    newest: int
    every: int = 0  # steps; 0: no others
    best: int | None = None  # which one that is changes as a run goes on

    def kept(self, steps: Sequence[int]) -> set[int]:
        """Of these, oldest first."""
        periods: dict[int, int] = {}
        for step in steps if self.every else ():
            periods.setdefault(step // self.every, step)
        periods.pop(0, None)
        return {*steps[-self.newest :], *periods.values()} | ({self.best} & {*steps})

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """How Orbax asks."""
        kept = self.kept([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in kept for checkpoint in checkpoints]


class _Manager(ocp.CheckpointManager):
    """Orbax's, but it leaves preemptions to the loop. Its thread that ends a save asks JAX about
    them with the number of a step that is past; those who agree at that moment agree to stop at a
    step that was left behind, and never do."""

    def reached_preemption(self, step: int) -> bool:
        return False


class Checkpoints:
    """The checkpoints of one run. A context manager: leaving it waits for saves under way."""

    def __init__(
        self,
        folder: pathlib.Path,
        keep: int,
        keep_every: int = 0,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._folder, self._note = folder, note
        self._retention = Retention(keep, keep_every)
        self._manager: ocp.CheckpointManager | None = None
        self._failures = 0

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind and jax.process_count() > 1:
            return  # a save cannot end without the others, who may have failed or be waiting
        # A run that has failed already says why; a save that fails as well would hide it.
        with contextlib.suppress(*[Exception] if kind else []):
            self.wait()
            self._close()

    def save(
        self,
        step: int,
        state: TrainState,
        notes: Mapping[str, Any] | None = None,
        *,
        best: int | None = None,
        wait: bool = False,
    ) -> None:
        """Copies the state off the devices and writes it in the background; `wait`: to the end.

        `best` is the step to keep besides, this or an earlier one. What cannot be written is tried
        again: the next save takes its place, and one that is waited for is repeated.
        """
        self._retention.best = best
        for attempt in range(_ATTEMPTS):
            self.wait()
            args = save_args(_items(state), notes or {})
            is_begun = self._try(lambda args=args: self._begin(step, args))
            if not wait or (is_begun and self._try(self._wait)):
                return
            time.sleep(_PAUSE_SECONDS * 2**attempt)

    def wait(self) -> None:
        """Until saves under way are on disk."""
        self._try(self._wait)

    def restore_newest(self, abstract: TrainState) -> Restored | None:
        """The newest good state, laid out as `abstract` says, or None where there is no step.

        Newer steps that cannot be used are named and moved aside, once a good one is found. In a
        bucket a save that was cut off looks like a step, too: Orbax will delete it.
        """
        reasons: dict[int, Damaged] = {}
        steps = _agreed_steps(self._folder)[::-1]
        for step in steps:
            try:
                restored = self.restore(step, abstract)
            except Damaged as error:
                if step == steps[0] and not is_marked(self._folder / str(step)):
                    self._note(f"the save of step {step} was cut off")
                    continue
                self._note(f"the checkpoint of step {step} cannot be used: {error}")
                reasons[step] = error
            else:
                self._set_aside(list(reasons))
                self._mark(step)
                return restored
        if any(any((self._folder / str(step)).iterdir()) for step in reasons):
            # Starting over would be a run lost, and maybe it is the machine that cannot read.
            raise RunFailed(
                f"{self._folder.parent} {no_good_one(reasons)}; nothing was moved or deleted. "
                f"Repair them, or move {self._folder} away to start over"
            )
        self._set_aside(list(reasons))  # nothing but empty folders
        return None

    def restore(self, step: int, abstract: TrainState) -> Restored:
        """The state after that step, or Damaged."""
        folder, targets = self._folder / str(step), _items(abstract)
        try:
            manifest = read_manifest(folder)
            items, damage = read_items(folder, manifest, targets), None
        except Damaged as error:
            damage = error
        # A process that could not read must not leave the others alone in what follows.
        unable = np.flatnonzero(multihost_utils.process_allgather(np.array(damage is not None)))
        if len(unable):
            raise damage or Damaged(f"it cannot be read by process {unable[0]}")
        verify(manifest, items)
        average = items.get(AVERAGE, {})
        state = TrainState(params=items[PARAMS], average=average, **items[PROGRESS])
        return Restored(state, manifest["notes"])

    def _set_aside(self, steps: Sequence[int]) -> None:
        for step in steps if is_lead() else ():
            place = self._folder.parent / SET_ASIDE
            number, target = 1, place / str(step)
            while target.exists():
                number, target = number + 1, place / f"{step}-{number + 1}"
            move_folder(self._folder / str(step), target)
            self._note(f"moved the checkpoint of step {step} to {target}")
        if steps:
            multihost_utils.sync_global_devices("set aside")

    def _mark(self, step: int) -> None:
        """The step that was restored and all before it: they came from a disk, without marks."""
        if is_marked(self._folder / str(step)) or not is_lead():
            return
        for older in all_steps(self._folder):
            if older <= step:
                mark(self._folder / str(older))

    def _begin(self, step: int, args: ocp.args.Composite) -> None:
        if self._manager is None:
            options = ocp.CheckpointManagerOptions(
                preservation_policy=self._retention,
                enable_async_checkpointing=True,
                # Where folders cannot be made in the background, the rest waits for them for long.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
                cleanup_tmp_directories=True,  # what a killed process left of its last save
            )
            self._manager = _Manager(resolved(self._folder), options=options)
        self._manager.save(step, args=args, force=True)

    def _wait(self) -> None:
        if self._manager is not None:
            self._manager.wait_until_finished()
            self._failures = 0

    def _try(self, act: Callable[[], None]) -> bool:
        """Whether it could be written; too many failures in a row end the run."""
        try:
            act()
            return True
        except Exception as error:  # of many kinds, from the file system and from Orbax
            text = " ".join(str(error).split())
            if jax.process_count() > 1 and not self._is_of_the_disk(error, text):
                # Most likely another process has died, or a bucket did not answer: a restart mends
                # both.
                self._note(f"a checkpoint could not be written: {text[:200]}")
                raise
            self._failures += 1
            # Several processes cannot try again together: the others may not know.
            if self._failures >= _ATTEMPTS or jax.process_count() > 1:
                raise CannotWrite(
                    f"{self._folder}: a checkpoint could not be written ({text[:200]}); "
                    f"{what_is_left(self._folder)}. Make room or repair the folder, then start "
                    f"again"
                ) from error
            self._note(f"a checkpoint could not be written, will try again: {text[:200]}")
            with contextlib.suppress(Exception):
                self._close()  # what a failed save leaves in it is no state to go on from
            return False

    def _is_of_the_disk(self, error: Exception, text: str) -> bool:
        # The second is how TensorStore says it.
        is_of_files = isinstance(error, OSError) or "os_error_code" in text
        return is_of_files and not in_bucket(self._folder)

    def _close(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()


def _agreed_steps(folder: pathlib.Path) -> list[int]:
    """The lead's listing, in all processes: the last requests of a killed job may reach a bucket
    while they look."""
    steps = all_steps(folder)
    count = int(multihost_utils.broadcast_one_to_all(np.int32(len(steps))))
    shown = np.array(steps if is_lead() else [0] * count, np.int32)
    return [int(step) for step in multihost_utils.broadcast_one_to_all(shown)] if count else []


def _items(state: TrainState) -> dict[str, Any]:
    """The parts of a state that are kept apart."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    apart = {PARAMS: fields.pop(PARAMS), AVERAGE: fields.pop(AVERAGE)}
    return {**{name: part for name, part in apart.items() if part}, PROGRESS: fields}
