"""Multi-head self-attention (appendix A), with one fused projection for query, key and value.

Written out rather than taken from nnx.MultiHeadAttention: the fused projection is one matmul
instead of three, and everything that attends in this house goes through `attend`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

# Xavier-uniform for each of query, key and value: the fused kernel is [width, 3 width], whose
# average fan is twice that of one of them.
_qkv_init = nnx.initializers.variance_scaling(2.0, "fan_avg", "uniform")


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """softmax(q kᵀ / √d) v over [batch, token, head, channel], the softmax in float32."""
    query = query * query.shape[-1] ** -0.5
    logits = jnp.einsum("bqhc,bkhc->bhqk", query, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
    return jnp.einsum("bhqk,bkhc->bqhc", weights, value)


class SelfAttention(nnx.Module):
    """x [batch, token, width] -> the same shape."""

    def __init__(self, width: int, heads: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        channels = width // heads
        self.qkv = nnx.LinearGeneral(
            width,
            (3, heads, channels),
            kernel_init=_qkv_init,
            dtype=dtype,
            rngs=rngs,
        )
        self.out = nnx.LinearGeneral(
            (heads, channels),
            width,
            axis=(-2, -1),
            kernel_init=nnx.initializers.xavier_uniform(),
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        query, key, value = jnp.unstack(self.qkv(x), axis=2)
        return self.out(attend(query, key, value))
