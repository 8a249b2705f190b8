"""Speed and time to go, with time spent on other things than training left out."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Started just before the first step of this process."""

    def __init__(self, start: int, total: int, batch_size: int, before: float = 0.0) -> None:
        """`before`: seconds that the run took until `start`, in earlier processes."""
        self._start, self._total, self._batch_size, self._before = start, total, batch_size, before
        self._began = time.monotonic()
        self._paused = 0.0
        self._last = (start, self._training_seconds())

    def measure(self, step: int) -> tuple[float, float]:
        """(images per second since the last call, seconds to the end of the run)."""
        now = self._training_seconds()
        (last_step, last_time), self._last = self._last, (step, now)
        rate = (step - last_step) * self._batch_size / max(now - last_time, 1e-9)
        return rate, (self._total - step) * now / max(step - self._start, 1)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For what is not training."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - began

    @property
    def seconds(self) -> float:
        """All the time that the run has taken."""
        return self._before + time.monotonic() - self._began

    def _training_seconds(self) -> float:
        return time.monotonic() - self._began - self._paused
