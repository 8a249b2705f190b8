"""The Transformer encoder (Fig. 1, equations 2-4): pre-norm blocks, stacked and scanned."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.attention import LAYER_NORM_EPSILON, SelfAttention
from vit_jax.models.config import ViTConfig
from vit_jax.models.positions import Positions
from vit_jax.models.stack import scan, stack
from vit_jax.models.stochastic import drop_path, dropout


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
    """x + attention(norm(x)), then x + mlp(norm(x)), over [..., token, width]."""

    def __init__(self, config: ViTConfig, tokens: int, *, rngs: nnx.Rngs) -> None:
        dtype = jnp.dtype(config.dtype)
        norm = functools.partial(
            nnx.LayerNorm, config.width, epsilon=LAYER_NORM_EPSILON, dtype=dtype, rngs=rngs
        )
        self.attention_norm = norm()
        self.attention = SelfAttention(
            config.width,
            config.heads,
            relative_to=tokens if config.positions == "relative" else 0,
            qk_norm=config.qk_norm,
            dtype=dtype,
            rngs=rngs,
        )
        self.mlp_norm = norm()
        self.mlp = Mlp(config.width, config.mlp_dim, dropout=config.dropout, dtype=dtype, rngs=rngs)
        if config.layer_scale:
            self.attention_scale, self.mlp_scale = (
                nnx.Param(jnp.full(config.width, config.layer_scale, jnp.float32)) for _ in range(2)
            )
        self.config = config

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None = None,
        drop_rate: jax.Array | float = 0.0,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        config = self.config
        keys = [None] * 5 if key is None else list(jax.random.split(key, 5))
        if positions is not None:
            x = x + positions.astype(x.dtype)
        branch = dropout(self.attention(self.attention_norm(x)), config.dropout, keys[0])
        if config.layer_scale:
            branch = branch * self.attention_scale.astype(x.dtype)
        x = x + drop_path(branch, drop_rate, keys[1])
        branch = self.mlp(self.mlp_norm(x), (keys[2], keys[3]))
        if config.layer_scale:
            branch = branch * self.mlp_scale.astype(x.dtype)
        return x + drop_path(branch, drop_rate, keys[4])


class AxialBlock(nnx.Module):
    """A block along rows, then one along columns, over [batch, row, column, width] (D.6)."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        rows, columns = config.grid
        # A row has a token for each column.
        self.row = Block(config, columns, rngs=rngs)
        self.column = Block(config, rows, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None = None,
        drop_rate: jax.Array | float = 0.0,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        row_key, column_key = (None, None) if key is None else jax.random.split(key)
        x = self.row(x, row_key, drop_rate, positions)
        return self.column(x.swapaxes(1, 2), column_key, drop_rate).swapaxes(1, 2)


class Encoder(nnx.Module):
    """Tokens [batch, token, width] -> normalised tokens of the same shape."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        if config.axial:
            self.blocks = stack(lambda rngs: AxialBlock(config, rngs=rngs), config.depth, rngs)
        else:
            self.blocks = stack(
                lambda rngs: Block(config, config.tokens, rngs=rngs), config.depth, rngs
            )
        if config.positions_at == "shared":
            self.positions = Positions(config, rngs=rngs)
        elif config.positions_at == "every_layer":
            self.layer_positions = stack(
                lambda rngs: Positions(config, rngs=rngs), config.depth, rngs
            )
        self.norm = nnx.LayerNorm(
            config.width, epsilon=LAYER_NORM_EPSILON, dtype=jnp.dtype(config.dtype), rngs=rngs
        )
        self.config = config

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        config, shape = self.config, x.shape
        keys = drop_rates = None
        if key is not None and (config.dropout or config.stochastic_depth):
            keys = jax.random.split(key, config.depth)
            drop_rates = jnp.linspace(0, config.stochastic_depth, config.depth)
        per_layer, constant = (keys, drop_rates), ()
        if config.positions_at == "shared":
            constant = (self._laid_out(self.positions()),)
        elif config.positions_at == "every_layer":
            graphdef, params = nnx.split(self.layer_positions)
            tables = jax.vmap(lambda params: nnx.merge(graphdef, params)(), axis_size=config.depth)
            per_layer = (*per_layer, jax.vmap(self._laid_out)(tables(params)))
        x = scan(self.blocks, config.remat, self._laid_out(x), per_layer, constant)
        return self.norm(x).reshape(shape)

    def _laid_out(self, x: jax.Array) -> jax.Array:
        """[batch, token, width] as the blocks take it: a grid where they are axial.

        Positions, which registers have none of, are filled up with zeros.
        """
        if self.config.axial:
            return x.reshape(len(x), *self.config.grid, x.shape[-1])
        return jnp.pad(x, ((0, 0), (0, self.config.tokens - x.shape[1]), (0, 0)))
