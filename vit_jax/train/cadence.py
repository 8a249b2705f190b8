"""When a checkpoint is due: every so many steps, or every so many minutes."""

import time
from collections.abc import Callable

import numpy as np
from jax.experimental import multihost_utils

from vit_jax.train.durations import to_seconds

_LOOKS = 20  # at the clock, from one checkpoint to the next


class Cadence:
    """Asked after every step, it gives the same answer in all processes."""

    def __init__(self, every: str, in_steps: Callable[[str], int]) -> None:
        self._seconds = to_seconds(every)
        self._steps = None if self._seconds else max(1, in_steps(every))
        self._next_look, self._looked_at = 0, (0, time.monotonic())
        self._last = time.monotonic()

    def is_due(self, step: int) -> bool:
        """After `step`."""
        if self._steps:
            return step % self._steps == 0
        if step < self._next_look:
            return False
        # Clocks differ, so the lead's decides, also when to look again: rarely enough that waiting
        # for its word costs nothing.
        now, (looked_step, looked) = time.monotonic(), self._looked_at
        pace = (step - looked_step) / max(now - looked, 1e-9)
        ahead = max(1, min(round(pace * self._seconds / _LOOKS), 10_000))
        is_due, ahead = multihost_utils.broadcast_one_to_all(
            np.array([now - self._last >= self._seconds, ahead if self._next_look else 1])
        )
        self._next_look, self._looked_at = step + int(ahead), (step, now)
        if is_due:
            self._last = now
        return bool(is_due)
