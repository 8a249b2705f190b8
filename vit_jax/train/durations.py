"""Lengths of training time, written as one number and one unit: "90 epochs", "10_000 steps"."""

import math
import re

from vit_jax.errors import UsageError

# Instead of a duration: BiT's rule (Kolesnikov et al., 2020), of which the paper's Table 4 is a
# case: 500 steps for Pets and Flowers, 10,000 for CIFAR, 20,000 for ImageNet.
BY_SIZE = "by size"
_STEPS_BY_SIZE = ((20_000, 500), (500_000, 10_000), (math.inf, 20_000))

_FORM = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*(steps?|epochs?|examples?|%)")


def to_steps(
    duration: str,
    what: str,
    *,
    batch_size: int,
    dataset_size: int,
    total_steps: int | None = None,
) -> int:
    """The number of steps in `duration`; percentages are of `total_steps`. `what` names the key."""
    match = _FORM.fullmatch(str(duration).strip())
    if not match or (match[2] == "%" and total_steps is None):
        units = "steps, epochs or examples" if total_steps is None else "steps, epochs, examples, %"
        raise UsageError(
            f"{what}={duration!r} is no duration: expected a number and one of {units}, "
            f"as in '100 steps'"
        )
    number, unit = float(match[1].replace("_", "")), match[2].rstrip("s")
    if unit == "epoch":
        number = number * dataset_size / batch_size
    elif unit == "example":
        number = number / batch_size
    elif unit == "%":
        number = number / 100 * total_steps
    return round(number)


def steps_by_size(dataset_size: int) -> int:
    """How long to fine-tune on so many images."""
    return next(steps for most, steps in _STEPS_BY_SIZE if dataset_size < most)


def to_seconds(duration: str) -> float | None:
    """Of a duration in minutes or hours; None where it has another unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(minute|hour)s?", str(duration).strip())
    return match and float(match[1]) * {"minute": 60, "hour": 3600}[match[2]]
