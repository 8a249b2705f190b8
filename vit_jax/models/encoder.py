"""The Transformer encoder (Fig. 1, equations 2-4): pre-norm blocks, stacked and scanned."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.activations import devices_per_image, flat
from vit_jax.models.attention import AxialWeights, SelfAttention, by_share
from vit_jax.models.config import ViTConfig
from vit_jax.models.fused_attention import SUBLANES, Sizes
from vit_jax.models.fused_blocks import Extras, Spec, Weights, fused_blocks, gelu
from vit_jax.models.positions import Positions
from vit_jax.models.stack import See, scan, stack, watch
from vit_jax.models.stochastic import drop_path, dropout


class Mlp(nnx.Module):
    """Dense, GELU, Dense."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        dropout: float,
        activation: str = "gelu_tanh",
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
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
        self.dropout, self.activation = dropout, activation

    def __call__(
        self, x: jax.Array, keys: tuple[jax.Array | None, ...] = (None, None)
    ) -> jax.Array:
        hidden = dropout(gelu(self.up(x), self.activation), self.dropout, keys[0])
        return dropout(self.down(hidden), self.dropout, keys[1])


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), over [..., token, width]."""

    def __init__(self, config: ViTConfig, tokens: int, *, rngs: nnx.Rngs) -> None:
        dtype = jnp.dtype(config.dtype)
        norm = functools.partial(
            nnx.LayerNorm, config.width, epsilon=config.norm_epsilon, dtype=dtype, rngs=rngs
        )
        self.attention_norm = norm()
        self.attention = SelfAttention(
            config.width,
            config.heads,
            tokens,
            relative=config.positions == "relative",
            qk_norm=config.qk_norm,
            attention=config.attention,
            dtype=dtype,
            rngs=rngs,
        )
        self.mlp_norm = norm()
        self.mlp = Mlp(
            config.width,
            config.mlp_dim,
            dropout=config.dropout,
            activation=config.activation,
            dtype=dtype,
            rngs=rngs,
        )
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
        *,
        with_weights: bool = False,
    ) -> Any:
        """`with_weights`: a pair, with the attention's [..., head, query, key]."""
        config = self.config
        keys = [None] * 5 if key is None else list(jax.random.split(key, 5))
        if positions is not None:
            x = x + positions.astype(x.dtype)
        branch = self.attention(self.attention_norm(x), with_weights=with_weights)
        branch, weights = branch if with_weights else (branch, None)
        branch = dropout(branch, config.dropout, keys[0])
        if config.layer_scale:
            branch = branch * self.attention_scale.astype(x.dtype)
        x = x + drop_path(branch, drop_rate, keys[1])
        branch = self.mlp(self.mlp_norm(x), (keys[2], keys[3]))
        if config.layer_scale:
            branch = branch * self.mlp_scale.astype(x.dtype)
        x = x + drop_path(branch, drop_rate, keys[4])
        return (x, weights) if with_weights else x

    def fused_weights(self) -> Weights:
        """As blocks that are written out take them; of stacked blocks, all of them.

        What scales a branch is part of its last matrix there.
        """
        attention, mlp = self.attention, self.mlp
        out, out_bias = attention.out.kernel[...], attention.out.bias[...]
        down, down_bias = mlp.down.kernel[...], mlp.down.bias[...]
        out = out.reshape(*out.shape[:-3], -1, out.shape[-1])
        qkv = by_share(attention.qkv.kernel[...])
        if self.config.layer_scale:
            attention_scale, mlp_scale = self.attention_scale[...], self.mlp_scale[...]
            out, out_bias = out * attention_scale[..., None, :], out_bias * attention_scale
            down, down_bias = down * mlp_scale[..., None, :], down_bias * mlp_scale
        return Weights(
            attention_scale=self.attention_norm.scale[...],
            attention_shift=self.attention_norm.bias[...],
            qkv=qkv if attention.kind == "flat" else qkv.swapaxes(-1, -2),
            qkv_bias=by_share(attention.qkv.bias[...]),
            out=out,
            out_bias=out_bias,
            mlp_scale=self.mlp_norm.scale[...],
            mlp_shift=self.mlp_norm.bias[...],
            up=mlp.up.kernel[...],
            up_bias=mlp.up.bias[...],
            down=down,
            down_bias=down_bias,
        )


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
        *,
        with_weights: bool = False,
    ) -> Any:
        """`with_weights`: a pair, with `AxialWeights`."""
        row_key, column_key = (None, None) if key is None else jax.random.split(key)
        x = self.row(x, row_key, drop_rate, positions, with_weights=with_weights)
        x, along_rows = x if with_weights else (x, None)
        x = x.swapaxes(1, 2)
        x = self.column(x, column_key, drop_rate, with_weights=with_weights)
        x, along_columns = x if with_weights else (x, None)
        x = x.swapaxes(1, 2)
        return (x, AxialWeights(along_rows, along_columns)) if with_weights else x


class Encoder(nnx.Module):
    """Tokens [batch, token, width] -> normalised tokens of the same shape.

    Where `is_first_enough` it is the first of each image that comes out, [batch, 1, width].
    """

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
            config.width, epsilon=config.norm_epsilon, dtype=jnp.dtype(config.dtype), rngs=rngs
        )
        self.config = config

    def __call__(
        self, x: jax.Array, key: jax.Array | None = None, *, is_first_enough: bool = False
    ) -> jax.Array:
        config, rows = self.config, self._rows()
        per_layer, constant = self._layer_inputs(key, rows)
        tokens = self._laid_out(x, rows)
        if self._kind != "plain":
            tokens = self._written_out(tokens, is_first_enough, *per_layer, *constant)
        else:
            tokens = scan(
                self.blocks, config.remat, tokens, per_layer, constant, unroll=not config.scan
            ).reshape(x.shape)
        return self.norm(tokens[:, : 1 if is_first_enough else x.shape[1]])

    def watched(self, x: jax.Array, see: See, first: Any) -> tuple[jax.Array, Any, Any]:
        """Likewise, while `see` looks at the attention weights of one layer after the other."""
        rows = self.config.tokens
        per_layer, constant = self._layer_inputs(None, rows)
        tokens = self._laid_out(x, rows)
        tokens, last, each = watch(self.blocks, tokens, see, first, per_layer, constant)
        return self.norm(tokens).reshape(x.shape), last, each

    def _layer_inputs(self, key: jax.Array | None, rows: int) -> tuple[tuple, tuple]:
        """What blocks take besides tokens: each layer its own, and what is the same for all."""
        config = self.config
        keys = drop_rates = None
        if key is not None and (config.dropout or config.stochastic_depth):
            keys = jax.random.split(key, config.depth)
            drop_rates = jnp.linspace(0, config.stochastic_depth, config.depth)
        per_layer, constant = (keys, drop_rates), ()
        if config.positions_at == "shared":
            constant = (self._laid_out(self.positions(), rows),)
        elif config.positions_at == "every_layer":
            graphdef, params = nnx.split(self.layer_positions)
            tables = jax.vmap(lambda params: nnx.merge(graphdef, params)(), axis_size=config.depth)
            laid_out = jax.vmap(lambda table: self._laid_out(table, rows))
            per_layer = (*per_layer, laid_out(tables(params)))
        return per_layer, constant

    def _written_out(
        self,
        x: jax.Array,
        is_first_enough: bool,
        keys: jax.Array | None,
        drop_rates: jax.Array | None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        config, (images, rows, width) = self.config, x.shape
        if positions is not None:  # each layer's, or one for all
            by_layer = positions.reshape(-1, rows, width)
            positions = jnp.broadcast_to(by_layer, (config.depth, rows, width))
        heads = config.heads // devices_per_image()
        spec = Spec(
            kind=self._kind,
            images=images,
            sizes=Sizes(config.tokens, rows, heads, width // config.heads, config.tokens),
            heads=config.heads,
            dropout=config.dropout,
            epsilon=config.norm_epsilon,
            activation=config.activation,
            remat=config.remat,
            scan=config.scan,
            is_first_enough=is_first_enough and config.depth > 1,
        )
        weights, extras = self.blocks.fused_weights(), Extras(keys, drop_rates, positions)
        return fused_blocks(spec, weights, flat(x), extras).reshape(images, -1, width)

    @property
    def _kind(self) -> str:
        """How blocks are computed here: one by one, or written out in both directions, by TPU
        kernels ("fused") or not ("flat"). Of axial ones only attention is, by kernels."""
        return "plain" if self.config.axial else self.blocks.attention.kind

    def _rows(self) -> int:
        """Tokens, on a TPU filled up to whole registers: it computes with these anyway, and with
        197 rows in odd ways."""
        tokens = self.config.tokens
        return -(-tokens // SUBLANES) * SUBLANES if self._kind == "fused" else tokens

    def _laid_out(self, x: jax.Array, rows: int) -> jax.Array:
        """[batch, token, width] as the blocks take it: a grid where they are axial.

        Filled up with zeros: positions, which registers have none of, and rows that are no tokens.
        """
        if self.config.axial:
            return x.reshape(x.shape[0], *self.config.grid, x.shape[-1])
        return jnp.pad(x, ((0, 0), (0, rows - x.shape[1]), (0, 0)))
