"""Schedules and update rules, against the same written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.errors import UsageError
from vit_jax.train.config import OptimizerConfig
from vit_jax.train.optimizer import check_patterns, make_optimizer, make_schedule


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
    with pytest.raises(UsageError, match="expected one of cosine, linear, rsqrt, constant"):
        make_schedule(OptimizerConfig(schedule="cosin"), 0, 10)
    with pytest.raises(UsageError, match="has no effect on sgd"):
        decayed = OptimizerConfig(name="sgd", weight_decay=0.1)
        make_optimizer(decayed, optax.constant_schedule(1.0))
    with pytest.raises(UsageError, match="expected one of adamw, sgd, adafactor"):
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


def test_rsqrt_falls_slowly_and_cools_down_to_the_end():
    config = OptimizerConfig(learning_rate=1.0, schedule="rsqrt", end_learning_rate=0.1)
    schedule = make_schedule(config, 10, 110, cooldown_steps=20, timescale=20)
    values = [float(schedule(step)) for step in (0, 5, 10, 30, 90, 100, 110)]
    late = (1 + 80 / 20) ** -0.5
    expected = [0, 0.5, 1, 2**-0.5, late, (late + 0.1) / 2, 0.1]
    np.testing.assert_allclose(values, expected, atol=1e-6)


NETWORK = {
    "embedding": {"patches": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}},
    "encoder": {
        "blocks": {"mlp": {"kernel": jnp.ones((3, 2, 2))}},
        "norm": {"scale": jnp.ones(2)},
    },
    "head": {"kernel": jnp.ones((2, 2))},
}


def moved(**values):
    """How far each parameter goes in one step of gradient 1 and rate 1."""
    config = OptimizerConfig(name="sgd", momentum=0.0, **values)
    optimizer = make_optimizer(config, optax.constant_schedule(1.0))
    gradient = jax.tree.map(jnp.ones_like, NETWORK)
    updates, _ = optimizer.update(gradient, optimizer.init(NETWORK), NETWORK)
    return jax.tree.map(lambda leaf: -np.asarray(leaf), updates)


def test_rates_are_multiplied_by_pattern_and_zero_freezes():
    steps = moved(rate_multipliers={"*": 1.0, "embedding/*": 0.0, "*/mlp/kernel": 0.5})
    assert not steps["embedding"]["patches"]["kernel"].any()
    assert (steps["encoder"]["blocks"]["mlp"]["kernel"] == 0.5).all()
    assert (steps["head"]["kernel"] == 1).all()
    for key in ("rate_multipliers", "decay_multipliers"):
        with pytest.raises(UsageError, match=f"{key}: no parameter is named as 'hed/"):
            check_patterns(OptimizerConfig(**{key: {"hed/*": 0.0}}), NETWORK)


def test_lower_layers_learn_more_slowly():
    steps = moved(layer_decay=0.5)
    layers = steps["encoder"]["blocks"]["mlp"]["kernel"][:, 0, 0]
    np.testing.assert_allclose(layers, [0.125, 0.25, 0.5])
    assert (steps["embedding"]["patches"]["bias"] == 0.0625).all()
    assert (steps["head"]["kernel"] == 1).all() and (steps["encoder"]["norm"]["scale"] == 1).all()


def test_decay_is_of_kernels_and_by_pattern():
    config = OptimizerConfig(weight_decay=0.1, decay_multipliers={"head/*": 10.0})
    optimizer = make_optimizer(config, optax.constant_schedule(1.0))
    zero = jax.tree.map(jnp.zeros_like, NETWORK)
    updates, _ = optimizer.update(zero, optimizer.init(NETWORK), NETWORK)
    np.testing.assert_allclose(updates["head"]["kernel"], -1.0)
    np.testing.assert_allclose(updates["embedding"]["patches"]["kernel"], -0.1)
    assert not np.any(updates["encoder"]["norm"]["scale"])


def test_adafactor_keeps_rows_and_columns_and_a_coarse_moment():
    config = OptimizerConfig(name="adafactor", moment_dtype="bfloat16", weight_decay=0.1)
    optimizer = make_optimizer(config, optax.constant_schedule(0.1))
    params = {"kernel": jnp.ones((64, 48)), "bias": jnp.ones(48)}
    state = optimizer.init(params)
    sizes = {leaf.size for leaf in jax.tree.leaves(state)}
    assert 64 * 48 in sizes  # the first moment, and no second one of that size
    large = [leaf for leaf in jax.tree.leaves(state) if leaf.size == 64 * 48]
    assert [leaf.dtype for leaf in large] == [jnp.bfloat16]
    gradient = jax.tree.map(jnp.ones_like, params)
    updates, _ = optimizer.update(gradient, state, params)
    # Step 1: 0.1 of a unit step, for the moment starts at zero, and the decay.
    np.testing.assert_allclose(updates["kernel"], -0.1 * (0.1 + 0.1), rtol=0.02)
    np.testing.assert_allclose(updates["bias"], -0.1 * 0.1, rtol=0.02)
