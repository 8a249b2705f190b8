"""Speed and time to go, with time spent on other things than training left out."""

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple


class Pace(NamedTuple):
    """Between two looks at the clock."""

    images_per_second: float
    data_wait: float  # the share of that time spent waiting for a batch
    eta: float  # seconds to the end of the run


class Clock:
    """Started just before the first step of this process."""

    def __init__(self, start: int, total: int, batch_size: int, before: float = 0.0) -> None:
        """`before`: seconds that the run took until `start`, in earlier processes."""
        self._start, self._total, self._batch_size, self._before = start, total, batch_size, before
        self._began = time.monotonic()
        self._paused = self._waited = 0.0
        self._last = (start, 0.0, 0.0)  # step, seconds of training, seconds of waiting

    def measure(self, step: int) -> Pace:
        """The pace since the last call."""
        now = (step, time.monotonic() - self._began - self._paused, self._waited)
        steps, seconds, waited = (a - b for a, b in zip(now, self._last, strict=True))
        self._last = now
        seconds = max(seconds, 1e-9)
        return Pace(
            images_per_second=steps * self._batch_size / seconds,
            data_wait=waited / seconds,
            eta=(self._total - step) * now[1] / max(step - self._start, 1),
        )

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For what is not training."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - began

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """For the part of training that is waiting for data."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - began

    @property
    def seconds(self) -> float:
        """All the time that the run has taken."""
        return self._before + time.monotonic() - self._began
