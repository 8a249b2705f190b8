"""Norms and attention over [all tokens, channel] without kernels: the parts of blocks on CPUs.

Each is to its name in fused_norm and fused_attention what XLA is to a kernel. Heads come first in
attention: for a matmul of each head the others would have to be skipped in every row. As they are
copied for that anyway, tokens are filled up to whole vectors: with 200 instead of 197 some of these
matmuls take half of the time.
"""

import jax
import jax.numpy as jnp

from vit_jax.models.fused_attention import Sizes
from vit_jax.models.fused_norm import gradient_of_normal, normal
from vit_jax.models.kept import Kept

_VECTOR = 8  # numbers that a CPU computes with at once


def normed(x: Kept, scale: jax.Array, shift: jax.Array, images: int, epsilon: float) -> jax.Array:
    """x, normalised in float32."""
    value = x.read()
    return (normal(value, epsilon)[0] * scale + shift).astype(value.dtype)


def normed_backward(
    x: Kept,
    beside: jax.Array,
    outer: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    images: int,
    epsilon: float,
    with_normal: bool = True,
) -> tuple[jax.Array, ...]:
    """The gradient of what was normalised, `outer` -> that of x, to which `beside` is added; sums
    over all tokens, float32 [3, width]: `beside`, and what scale and shift get; and x, normalised.
    """
    value = x.read()
    of_x, to_sum, whole = gradient_of_normal(value, beside, outer, scale, shift, epsilon)
    again = (whole.astype(value.dtype),) if with_normal else ()
    return of_x.astype(value.dtype), jnp.stack([summed(x) for x in to_sum]), *again


def attended(qkv: Kept, sizes: Sizes) -> tuple[jax.Array, jax.Array]:
    """[all tokens, 3 width], biases included -> mixed values likewise, and the log of the sum of
    each query's exponentials, float32 [batch, head, token]."""
    query, key, value = _by_head(qkv.read(), sizes)
    logits = _of_tokens(sizes, _product("bhqc,bhkc->bhqk", query * sizes.channels**-0.5, key))
    most = logits.max(axis=-1, keepdims=True)
    weights = jnp.exp(logits - most)
    total = weights.sum(axis=-1, keepdims=True)
    mixed = _product("bhqk,bhkc->bhqc", weights.astype(value.dtype), value) / total
    sums = (most + jnp.log(total))[:, :, : sizes.rows, 0]
    return _flat(mixed, sizes).astype(value.dtype), sums


def attended_backward(
    qkv: Kept, sums: jax.Array, gradient: jax.Array, sizes: Sizes
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gradient of the mixed values -> that of qkv, its sum over images and tokens in float32,
    and the mixed values."""
    query, key, value = _by_head(qkv.read(), sizes)
    (outer,) = _by_head(gradient, sizes)
    dtype, scale = value.dtype, sizes.channels**-0.5
    query = query * scale
    logits = _of_tokens(sizes, _product("bhqc,bhkc->bhqk", query, key))
    weights = jnp.exp(logits - _filled_up(sums, 2)[..., None])
    inner = _product("bhqc,bhkc->bhqk", outer, value)
    weights_in_type = weights.astype(dtype)
    mixed = _product("bhqk,bhkc->bhqc", weights_in_type, value)
    slope = weights * (inner - (mixed * outer).sum(axis=-1, keepdims=True))
    slope = slope.astype(dtype)
    parts = (
        _product("bhqk,bhkc->bhqc", slope, key) * scale,
        _product("bhqk,bhqc->bhkc", slope, query),
        _product("bhqk,bhqc->bhkc", weights_in_type, outer),
    )
    of_qkv = jnp.concatenate([_flat(part, sizes) for part in parts], axis=1)
    return of_qkv.astype(dtype), summed(of_qkv), _flat(mixed, sizes).astype(dtype)


def summed(x: jax.Array) -> jax.Array:
    """Over all tokens, in float32: by a matmul, which reads rows where XLA's sum reads columns."""
    return _product("it,tc->ic", jnp.ones((1, len(x)), x.dtype), x)[0]


def _by_head(x: jax.Array, sizes: Sizes) -> list[jax.Array]:
    """[all tokens, parts x width] -> each part as [batch, head, token, channel], filled up."""
    parts = jnp.split(x, x.shape[1] // sizes.width, axis=1)
    shape = (-1, sizes.rows, sizes.heads, sizes.channels)
    return [_filled_up(part.reshape(shape).swapaxes(1, 2), 2) for part in parts]


def _flat(x: jax.Array, sizes: Sizes) -> jax.Array:
    """[batch, head, token, channel], filled up -> [all tokens, width]."""
    x = x[:, :, : sizes.rows].swapaxes(1, 2)
    return x.reshape(-1, sizes.width)


def _filled_up(x: jax.Array, axis: int) -> jax.Array:
    """With zeros, to whole vectors."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % _VECTOR)
    return jnp.pad(x, widths)


def _of_tokens(sizes: Sizes, logits: jax.Array) -> jax.Array:
    """Logits, of which nobody sees the filling."""
    is_token = jnp.arange(logits.shape[-1]) < sizes.tokens
    return jnp.where(is_token, logits, -jnp.inf)


def _product(equation: str, one: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.einsum(equation, one, other, preferred_element_type=jnp.float32)
