"""How a verb ends when it does not end well, and what a scheduler makes of it.

0 done; 42 saved, start again to go on; 1 a restart does not help; 2 a mistake in what was typed.
Each is told in one line, without a stack trace. Processes that die have codes of 127 and more.
"""

import contextlib
import difflib
import sys
import traceback
from collections.abc import Iterable

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_RESTART = 0, 1, 2, 42
EXIT_INTERRUPTED, EXIT_DIED = 130, 134


class UsageError(Exception):
    """Says in one line what was wrong, what was expected, and what to type instead."""


class RunFailed(Exception):
    """A run that cannot go on; its last good checkpoint is there."""


class Diverged(RunFailed):
    """Because its numbers are no longer finite."""


class CannotWrite(RunFailed):
    """Because its folder takes no more: full, write-protected, or gone."""


class Stopped(Exception):
    """A run that was asked to stop, or waits for nobody; started again, it goes on."""


def told(error: BaseException) -> int:
    """Tells of an error on stderr, and gives its exit code."""
    kinds = {UsageError: EXIT_USAGE, RunFailed: EXIT_FAILED, Stopped: EXIT_RESTART}
    codes = [code for kind, code in kinds.items() if isinstance(error, kind)]
    with contextlib.suppress(OSError):  # stderr may go to the very disk that is full
        if codes:
            print(f"vit-jax: {error}", file=sys.stderr, flush=True)
        elif isinstance(error, KeyboardInterrupt):
            print("vit-jax: interrupted", file=sys.stderr, flush=True)
            codes = [EXIT_INTERRUPTED]
        else:  # a bug
            traceback.print_exception(error)
    return codes[0] if codes else EXIT_FAILED


def closest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean X?' for the choice nearest to `word`, or '' where none is near."""
    choices = list(choices)
    by_lower = {choice.lower(): choice for choice in choices}
    # As written first: g/14 and G/14 differ in nothing but their case.
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.8) or [
        by_lower[match]
        for match in difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    ]
    return f" Did you mean {near[0]}?" if near else ""
