"""The TPU kernels of a layer norm against flax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.fused_norm import normed, normed_backward
from vit_jax.models.kept import Kept

EPSILON = 1e-6


def plain(x, scale, shift):
    norm = nnx.LayerNorm(x.shape[-1], epsilon=EPSILON, dtype=x.dtype, rngs=nnx.Rngs(0))
    norm.scale[...], norm.bias[...] = scale, shift
    return norm(x)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_a_norm_in_a_stack_equals_that_of_flax(interpreted, dtype, tolerance):
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = (2, 24, 32), (32,), (32,), (24, 32), (24, 32)  # three images of eight tokens
    stack, scale, shift, beside, outer = (
        jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)
    )
    stack, beside, outer = (x.astype(dtype) for x in (stack, beside, outer))

    @jax.jit
    def found():
        x = Kept(stack, jnp.int32(1))
        normal = normed(x, scale, shift, 3, EPSILON)
        of_x, sums, again = normed_backward(x, beside, outer, scale, shift, 3, EPSILON)
        same, *_ = normed_backward(x, beside, outer, scale, shift, 3, EPSILON, with_normal=False)
        return normal, again, of_x, same, *sums

    @jax.jit
    def expected():
        normal, backward = jax.vjp(plain, stack[1], scale, shift)
        of_x, of_scale, of_shift = backward(outer)
        of_x += beside
        return normal, normal, of_x, of_x, beside.sum(axis=0), of_scale, of_shift

    for one, other in zip(found(), expected(), strict=True):
        one, other = (np.asarray(y, jnp.float32) for y in (one, other))
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())
