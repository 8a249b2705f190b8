"""Optimizers and learning-rate schedules (section 4.1, appendix B.1), put together from optax."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.errors import UsageError
from vit_jax.train.config import OptimizerConfig
from vit_jax.train.sharding import path_name

OPTIMIZERS = ("adamw", "sgd", "adafactor")
SCHEDULES = ("cosine", "linear", "rsqrt", "constant")

# Weight decay acts on matrices, not on biases, norms, tokens or positions.
DECAYED = "*kernel"


def make_schedule(
    config: OptimizerConfig,
    warmup_steps: int,
    total_steps: int,
    cooldown_steps: int = 0,
    timescale: int = 10_000,
) -> optax.Schedule:
    """Linear warm-up from 0, then the named decay to `end_learning_rate` at the last step.

    "rsqrt" falls as 1 / √step from `timescale` on, and goes to the end in a linear cooldown: a run
    can be lengthened without having been decayed too early (Zhai et al., 2021).
    """
    peak, end = config.learning_rate, config.end_learning_rate
    steps = total_steps - warmup_steps - cooldown_steps
    if steps <= 0:
        raise UsageError(
            f"optimizer.warmup={config.warmup!r} is {warmup_steps} steps, but the whole run has "
            f"{total_steps}: shorten the warm-up{' or the cooldown' if cooldown_steps else ''} or "
            f"lengthen total"
        )
    decays = {
        "cosine": lambda: optax.cosine_decay_schedule(peak, steps, alpha=end / peak),
        "linear": lambda: optax.linear_schedule(peak, end, steps),
        "rsqrt": lambda: lambda step: peak * (1 + step / timescale) ** -0.5,
        "constant": lambda: optax.constant_schedule(peak),
    }
    if config.schedule not in decays:
        raise UsageError(
            f"optimizer.schedule={config.schedule!r}: expected one of {', '.join(SCHEDULES)}"
        )
    decay = decays[config.schedule]()
    parts, ends = [decay], []
    if warmup_steps:
        parts, ends = [optax.linear_schedule(0.0, peak, warmup_steps), decay], [warmup_steps]
    if cooldown_steps:
        parts.append(optax.linear_schedule(float(decay(steps)), end, cooldown_steps))
        ends.append(total_steps - cooldown_steps)
    return optax.join_schedules(parts, ends) if ends else decay


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Clipping, the named rule, decoupled decay, the learning rate with its multipliers."""
    if config.name not in OPTIMIZERS:
        raise UsageError(f"optimizer.name={config.name!r}: expected one of {', '.join(OPTIMIZERS)}")
    if config.name == "sgd" and config.weight_decay:
        raise UsageError(
            f"optimizer.weight_decay={config.weight_decay} has no effect on sgd: leave it out, "
            f"or use optimizer.name=adamw"
        )
    moment_dtype = jnp.dtype(config.moment_dtype)
    rules = {
        "adamw": lambda: [optax.scale_by_adam(config.b1, config.b2, mu_dtype=moment_dtype)],
        "sgd": lambda: [optax.trace(config.momentum, accumulator_dtype=moment_dtype)],
        "adafactor": lambda: [
            optax.scale_by_factored_rms(
                decay_rate=0.8, min_dim_size_to_factor=32, decay_rate_fn=_capped_decay
            ),
            optax.ema(config.b1, debias=False, accumulator_dtype=moment_dtype),
        ],
    }
    chain = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    chain += rules[config.name]()
    if config.weight_decay:
        chain.append(_decay(config))
    chain.append(optax.scale_by_learning_rate(schedule))
    if config.rate_multipliers or config.layer_decay != 1:
        chain.append(_multiplied(config))
    return optax.chain(*chain)


def check_patterns(config: OptimizerConfig, params: Any) -> None:
    """A pattern that no parameter has is a mistake, not a wish."""
    paths = [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    for key in ("rate_multipliers", "decay_multipliers"):
        for pattern in getattr(config, key):
            if not any(fnmatchcase(path, pattern) for path in paths):
                raise UsageError(
                    f"optimizer.{key}: no parameter is named as {pattern!r} says; names are as in "
                    f"{', '.join(paths[:3])}"
                )


def multipliers(
    patterns: Mapping[str, float],
    params: Any,
    otherwise: Callable[[str], float] = lambda path: 1.0,
) -> Any:
    """A number for each parameter: that of the longest pattern that its whole path matches.

    (Not of the first: a ConfigDict has no order.)
    """

    def of(path: tuple[Any, ...], _: Any) -> float:
        name = path_name(path)
        matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        return patterns[max(matching, key=len)] if matching else otherwise(name)

    return jax.tree_util.tree_map_with_path(of, params)


def layer_multipliers(params: Any, decay: float) -> Any:
    """decay^(layers above) for each parameter; stacked blocks have one for each layer."""
    stacked = jax.tree.leaves(params.get("encoder", {}).get("blocks"))
    if not stacked:
        raise UsageError("optimizer.layer_decay: this run trains no layers of an encoder")
    depth = len(stacked[0])

    def of(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
        name = path_name(path)
        if name.startswith(("encoder/blocks/", "encoder/layer_positions/")):
            above = np.arange(depth, 0, -1).reshape(-1, *(1,) * (leaf.ndim - 1))
        else:
            above = depth + 1 if name.startswith("embedding/") else 0
        return np.float32(decay**above)

    return jax.tree_util.tree_map_with_path(of, params)


def _decay(config: OptimizerConfig) -> optax.GradientTransformation:
    """Adds weight_decay x parameter to the update, on kernels or as `decay_multipliers` say."""

    def update(updates: Any, params: Any) -> Any:
        factors = multipliers(
            config.decay_multipliers, params, lambda path: float(fnmatchcase(path, DECAYED))
        )
        return jax.tree.map(
            lambda u, p, factor: u + config.weight_decay * factor * p if factor else u,
            updates, params, factors,
        )  # fmt: skip

    return optax.stateless(update)


def _multiplied(config: OptimizerConfig) -> optax.GradientTransformation:
    """Scales updates parameter by parameter. (What a 0 freezes does not get here.)"""

    def update(updates: Any, params: Any) -> Any:
        factors = multipliers(config.rate_multipliers, params)
        updates = jax.tree.map(lambda u, factor: u * factor, updates, factors)
        if config.layer_decay == 1:
            return updates
        return jax.tree.map(jnp.multiply, updates, layer_multipliers(params, config.layer_decay))

    return optax.stateless(update)


def _capped_decay(step: jax.Array, exponent: float) -> jax.Array:
    """Of the second moment: it forgets more slowly as time goes on, but never stops."""
    return jnp.minimum(0.999, 1 - (step + 1.0) ** -exponent)
