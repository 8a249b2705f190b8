"""Optimizers and learning-rate schedules (section 4.1, appendix B.1), put together from optax."""

from typing import Any

import jax
import optax

from vit_jax.errors import UsageError
from vit_jax.train.config import OptimizerConfig

OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("cosine", "linear", "constant")


def make_schedule(config: OptimizerConfig, warmup_steps: int, total_steps: int) -> optax.Schedule:
    """Linear warm-up from 0, then the named decay to `end_learning_rate` at the last step."""
    peak, end, steps = config.learning_rate, config.end_learning_rate, total_steps - warmup_steps
    if steps <= 0:
        raise UsageError(
            f"optimizer.warmup={config.warmup!r} is {warmup_steps} steps, but the whole run has "
            f"{total_steps}: shorten the warm-up or lengthen total"
        )
    if config.schedule == "cosine":
        decay = optax.cosine_decay_schedule(peak, steps, alpha=end / peak)
    elif config.schedule == "linear":
        decay = optax.linear_schedule(peak, end, steps)
    elif config.schedule == "constant":
        decay = optax.constant_schedule(peak)
    else:
        raise UsageError(
            f"optimizer.schedule={config.schedule!r}: expected one of {', '.join(SCHEDULES)}"
        )
    if not warmup_steps:
        return decay
    return optax.join_schedules(
        [optax.linear_schedule(0.0, peak, warmup_steps), decay], [warmup_steps]
    )


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Clipping, then the named rule."""
    if config.name == "adamw":
        rule = optax.adamw(
            schedule, config.b1, config.b2, weight_decay=config.weight_decay, mask=is_kernel
        )
    elif config.name == "sgd":
        if config.weight_decay:
            raise UsageError(
                f"optimizer.weight_decay={config.weight_decay} has no effect on sgd: leave it out, "
                f"or use optimizer.name=adamw"
            )
        rule = optax.sgd(schedule, config.momentum)
    else:
        raise UsageError(f"optimizer.name={config.name!r}: expected one of {', '.join(OPTIMIZERS)}")
    if not config.clip_norm:
        return rule
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), rule)


def is_kernel(params: Any) -> Any:
    """True where weight decay applies: matrices, not biases, norms, tokens or positions."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
