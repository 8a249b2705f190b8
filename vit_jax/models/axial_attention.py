"""Attention along one axis of a feature map, in place of a convolution (Wang et al., 2020).

Position-sensitive: the offset between two places has an embedding for the query, one for the key
and one for the value. Axial-ViTs (encoder.py) do without: their tokens carry positions.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.activations import over_batch
from vit_jax.models.attention import AxialWeights, Relative, attend, by_offset
from vit_jax.models.convolution import HYBRID, group_norm


class AxialAttention(nnx.Module):
    """x [batch, ..., place, channel] -> the same shape; a place sees those on its line."""

    def __init__(
        self, places: int, channels: int, heads: int, *, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        per_head = channels // heads
        self.qkv = nnx.Linear(
            channels,
            2 * channels,  # queries and keys have half as many channels as values
            use_bias=False,
            kernel_init=nnx.initializers.normal(channels**-0.5),
            dtype=dtype,
            rngs=rngs,
        )
        self.qkv_norm = group_norm(2 * channels, HYBRID, dtype=dtype, rngs=rngs)
        shape = (2 * places - 1, 2 * per_head)
        offsets = per_head**-0.5 * jax.random.normal(rngs.params(), shape)
        self.offsets = nnx.Param(offsets)  # for query, key and value, side by side as in qkv
        self.norm = group_norm(channels, HYBRID, dtype=dtype, rngs=rngs)
        self.heads = heads

    def __call__(self, x: jax.Array, *, with_weights: bool = False) -> Any:
        """`with_weights`: as in `attend`."""
        qkv = self.qkv_norm(over_batch(self.qkv(x))).reshape(*x.shape[:-1], self.heads, -1)
        half = qkv.shape[-1] // 4
        query, key, value = jnp.split(qkv, (half, 2 * half), axis=-1)
        relative = jnp.split(by_offset(self.offsets[...]), (half, 2 * half), axis=-1)
        # Not divided by √d: the norm before has already fixed how large the logits are.
        mixed, weights = attend(
            query, key, value, scale=1.0, relative=Relative(*relative), with_weights=True
        )
        mixed = self.norm(mixed.reshape(x.shape))
        return (mixed, weights) if with_weights else mixed


class AxialMixer(nnx.Module):
    """What replaces a 3 x 3 convolution: attention along the height, then along the width."""

    def __init__(
        self,
        grid: tuple[int, int],
        channels: int,
        heads: int,
        *,
        stride: int,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        self.height = AxialAttention(grid[0], channels, heads, dtype=dtype, rngs=rngs)
        self.width = AxialAttention(grid[1], channels, heads, dtype=dtype, rngs=rngs)
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.height(x.swapaxes(1, 2)).swapaxes(1, 2)
        x = self.width(x)
        if self.stride == 1:
            return x
        window = (self.stride, self.stride)
        return nnx.avg_pool(
            x, window_shape=window, strides=window, padding="SAME", count_include_pad=False
        )

    def weights(self, x: jax.Array) -> AxialWeights:
        """Who attends to whom."""
        x, along_columns = self.height(x.swapaxes(1, 2), with_weights=True)
        _, along_rows = self.width(x.swapaxes(1, 2), with_weights=True)
        return AxialWeights(along_rows, along_columns)
