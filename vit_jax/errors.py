"""A user's mistake, as opposed to a bug: told in one line, without a stack trace, exit code 2."""

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Says in one line what was wrong, what was expected, and what to type instead."""


class Diverged(Exception):
    """A run that cannot go on; its last good checkpoint is there. Exit code 1."""


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
