"""Multi-head attention (appendix A); everything that attends in this house goes through `attend`.

Written out rather than taken from nnx.MultiHeadAttention: query, key and value come from one matmul
instead of three, and positions can enter the logits.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.activations import devices_per_image, on_mesh
from vit_jax.models.fused_attention import fused_attention

LAYER_NORM_EPSILON = 1e-6


class Relative(NamedTuple):
    """Embeddings of the offset between two tokens, each [query, key, channel] or None."""

    to_query: jax.Array | None = None  # multiplied with the query, added to the logits
    to_key: jax.Array | None = None  # likewise with the key
    to_value: jax.Array | None = None  # added to the value


NO_OFFSETS = Relative()


class AxialWeights(NamedTuple):
    """Who attends to whom where tokens are a grid and see those on their line."""

    along_rows: jax.Array  # [batch, row, head, query, key]: its places are columns
    along_columns: jax.Array  # [batch, column, head, query, key]: its places are rows


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float | None = None,
    relative: Relative = NO_OFFSETS,
    with_weights: bool = False,
) -> Any:
    """softmax(q kᵀ / √d) v over [..., token, head, channel], the softmax in float32.

    `with_weights`: a pair of that and the softmax, float32 [..., head, query, key], to look at.
    """
    query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    logits = product("...qhc,...khc->...hqk", query, key)
    if relative.to_query is not None:
        logits += product("...qhc,qkc->...hqk", query, relative.to_query.astype(query.dtype))
    if relative.to_key is not None:
        logits += product("...khc,qkc->...hqk", key, relative.to_key.astype(key.dtype))
    softmax = jax.nn.softmax(logits, axis=-1)
    weights = softmax.astype(value.dtype)
    result = jnp.einsum("...hqk,...khc->...qhc", weights, value)
    if relative.to_value is not None:
        result += jnp.einsum("...hqk,qkc->...qhc", weights, relative.to_value.astype(value.dtype))
    return (result, softmax) if with_weights else result


def _lines_at_once(lines: list[int], tokens: int) -> int:
    """Rows of axial attention that one matmul is for: a row alone would leave it almost empty."""
    count = math.prod(lines)
    return max(n for n in range(1, count + 1) if count % n == 0 and n * tokens <= max(256, tokens))


def chosen(attention: str) -> str:
    """What "auto" means here: kernels on TPUs, where it is known how arrays are split; on CPUs
    "flat", where an image is not shared by devices."""
    if attention == "auto":
        is_known = on_mesh() or jax.device_count() == 1
        kinds = {"tpu": "fused" if is_known else "plain", "cpu": "flat"}
        attention = kinds.get(jax.default_backend(), "plain")
    return "plain" if attention == "flat" and devices_per_image() > 1 else attention


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
    """x [..., token, width] -> the same shape; tokens see those with the same leading indices.

    The kernel takes more rows than there are tokens: what fills up a register, and is not seen.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        tokens: int,
        *,
        relative: bool = False,  # offsets between tokens have embeddings
        qk_norm: bool = False,
        attention: str = "plain",  # or "fused", "flat", "auto": how plain attention is computed
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
        if relative:
            shape = (2 * tokens - 1, channels)
            self.offsets = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape))
        self.tokens, self.relative, self.qk_norm, self.attention = (
            tokens, relative, qk_norm, attention
        )  # fmt: skip

    def __call__(self, x: jax.Array, *, with_weights: bool = False) -> Any:
        """`with_weights`: as in `attend`, and never by the kernel."""
        if self.kind == "fused" and not with_weights:
            qkv = x @ by_share(self.qkv.kernel[...]).astype(x.dtype)
            return self._mixed(qkv) + self.out.bias[...].astype(x.dtype)
        query, key, value = jnp.unstack(self.qkv(x), axis=-3)
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        # Shared by the heads, as in Shaw et al. (2018).
        offsets = Relative(by_offset(self.offsets[...])) if self.relative else NO_OFFSETS
        if not with_weights:
            return self.out(attend(query, key, value, relative=offsets))
        mixed, weights = attend(query, key, value, relative=offsets, with_weights=True)
        return self.out(mixed), weights

    @property
    def kind(self) -> str:
        """How it is computed here. ("flat" concerns whole blocks; by itself it is plain.)"""
        return "plain" if self.relative or self.qk_norm else chosen(self.attention)

    def _mixed(self, qkv: jax.Array) -> jax.Array:
        """What follows the projection, its bias included, by the kernel; `out` without its bias."""
        *lines, rows, width = qkv.shape
        together = rows * _lines_at_once(lines[1:], rows)
        tokens = together - (rows - self.tokens) * (together == rows)
        mixed = fused_attention(
            qkv.reshape(-1, together, width),
            by_share(self.qkv.bias[...]),
            self.out.kernel[...].reshape(-1, width // 3),
            self.out.kernel.shape[0] // devices_per_image(),
            tokens,
            self.tokens,
        )
        return mixed.reshape(*lines, rows, width // 3)


def by_share(x: jax.Array) -> jax.Array:
    """[..., 3, head, channel] -> [..., flat], one after the other what devices have of the heads.

    Where they share no image this is a plain reshape.
    """
    *lead, parts, _, channels = x.shape
    split = x.reshape(*lead, parts, devices_per_image(), -1, channels)
    return jnp.moveaxis(split, -3, -4).reshape(*lead, -1)
