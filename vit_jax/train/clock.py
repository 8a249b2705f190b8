"""Speed and time to go, with time spent on other things than training left out."""

import time
from typing import NamedTuple

from vit_jax.train.acts import DATA_WAIT, STEP, Acts


class Pace(NamedTuple):
    """Between two looks at the clock."""

    images_per_second: float
    data_wait: float  # the share of that time spent waiting for a batch
    eta: float  # seconds to the end of the run


class Clock:
    """Started just before the first step of this process."""

    def __init__(
        self, start: int, total: int, batch_size: int, acts: Acts, before: float = 0.0
    ) -> None:
        """`before`: seconds that the run took until `start`, in earlier processes."""
        self._start, self._total, self._batch_size, self._before = start, total, batch_size, before
        self._acts = acts
        self._began = time.monotonic()
        self._first = self._last = (start, *self._training())

    def measure(self, step: int) -> Pace:
        """The pace since the last call."""
        now = (step, *self._training())
        steps, seconds, waited = (a - b for a, b in zip(now, self._last, strict=True))
        self._last = now
        seconds = max(seconds, 1e-9)
        return Pace(
            images_per_second=steps * self._batch_size / seconds,
            data_wait=waited / seconds,
            eta=(self._total - step) * (now[1] - self._first[1]) / max(step - self._start, 1),
        )

    @property
    def seconds(self) -> float:
        """All the time that the run has taken."""
        return self._before + time.monotonic() - self._began

    def _training(self) -> tuple[float, float]:
        """Seconds of training, and of waiting for data within it."""
        seconds = self._acts.seconds()
        return seconds[STEP] + seconds[DATA_WAIT], seconds[DATA_WAIT]
