"""Multi-head attention (appendix A); everything that attends in this house goes through `attend`.

Written out rather than taken from nnx.MultiHeadAttention: query, key and value come from one matmul
instead of three, and positions can enter the logits.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

LAYER_NORM_EPSILON = 1e-6


class Relative(NamedTuple):
    """Embeddings of the offset between two tokens, each [query, key, channel] or None."""

    to_query: jax.Array | None = None  # multiplied with the query, added to the logits
    to_key: jax.Array | None = None  # likewise with the key
    to_value: jax.Array | None = None  # added to the value


NO_OFFSETS = Relative()


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float | None = None,
    relative: Relative = NO_OFFSETS,
) -> jax.Array:
    """softmax(q kᵀ / √d) v over [..., token, head, channel], the softmax in float32."""
    query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    logits = product("...qhc,...khc->...hqk", query, key)
    if relative.to_query is not None:
        logits += product("...qhc,qkc->...hqk", query, relative.to_query.astype(query.dtype))
    if relative.to_key is not None:
        logits += product("...khc,qkc->...hqk", key, relative.to_key.astype(key.dtype))
    weights = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
    result = jnp.einsum("...hqk,...khc->...qhc", weights, value)
    if relative.to_value is not None:
        result += jnp.einsum("...hqk,qkc->...qhc", weights, relative.to_value.astype(value.dtype))
    return result


def by_offset(table: jax.Array) -> jax.Array:
    """[2 n - 1, channel], a row for each offset -> [query, key, channel]; offset = query - key."""
    n = (len(table) + 1) // 2
    return table[jnp.arange(n)[:, None] - jnp.arange(n) + n - 1]


def projection(
    width: int, parts: int, heads: int, *, dtype: jnp.dtype, rngs: nnx.Rngs
) -> nnx.LinearGeneral:
    """[..., width] -> [..., part, head, channel]: query, key and value, or some, in one matmul."""
    # Xavier-uniform for each part on its own: the fan_out that this sees is that of all together.
    fans = (1 + parts) / 2
    return nnx.LinearGeneral(
        width,
        (parts, heads, width // heads),
        kernel_init=nnx.initializers.variance_scaling(fans, "fan_avg", "uniform"),
        dtype=dtype,
        rngs=rngs,
    )


def output(width: int, heads: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.LinearGeneral:
    """[..., head, channel] -> [..., width]."""
    return nnx.LinearGeneral(
        (heads, width // heads),
        width,
        axis=(-2, -1),
        kernel_init=nnx.initializers.xavier_uniform(),
        dtype=dtype,
        rngs=rngs,
    )


class SelfAttention(nnx.Module):
    """x [..., token, width] -> the same shape; tokens see those with the same leading indices."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        relative_to: int = 0,  # > 0: that many tokens, whose offsets have embeddings
        qk_norm: bool = False,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        self.qkv = projection(width, 3, heads, dtype=dtype, rngs=rngs)
        self.out = output(width, heads, dtype=dtype, rngs=rngs)
        channels = width // heads
        if qk_norm:
            norm = functools.partial(
                nnx.LayerNorm,
                channels,
                epsilon=LAYER_NORM_EPSILON,
                use_bias=False,
                dtype=dtype,
                rngs=rngs,
            )
            self.query_norm, self.key_norm = norm(), norm()
        if relative_to:
            shape = (2 * relative_to - 1, channels)
            self.offsets = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape))
        self.relative, self.qk_norm = bool(relative_to), qk_norm

    def __call__(self, x: jax.Array) -> jax.Array:
        query, key, value = jnp.unstack(self.qkv(x), axis=-3)
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        # Shared by the heads, as in Shaw et al. (2018).
        offsets = Relative(by_offset(self.offsets[...])) if self.relative else NO_OFFSETS
        return self.out(attend(query, key, value, relative=offsets))
