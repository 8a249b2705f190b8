"""The TPU kernel against plain attention: values and gradients, interpreted on the CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, SingleDeviceSharding

from tests.models.scrambled import random_normal, scrambled
from vit_jax.models import attention
from vit_jax.models.attention import SelfAttention, attend
from vit_jax.models.encoder import AxialBlock
from vit_jax.models.fused_attention import Sizes, fused_attention
from vit_jax.models.variants import model_config
from vit_jax.tpu.plan import tpu_devices
from vit_jax.tpu.topologies import topology


def plain(qkv, bias, out_kernel, heads, tokens, line=None):
    batch, rows, width = qkv.shape
    line = line or tokens
    parts = (qkv + bias)[:, :tokens].reshape(batch, tokens // line, line, 3, heads, -1)
    mixed = attend(*jnp.unstack(parts, axis=3)).reshape(batch, tokens, width // 3)
    return jnp.pad(mixed @ out_kernel, ((0, 0), (0, rows - tokens), (0, 0)))


def value_and_gradients(function, tokens, heads, channels, dtype, line=None, filling=0):
    keys, width, rows = jax.random.split(jax.random.key(0), 4), heads * channels, tokens + filling
    shapes = (2, rows, 3 * width), (3 * width,), (width, 24), (2, rows, 24)
    qkv, bias, out_kernel, weight = (  # the same numbers for each type
        jax.random.normal(key, shape, "bfloat16").astype(dtype)
        for key, shape in zip(keys, shapes, strict=True)
    )
    weight = weight.at[:, tokens:].set(0)  # nothing depends on what fills up

    @jax.jit
    def run(*arrays):
        value, backward = jax.vjp(lambda *x: function(*x, heads, tokens, line), *arrays)
        return value[:, :tokens], *backward(weight)

    return run(qkv, bias, out_kernel)


@pytest.mark.parametrize(
    ("tokens", "heads", "channels", "line"),
    [
        *((tokens, 2, 64, None) for tokens in (50, 197, 257, 577, 785, 1025)),
        *((197, 2, channels, None) for channels in (80, 88, 104)),
        (197, 3, 64, None),  # an odd one is left when heads are paired
        (13, 3, 4, None),  # heads that fill no register together
        (196, 2, 64, 14),  # lines of axial attention
        (577, 4, 64, None),
    ],
)
def test_the_kernel_equals_plain_attention(interpreted, tokens, heads, channels, line):
    arguments = (tokens, heads, channels, "float32", line)
    found, expected = (value_and_gradients(f, *arguments) for f in (fused_attention, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * np.abs(other).max())


def test_what_fills_up_registers_is_not_seen(interpreted):
    arguments = (45, 2, 64, "float32", None, 3)
    found, expected = (value_and_gradients(f, *arguments) for f in (fused_attention, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * np.abs(other).max())
    assert not np.abs(found[1][:, 45:]).max()


def test_in_bfloat16_it_is_no_further_from_the_truth(interpreted):
    truth = value_and_gradients(plain, 197, 2, 64, "float32")

    def errors(function):
        found = value_and_gradients(function, 197, 2, 64, "bfloat16")
        return [np.abs(x - y).mean() for x, y in zip(found, truth, strict=True)]

    for fused, usual in zip(errors(fused_attention), errors(plain), strict=True):
        assert fused <= 1.1 * usual


@pytest.mark.parametrize(
    ("tokens", "step_heads"), [(197, 12), (257, 12), (577, 6), (785, 2), (1025, 2)]
)
def test_long_sequences_take_several_steps(tokens, step_heads):
    assert Sizes(tokens, tokens, 12, 64, tokens).step_heads == step_heads


# ---- in a network


def loss_and_gradient(layer, attention, x):
    """Of a layer that computes its attention in this way."""
    definition, params = nnx.split(layer)

    @jax.jit
    @jax.value_and_grad
    def run(params):
        model = nnx.merge(definition, params)
        for _, module in nnx.iter_modules(model):
            if isinstance(module, SelfAttention):
                module.attention = attention
        return jnp.sin(model(x)).sum()

    return run(params)


def assert_same(layer, x, **tolerance):
    found, expected = (loss_and_gradient(layer, kind, x) for kind in ("fused", "plain"))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-4, **tolerance), found, expected
    )


def layer(**options):
    return scrambled(
        lambda: SelfAttention(32, 4, 5, **options, dtype=jnp.float32, rngs=nnx.Rngs(0))
    )


def test_a_layer_is_the_same_with_the_kernel(interpreted):
    assert_same(layer()[0], random_normal(1, 2, 5, 32))


@pytest.mark.parametrize("tensor", [1, 2])
def test_devices_have_their_own_images_and_heads(interpreted, tensor):
    mesh = jax.make_mesh(
        (2, 2, tensor), ("replica", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3
    )
    with jax.set_mesh(mesh):
        assert_same(layer()[0], random_normal(1, 4, 5, 32))


def test_rows_and_columns_of_axial_attention(interpreted):
    config = model_config("Axial-B/8", width=32, heads=4, mlp_dim=20, image_size=(24, 32))
    block, _ = scrambled(lambda: AxialBlock(config, rngs=nnx.Rngs(0)))
    assert_same(block, random_normal(1, 2, 3, 4, 32), rtol=1e-4)


@pytest.mark.parametrize("options", [{"relative": True}, {"qk_norm": True}])
def test_what_the_kernel_does_not_know_is_computed_as_ever(options, monkeypatch):
    monkeypatch.setattr(attention, "fused_attention", None)
    assert_same(layer(**options)[0], random_normal(1, 2, 5, 32))


# ---- by the TPU compiler


@pytest.mark.parametrize(
    ("chip", "tokens", "heads", "channels", "line", "dtype"),
    [
        ("v5e", 197, 12, 64, None, "bfloat16"),
        ("v5e", 196, 12, 64, 14, "float32"),
        ("v5e", 50, 4, 104, None, "bfloat16"),
        ("v5e", 577, 4, 64, None, "bfloat16"),
        ("v6e", 50, 16, 88, None, "bfloat16"),
    ],
)
def test_the_kernel_is_compiled_for_a_tpu(chip, tokens, heads, channels, line, dtype):
    one = SingleDeviceSharding(tpu_devices(topology(f"{chip}-1"))[0])
    width = heads * channels
    arrays = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=one)
        for shape in ((64, tokens, 3 * width), (3 * width,), (width, width))
    ]

    def run(*arrays):
        result, backward = jax.vjp(lambda *x: fused_attention(*x, heads, tokens, line), *arrays)
        return backward(result)

    text = jax.jit(run).lower(*arrays).compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 2
