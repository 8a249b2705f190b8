"""The restart contract of all launchers (docs/reliability.md): what an exit code asks for, and for
how long it is given."""

import dataclasses
import time
from collections.abc import Iterable

DONE, FAILED, RESTART = 0, 1, 42
DIED = range(127, 256)  # what xpk restarts on as well

SETTLED_SECONDS = 300  # a job that lived so long starts with a clean slate
LONGEST_PAUSE = 60.0


def is_temporary(code: int) -> bool:
    """Whether the run can go on from its checkpoint."""
    return code == RESTART or code in DIED


def verdict(codes: Iterable[int]) -> int:
    """Of several processes: one that says that it failed knows more than those it took along."""
    codes = [code for code in codes if code != DONE]
    return next((code for code in codes if not is_temporary(code)), codes[0] if codes else DONE)


@dataclasses.dataclass
class Restarts:
    """Counts restarts in a row, and doubles the pause before each."""

    most: int
    first_pause: float  # seconds
    count: int = 0
    began: float = dataclasses.field(default_factory=time.monotonic)

    def begin(self) -> None:
        """A job has started."""
        self.began = time.monotonic()

    def next_pause(self) -> float | None:
        """Seconds to wait before the job is started again; None: no more."""
        if time.monotonic() - self.began > SETTLED_SECONDS:
            self.count = 0
        if self.count >= self.most:
            return None
        self.count += 1
        return min(self.first_pause * 2 ** (self.count - 1), LONGEST_PAUSE)
