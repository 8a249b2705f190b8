"""One number and one unit."""

import pytest

from vit_jax.errors import UsageError
from vit_jax.train.durations import to_steps

RUN = {"batch_size": 100, "dataset_size": 1000, "total_steps": 400}


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        ("90 epochs", 900),
        ("1 epoch", 10),
        ("0.5 epochs", 5),
        ("10_000 steps", 10_000),
        ("2_500 examples", 25),
        ("5%", 20),
        ("12.5 %", 50),
    ],
)
def test_every_unit(duration, steps):
    assert to_steps(duration, "x", **RUN) == steps


@pytest.mark.parametrize(
    "duration", ["90", "epochs", "90 epochs 3 steps", "-1 steps", "", "9 days", "_ steps"]
)
def test_anything_else_is_refused(duration):
    with pytest.raises(UsageError, match=r"config\.total=.*as in '100 steps'"):
        to_steps(duration, "config.total", **RUN)


def test_the_total_cannot_be_a_share_of_itself():
    with pytest.raises(UsageError, match="steps, epochs or examples"):
        to_steps("50%", "config.total", batch_size=1, dataset_size=1)
