"""The best step so far, and whether it is worth going on. A function of the records alone."""

from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.errors import UsageError
from vit_jax.weights.best import Best, best_of, better_of


class Watch:
    """Of one metric, as in "validation/accuracy"; of none, it never says anything."""

    def __init__(self, metric: str, patience: int, records: Iterable[Mapping[str, Any]]) -> None:
        self.metric, self._patience = metric, patience
        self.best: Best | None = best_of(records, metric)

    def see(self, step: int, record: Mapping[str, float]) -> None:
        """What was measured at a step."""
        evaluator = self.metric.partition("/")[0] + "/"
        measured = [key for key in record if key.startswith(evaluator)]
        if self.metric and measured and self.metric not in record:
            raise UsageError(
                f"config.best_by={self.metric!r}: expected one of {', '.join(measured)}"
            )
        self.best = better_of(self.best, {"step": step, **record}, self.metric)

    def is_best(self, step: int) -> bool:
        return self.best is not None and self.best.step == step

    def text(self) -> str:
        """One line."""
        if self.best is None:
            return ""
        return (
            f"{self.metric} was best at step {self.best.step} ({self.best.value:.4f}), and "
            f"{self.best.since} evaluations since were no better"
        )

    @property
    def is_over(self) -> bool:
        """Whether patience has run out."""
        return bool(self._patience and self.best and self.best.since >= self._patience)
