"""The best step of a run by one of its metrics, read off its records: nothing else remembers it."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Best(NamedTuple):
    """Where a metric was best, and how many times it was measured since."""

    step: int
    value: float
    since: int


def best_of(records: Iterable[Mapping[str, Any]], metric: str) -> Best | None:
    """The first of the best, or None where the metric was never measured."""
    best: Best | None = None
    for record in records:
        best = better_of(best, record, metric)
    return best


def better_of(best: Best | None, record: Mapping[str, Any], metric: str) -> Best | None:
    """The best so far, with one more record seen. Of a loss or an error less is better."""
    if metric not in record:
        return best
    sign = -1 if metric.endswith(("loss", "error")) else 1
    if best is None or sign * record[metric] > sign * best.value:
        return Best(record["step"], record[metric], 0)
    return best._replace(since=best.since + 1)
