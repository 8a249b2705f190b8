"""Checkpoints by steps and by the clock."""

import pytest

from vit_jax.errors import UsageError
from vit_jax.train import cadence
from vit_jax.train.cadence import Cadence
from vit_jax.train.durations import to_seconds, to_steps


def in_steps(duration):
    return to_steps(duration, "checkpoint_every", batch_size=8, dataset_size=80, total_steps=100)


def test_by_steps():
    every = Cadence("1 epochs", in_steps)
    assert [step for step in range(1, 35) if every.is_due(step)] == [10, 20, 30]


@pytest.mark.parametrize("seconds_per_step", [0.5, 7.0, 100.0])
def test_by_the_clock(monkeypatch, seconds_per_step):
    now = 0.0
    monkeypatch.setattr(cadence.time, "monotonic", lambda: now)
    every, due = Cadence("2 minutes", in_steps), []
    for step in range(1, 3000):
        now += seconds_per_step
        if every.is_due(step):
            due.append(now)
    gaps = [b - a for a, b in zip([0.0, *due], due, strict=False)]
    assert all(120 <= gap <= 120 + max(2 * 120 / 20, seconds_per_step) for gap in gaps)


def test_units_of_time():
    assert to_seconds("10 minutes") == 600 and to_seconds("1.5 hours") == 5400
    assert to_seconds("10 steps") is None
    with pytest.raises(UsageError, match="no duration"):
        Cadence("10 fortnights", in_steps)
