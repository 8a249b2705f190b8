"""Standardised convolutions and GroupNorm: what the ResNets are made of (Qiao et al., 2019).

The hybrids and the BiT networks standardise, normalise and pad in different ways; weights of the
one give wrong answers in the other's arithmetic. A `Flavour` holds all that differs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.activations import over_batch

GROUPS = 32


class Flavour(NamedTuple):
    """One family's arithmetic."""

    norm_epsilon: float
    same_padding: bool  # pads as TensorFlow's SAME, else k // 2 zeros on each side
    epsilon_on_variance: float  # (w - mean) / (sqrt(variance + this) + that)
    epsilon_on_deviation: float


HYBRID = Flavour(1e-6, True, 0.0, 1e-5)
BIT = Flavour(1e-5, False, 1e-10, 0.0)


class StandardizedConv(nnx.Module):
    """A k x k convolution without bias, whose kernel is standardised for each output channel."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        flavour: Flavour,
        *,
        stride: int = 1,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        shape = (size, size, inputs, outputs)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
        self.stride, self.flavour, self.dtype = stride, flavour, dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        size = self.kernel.shape[0]
        y = jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            standardized(self.kernel[...], self.flavour).astype(self.dtype),
            (self.stride, self.stride),
            "SAME" if self.flavour.same_padding else [(size // 2, size // 2)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return over_batch(y)  # not over its channels, as the kernel


def standardized(kernel: jax.Array, flavour: Flavour) -> jax.Array:
    """Mean 0 and deviation 1 over all inputs of each output channel."""
    kernel = kernel - kernel.mean(axis=(0, 1, 2), keepdims=True)
    variance = (kernel**2).mean(axis=(0, 1, 2), keepdims=True)
    # The floor keeps the root's gradient finite where a kernel is constant; it is far below either
    # epsilon, and adds nothing to a variance that a float32 can tell from 0.
    deviation = jnp.sqrt(jnp.maximum(variance + flavour.epsilon_on_variance, 1e-30))
    return kernel / (deviation + flavour.epsilon_on_deviation)


def group_norm(
    channels: int,
    flavour: Flavour,
    *,
    scale: float = 1.0,
    dtype: jnp.dtype,
    rngs: nnx.Rngs,
) -> nnx.GroupNorm:
    """GroupNorm of 32 groups; statistics in float32. The last one of a unit starts at scale 0."""
    return nnx.GroupNorm(
        channels,
        num_groups=GROUPS,
        epsilon=flavour.norm_epsilon,
        scale_init=nnx.initializers.constant(scale),
        dtype=dtype,
        rngs=rngs,
    )


def max_pool(x: jax.Array, flavour: Flavour) -> jax.Array:
    """3 x 3, stride 2."""
    if not flavour.same_padding:  # the BiT release pads with zeros, and its values may be negative
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    padding = "SAME" if flavour.same_padding else "VALID"
    return nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding=padding)
