"""What a person sees while waiting: one line that renews itself, or plain lines in a log file."""

import io
import sys
import time
from collections.abc import Mapping
from typing import TextIO

_PLAIN_SECONDS = 10.0  # between lines where there is no terminal


class Progress:
    """Reports on a loop of `total` steps, or of other things. A context manager."""

    def __init__(
        self,
        label: str,
        total: int,
        *,
        unit: str = "step",
        stream: TextIO | None = None,
        silent: bool = False,
    ) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._stream = io.StringIO() if silent else stream or sys.stderr
        self._live = self._stream.isatty()
        self._last_print = -float("inf")
        self._open = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the last line as it is."""
        if self._open:
            self._stream.write("\n")
        self._open = False

    def note(self, text: str) -> None:
        """Something said once, on a line of its own."""
        self._stream.write(("\r\033[K" if self._open else "") + f"[{self._label}] {text}\n")
        self._stream.flush()
        self._open = False

    def update(self, step: int, values: Mapping[str, float], rate: float, eta: float) -> None:
        """After `step`: some values, images per second, seconds to go."""
        now = time.monotonic()
        if not self._live and now - self._last_print < _PLAIN_SECONDS and step < self._total:
            return
        self._last_print = now
        numbers = "  ".join(f"{key} {value:.3f}" for key, value in values.items())
        line = (
            f"[{self._label}] {self._unit} {step}/{self._total} "
            f"({100 * step // self._total}%)  {numbers}  {rate:.0f} images/s  ETA {_clock(eta)}"
        )
        self._stream.write(f"\r\033[K{line}" if self._live else f"{line}\n")
        self._stream.flush()
        self._open = self._live


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
