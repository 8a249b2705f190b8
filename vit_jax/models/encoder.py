"""The Transformer encoder (Fig. 1, equations 2-4): pre-norm blocks, stacked and scanned.

All blocks live in one tree whose leaves have a leading layer axis. The scan compiles one block
whatever the depth, and with rematerialisation it keeps one block's activations.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.attention import SelfAttention
from vit_jax.models.stochastic import drop_path, dropout
from vit_jax.models.variants import ViTConfig

LAYER_NORM_EPSILON = 1e-6


class Mlp(nnx.Module):
    """Dense, GELU (tanh approximation, as in the published weights), Dense."""

    def __init__(
        self, width: int, hidden: int, *, dropout: float, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        dense = functools.partial(
            nnx.Linear,
            kernel_init=nnx.initializers.xavier_uniform(),
            bias_init=nnx.initializers.normal(1e-6),
            dtype=dtype,
            rngs=rngs,
        )
        self.up = dense(width, hidden)
        self.down = dense(hidden, width)
        self.dropout = dropout

    def __call__(
        self, x: jax.Array, keys: tuple[jax.Array | None, ...] = (None, None)
    ) -> jax.Array:
        hidden = dropout(jax.nn.gelu(self.up(x), approximate=True), self.dropout, keys[0])
        return dropout(self.down(hidden), self.dropout, keys[1])


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        dtype = jnp.dtype(config.dtype)
        norm = functools.partial(
            nnx.LayerNorm, config.width, epsilon=LAYER_NORM_EPSILON, dtype=dtype, rngs=rngs
        )
        self.attention_norm = norm()
        self.attention = SelfAttention(config.width, config.heads, dtype=dtype, rngs=rngs)
        self.mlp_norm = norm()
        self.mlp = Mlp(config.width, config.mlp_dim, dropout=config.dropout, dtype=dtype, rngs=rngs)
        self.dropout = config.dropout

    def __call__(
        self, x: jax.Array, key: jax.Array | None = None, drop_rate: jax.Array | float = 0.0
    ) -> jax.Array:
        keys = [None] * 5 if key is None else list(jax.random.split(key, 5))
        branch = dropout(self.attention(self.attention_norm(x)), self.dropout, keys[0])
        x = x + drop_path(branch, drop_rate, keys[1])
        branch = self.mlp(self.mlp_norm(x), (keys[2], keys[3]))
        return x + drop_path(branch, drop_rate, keys[4])


class Encoder(nnx.Module):
    """Tokens [batch, token, width] -> normalised tokens of the same shape."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        make_blocks = nnx.vmap(lambda rngs: Block(config, rngs=rngs))
        self.blocks = make_blocks(rngs.split(config.depth))
        self.norm = nnx.LayerNorm(
            config.width, epsilon=LAYER_NORM_EPSILON, dtype=jnp.dtype(config.dtype), rngs=rngs
        )
        self.config = config

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        config = self.config
        block, params = nnx.split(self.blocks)
        keys = drop_rates = None
        if key is not None and (config.dropout or config.stochastic_depth):
            keys = jax.random.split(key, config.depth)
            drop_rates = jnp.linspace(0, config.stochastic_depth, config.depth)
        return self.norm(_scan_blocks(block, config.remat, params, x, keys, drop_rates))


# Jitted at module level so that a model called eagerly, as in a notebook, compiles its blocks
# once and not at every call; inside a jitted train step this jit is inlined.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _scan_blocks(
    block: nnx.GraphDef[Block],
    remat: str,
    params: nnx.State,
    x: jax.Array,
    keys: jax.Array | None,
    drop_rates: jax.Array | None,
) -> jax.Array:
    def body(x: jax.Array, layer: tuple) -> tuple[jax.Array, None]:
        params, key, drop_rate = layer
        return nnx.merge(block, params)(x, key, drop_rate), None

    # prevent_cse guards against undoing the rematerialisation, which a scan cannot do anyway.
    if remat == "full":
        body = jax.checkpoint(body, prevent_cse=False)
    elif remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        body = jax.checkpoint(body, prevent_cse=False, policy=policy)
    return jax.lax.scan(body, x, (params, keys, drop_rates))[0]
