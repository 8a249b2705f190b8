"""Schedules and update rules, against the same written out by hand."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.errors import UsageError
from vit_jax.train.config import OptimizerConfig
from vit_jax.train.optimizer import make_optimizer, make_schedule


def rates(schedule, **values):
    config = OptimizerConfig(learning_rate=1.0, schedule=schedule, **values)
    return [float(make_schedule(config, 10, 110)(step)) for step in (0, 5, 10, 60, 110)]


def test_schedules_warm_up_and_decay():
    np.testing.assert_allclose(
        rates("linear", end_learning_rate=0.2), [0, 0.5, 1, 0.6, 0.2], atol=1e-6
    )
    np.testing.assert_allclose(rates("cosine"), [0, 0.5, 1, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(rates("constant"), [0, 0.5, 1, 1, 1], atol=1e-6)


def test_impossible_schedules_are_refused():
    with pytest.raises(UsageError, match="but the whole run has 10"):
        make_schedule(OptimizerConfig(warmup="20 steps"), 20, 10)
    with pytest.raises(UsageError, match="expected one of cosine, linear, constant"):
        make_schedule(OptimizerConfig(schedule="cosin"), 0, 10)
    with pytest.raises(UsageError, match="has no effect on sgd"):
        decayed = OptimizerConfig(name="sgd", weight_decay=0.1)
        make_optimizer(decayed, optax.constant_schedule(1.0))
    with pytest.raises(UsageError, match="expected one of adamw, sgd"):
        make_optimizer(OptimizerConfig(name="adam"), optax.constant_schedule(1.0))


PARAMS = {"layer": {"kernel": jnp.full((2,), 3.0), "bias": jnp.full((2,), 3.0)}}
GRADS = {"layer": {"kernel": jnp.full((2,), 8.0), "bias": jnp.full((2,), 8.0)}}


def update(config):
    optimizer = make_optimizer(config, optax.constant_schedule(0.1))
    return optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)[0]["layer"]


def test_adamw_decays_kernels_only_and_in_proportion_to_the_learning_rate():
    step = update(OptimizerConfig(weight_decay=0.5))
    np.testing.assert_allclose(step["bias"], -0.1, rtol=1e-5)  # Adam's first step is the rate
    np.testing.assert_allclose(step["kernel"], -0.1 - 0.1 * 0.5 * 3, rtol=1e-5)


def test_clipping_scales_the_whole_gradient():
    step = update(OptimizerConfig(name="sgd", clip_norm=1.0))
    np.testing.assert_allclose(step["kernel"], -0.1 * 8 / 16, rtol=1e-5)
