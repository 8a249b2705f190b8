"""Where the time of a run goes, over all its restarts, and an alarm for what takes too long.

At any moment a run is in exactly one act, so the seconds of all acts add up to its age.
"""

import collections
import contextlib
import faulthandler
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping

import jax

# start: until the first step, of every process. lost: steps that had to be taken again. down:
# nobody was running.
START, COMPILE, DATA_WAIT, STEP = "start", "compile", "data_wait", "step"
EVALUATION, CHECKPOINT, LOST, DOWN = "evaluation", "checkpoint", "lost", "down"
_ALL = (START, COMPILE, DATA_WAIT, STEP, EVALUATION, CHECKPOINT, LOST, DOWN)

_TOO_LONG = 10  # times as usual
_UNKNOWN = 10  # times the alarm's own limit, where nothing is usual yet


class Acts:
    """Begins with `start`. A context manager; the alarm rings no more after it."""

    def __init__(self, alarm_seconds: float = 0.0) -> None:
        """`alarm_seconds`: the shortest time that is too long; 0: no alarm."""
        self._seconds = dict.fromkeys(_ALL, 0.0)
        self._act, self._since = START, time.monotonic()
        self._usual = {act: collections.deque(maxlen=100) for act in _ALL}
        self._alarm_seconds = alarm_seconds
        self._closed = threading.Event()

    def __enter__(self) -> "Acts":
        if self._alarm_seconds:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def begin(self, act: str) -> None:
        """Ends the act before."""
        now = time.monotonic()
        self._usual[self._act].append(now - self._since)
        self._seconds[self._act] += now - self._since
        self._act, self._since = act, now

    @contextlib.contextmanager
    def during(self, act: str) -> Iterator[None]:
        """For an act within another, which goes on after it."""
        outer = self._act
        self.begin(act)
        try:
            yield
        finally:
            self.begin(outer)

    def seconds(self) -> dict[str, float]:
        """Of each act so far."""
        return self._seconds | {
            self._act: self._seconds[self._act] + time.monotonic() - self._since
        }

    def notes(self) -> dict[str, float]:
        """For the checkpoint; what `resume` takes."""
        return {"saved": time.time(), **self.seconds()}

    def resume(self, notes: Mapping[str, float], last_sign: float) -> None:
        """Goes on from a checkpoint; `last_sign` is when the process before was last heard of."""
        began = time.time() - sum(self.seconds().values())
        last_sign = min(max(last_sign, notes["saved"]), began)
        for act in _ALL:
            self._seconds[act] += notes[act]
        self._seconds[LOST] += last_sign - notes["saved"]
        self._seconds[DOWN] += began - last_sign

    def goodput(self) -> float:
        """The share of all time that was training."""
        seconds = self.seconds()
        return seconds[STEP] / max(sum(seconds.values()), 1e-9)

    def _watch(self) -> None:
        """Every process has this alarm, and where one hangs all do: all will tell their stacks."""
        told: tuple[float, float] = (0.0, 0.0)  # since when the act goes on, its age when told
        while not self._closed.wait(min(1.0, self._alarm_seconds / 4)):
            act, since = self._act, self._since
            age = time.monotonic() - since
            usual = statistics.median(self._usual[act]) if len(self._usual[act]) > 2 else None
            limit = max(
                self._alarm_seconds, (_UNKNOWN * self._alarm_seconds)
                if usual is None else _TOO_LONG * usual,
            )  # fmt: skip
            if told[0] == since:
                limit = 2 * told[1]
            if age > limit and (act, since) == (self._act, self._since):
                told = (since, age)
                _tell(act, age, usual)


def _tell(act: str, age: float, usual: float | None) -> None:
    often = "" if usual is None else f", usually {usual:.3g} s"
    sys.__stderr__.write(
        f"\nvit-jax: process {jax.process_index()} has been in {act!r} for {age:.0f} s{often}; "
        f"what its threads do:\n"
    )
    sys.__stderr__.flush()
    faulthandler.dump_traceback(file=2, all_threads=True)
