"""Blocks written out in both directions, by TPU kernels and as on CPUs, against plain ones."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from tests.models.scrambled import random_normal, scrambled
from vit_jax.models import fused_blocks
from vit_jax.models.activations import BATCH_SPEC
from vit_jax.models.attention import chosen
from vit_jax.models.encoder import Encoder
from vit_jax.models.variants import model_config

SMALL = {"width": 32, "heads": 4, "depth": 3, "mlp_dim": 40, "image_size": (8, 12)}  # 7 tokens


@pytest.fixture(params=["fused", "flat"])
def kind(request):
    """How the blocks are written out."""
    return request.param


def losses_and_gradients(
    config, mesh_shape=(1, 1, 1), key=None, kind="fused", is_first_enough=False, **options
):
    """Of blocks that are written out and of plain ones, on a mesh: of tokens, and of parameters."""
    encoder, _ = scrambled(lambda: Encoder(config, rngs=nnx.Rngs(0)))
    _, params = nnx.split(encoder)
    x = random_normal(1, 4, config.tokens, config.width)
    mesh = jax.make_mesh(mesh_shape, ("replica", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)

    def run(kind, **options):
        changed = dataclasses.replace(config, attention=kind, **options)
        definition = nnx.graphdef(nnx.eval_shape(lambda: Encoder(changed, rngs=nnx.Rngs(0))))

        @functools.partial(jax.value_and_grad, argnums=(0, 1))
        def loss(params, x):
            encoded = nnx.merge(definition, params)(x, key, is_first_enough=is_first_enough)
            assert encoded.shape[1] == (1 if is_first_enough else config.tokens)
            return jnp.sin(encoded).sum()

        with jax.set_mesh(mesh):
            return jax.jit(loss)(params, x)

    return run(kind, **options), run("plain")


def assert_same(found, expected, tolerance=1e-4):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=tolerance * scale + 1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scan": False},
        {"remat": "qkv"},
        {"remat": "full"},
        {"remat": "full", "scan": False},
    ],
    ids=str,
)
def test_blocks_that_are_written_out_equal_plain_ones(interpreted, kind, options):
    config = model_config("B/4", **SMALL)
    assert_same(*losses_and_gradients(config, kind=kind, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"layer_scale": 0.5},
        {"positions_at": "shared"},
        {"positions_at": "every_layer"},
        {"positions_at": "every_layer", "remat": "full"},
        {"registers": 3},
        {"pooling": "gap"},
        {"activation": "gelu", "norm_epsilon": 1e-3},
    ],
    ids=str,
)
def test_whatever_a_block_may_have(interpreted, kind, options):
    assert_same(*losses_and_gradients(model_config("B/4", **SMALL, **options), kind=kind))


@pytest.mark.parametrize("shape", [(2, 2, 1), (2, 2, 2), (1, 1, 2)], ids=str)
def test_on_a_mesh(interpreted, kind, shape):
    assert_same(*losses_and_gradients(model_config("B/4", **SMALL), shape, kind=kind))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scan": False},
        {"remat": "full"},
        {"positions_at": "shared"},
        {"positions_at": "every_layer", "scan": False},
        {"registers": 3, "activation": "gelu"},
        {"depth": 1},
    ],
    ids=str,
)
def test_the_last_block_for_the_first_token_only(interpreted, kind, options):
    config = model_config("B/4", **SMALL | options)
    assert_same(*losses_and_gradients(config, kind=kind, is_first_enough=True))


@pytest.mark.parametrize("shape", [(2, 2, 1), (2, 2, 2)], ids=str)
def test_the_first_token_on_a_mesh(interpreted, kind, shape):
    config = model_config("B/4", **SMALL)
    assert_same(*losses_and_gradients(config, shape, kind=kind, is_first_enough=True))


@pytest.mark.parametrize("is_first_enough", [False, True])
def test_stochastic_depth_is_that_of_plain_blocks(interpreted, kind, is_first_enough):
    config = model_config("B/4", **SMALL, stochastic_depth=0.6)
    losses = functools.partial(
        losses_and_gradients, config, kind=kind, is_first_enough=is_first_enough
    )
    found, expected = losses(key=jax.random.key(3))
    assert_same(found, expected)
    without, _ = losses()
    assert abs(float(found[0] - without[0])) > 0.1


@pytest.mark.parametrize(
    ("remat", "is_first_enough"),
    [("none", False), ("qkv", False), ("full", False), ("none", True)],
)
def test_on_cpus_dropout_is_that_of_plain_blocks(remat, is_first_enough):
    config = model_config("B/4", **SMALL, dropout=0.3)
    losses = functools.partial(
        losses_and_gradients, config, kind="flat", is_first_enough=is_first_enough
    )
    found, expected = losses(key=jax.random.key(3), remat=remat)
    assert_same(found, expected)
    without, _ = losses()
    assert abs(float(found[0] - without[0])) > 0.1


@pytest.mark.parametrize(
    ("remat", "is_first_enough"),
    [("none", False), ("qkv", False), ("full", False), ("none", True)],
)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 2)], ids=str)
def test_both_directions_draw_the_same_noise(interpreted, is_first_enough, shape, remat):
    """The gradient is that of the loss with this noise: by differences along one direction."""
    config = model_config("B/4", **SMALL, dropout=0.3, attention="fused", remat=remat)
    encoder, _ = scrambled(lambda: Encoder(config, rngs=nnx.Rngs(0)))
    definition, params = nnx.split(encoder)
    x = random_normal(1, 4, config.tokens, config.width)
    direction = jax.tree.map(lambda p: random_normal(5, *p.shape) * 1e-3, params)

    def loss(amount, key):
        moved = jax.tree.map(lambda p, d: p + amount * d, params, direction)
        encoded = nnx.merge(definition, moved)(x, key, is_first_enough=is_first_enough)
        return jnp.sin(encoded).sum()

    mesh = jax.make_mesh(shape, ("replica", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        run = jax.jit(jax.value_and_grad(loss))
        key = jax.random.key(3)
        (_, slope), (more, _), (less, _) = run(0.0, key), run(1.0, key), run(-1.0, key)
        assert (more - less) / 2 == pytest.approx(float(slope), rel=0.02)
        other, _ = run(0.0, jax.random.key(4))
        assert abs(float(other - (more + less) / 2)) > 0.1


def test_dropout_zeroes_its_share_and_keeps_the_mean(interpreted):
    x = jnp.ones((512, 256))
    kept = fused_blocks._dropout(x, 0.1, jax.random.key(0), BATCH_SPEC)
    assert float((kept == 0).mean()) == pytest.approx(0.1, abs=0.005)
    assert float(kept.mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("is_first_enough", [False, True])
def test_in_bfloat16_gradients_are_as_good_as_those_of_plain_blocks(
    interpreted, kind, is_first_enough
):
    config = model_config("B/4", **SMALL)
    options = {"kind": kind, "is_first_enough": is_first_enough}
    truth = losses_and_gradients(config, **options)[1]
    low = dataclasses.replace(config, dtype="bfloat16")
    found, plain = losses_and_gradients(low, **options)

    def error(one):
        pairs = zip(jax.tree.leaves(one[1]), jax.tree.leaves(truth[1]), strict=True)
        return np.mean([np.abs(x - y).mean() / np.abs(y).mean() for x, y in pairs])

    assert error(found) < 1.3 * error(plain)


def test_without_a_gradient_nothing_is_kept(interpreted):
    config = model_config("B/4", **SMALL, attention="fused")
    encoder = Encoder(config, rngs=nnx.Rngs(0))
    text = str(jax.make_jaxpr(lambda x: encoder(x))(random_normal(1, 4, 7, 32)))
    assert set(re.findall(r"empty\[[^]]*shape=\((\d+)", text)) == {"1"}  # slots


def test_on_cpus_a_block_keeps_what_it_says():
    def kept(remat):
        """Numbers for each token and layer."""
        config = model_config("B/4", **SMALL, attention="flat", remat=remat)
        definition, params = nnx.split(Encoder(config, rngs=nnx.Rngs(0)))
        x = random_normal(1, 4, config.tokens, config.width)
        backward = jax.eval_shape(
            lambda params: jax.vjp(lambda p: nnx.merge(definition, p)(x), params)[1], params
        )
        return sum(leaf.size for leaf in jax.tree.leaves(backward)) / x[..., 0].size / config.depth

    assert kept("none") - kept("qkv") == pytest.approx(3 * 32)
    # Besides, sums of 4 heads, x between attention and MLP, and 40 hidden units.
    assert kept("qkv") - kept("full") == pytest.approx(4 + 32 + 40)


def test_on_cpus_there_is_room_for_gradients_before_the_first_block():
    config = model_config("B/4", **SMALL, attention="flat")
    definition, params = nnx.split(Encoder(config, rngs=nnx.Rngs(0)))
    x = random_normal(1, 4, config.tokens, config.width)
    gradient = jax.jit(jax.grad(lambda params: nnx.merge(definition, params)(x).sum()))
    text = gradient.lower(params).compile().as_text()
    forward, _ = re.findall(r"= (\(.*\)) while\(", text)
    kernels = "f32[3,32,40]"  # of the first layer of each MLP, and as much for their gradients
    assert forward.count(kernels) == 2


@pytest.mark.parametrize(("dtype", "stacks"), [("bfloat16", 1), ("float32", 2)])
def test_gradients_take_the_place_of_weights_that_were_cast(interpreted, kind, dtype, stacks):
    config = model_config("B/4", **SMALL, attention=kind, dtype=dtype)
    definition, params = nnx.split(Encoder(config, rngs=nnx.Rngs(0)))
    x = random_normal(1, 3, config.tokens, config.width).astype(dtype)
    gradient = jax.grad(lambda params: nnx.merge(definition, params)(x).astype(float).sum())
    [backward] = [
        equation
        for equation in jax.make_jaxpr(gradient)(params).eqns
        if equation.primitive.name == "scan" and equation.params["reverse"]
    ]
    kernels = [variable.aval.shape for variable in backward.invars].count((3, 32, 40))
    assert kernels == stacks


def test_an_image_that_devices_share_is_computed_by_plain_blocks():
    with jax.set_mesh(jax.make_mesh((1, 1, 2), ("replica", "fsdp", "tensor"))):
        assert chosen("flat") == "plain" and chosen("auto") == "plain"
    assert chosen("flat") == "flat" and chosen("auto") == "flat"
