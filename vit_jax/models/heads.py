"""From tokens to one representation, and from that to logits; from corrupted patches to a guess."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.attention import attend, output, projection
from vit_jax.models.compiled import compiled
from vit_jax.models.config import NetworkConfig, ViTConfig
from vit_jax.models.encoder import Mlp


class AttentionPooling(nnx.Module):
    """One learned query attends to all tokens, an MLP follows (Zhai et al., 2021: "map")."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        width, dtype = config.width, jnp.dtype(config.dtype)
        probe = nnx.initializers.xavier_uniform()(rngs.params(), (1, 1, width), jnp.float32)
        self.probe = nnx.Param(probe)
        self.query = projection(width, 1, config.heads, dtype=dtype, rngs=rngs)
        self.key_value = projection(width, 2, config.heads, dtype=dtype, rngs=rngs)
        self.out = output(width, config.heads, dtype=dtype, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=config.norm_epsilon, dtype=dtype, rngs=rngs)
        self.mlp = Mlp(
            width,
            config.mlp_dim,
            dropout=0.0,
            activation=config.activation,
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        probe = jnp.broadcast_to(self.probe[...], (tokens.shape[0], 1, tokens.shape[-1]))
        query = self.query(probe)[:, :, 0]
        key, value = jnp.unstack(self.key_value(tokens), axis=2)
        pooled = self.out(attend(query, key, value))[:, 0]
        return pooled + self.mlp(self.norm(pooled))


class Corruption(NamedTuple):
    """What happens to the patch tokens of a batch before the encoder sees them."""

    patches: jax.Array  # int [batch, count]: those to predict
    is_masked: jax.Array  # bool [batch, patch]: replaced by the mask token
    source: jax.Array  # int [batch, patch]: whose embedding each one has; mostly its own


class PatchPrediction(nnx.Module):
    """Guesses what was at corrupted patches from the tokens there (appendix B.1.2)."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        shape = (1, 1, config.width)
        self.mask_token = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape))
        self.out = nnx.Linear(
            config.width,
            config.patch_outputs,
            kernel_init=nnx.initializers.zeros_init(),
            dtype=jnp.float32,
            rngs=rngs,
        )

    def corrupt(self, tokens: jax.Array, corruption: Corruption) -> jax.Array:
        """Patch tokens [batch, patch, width] -> the same with half of them damaged, say."""
        swapped = jnp.take_along_axis(tokens, corruption.source[..., None], axis=1)
        mask_token = self.mask_token.astype(tokens.dtype)
        return jnp.where(corruption.is_masked[..., None], mask_token, swapped)

    def __call__(self, tokens: jax.Array, corruption: Corruption) -> jax.Array:
        """Encoded patch tokens -> float32 [batch, corrupted patch, output]."""
        return self.out(jnp.take_along_axis(tokens, corruption.patches[..., None], axis=1))


class Classifier(nnx.Module):
    """Images [batch, height, width, channel] in [-1, 1] -> logits [batch, class].

    What all networks are to their users. Noise (dropout, stochastic depth) needs a key; without
    one the model is deterministic.
    """

    config: NetworkConfig

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return self._run("_classify", images, key)

    def features(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """The representation that the head reads: float32 [batch, feature]."""
        return self._run("_represent", images, key)

    def _run(self, method: str, images: jax.Array, *arguments: Any) -> jax.Array:
        expected = (*self.config.image_size, self.config.channels)
        if images.shape[1:] != expected:
            height, width, channels = expected
            raise ValueError(
                f"images have shape {images.shape}, expected [batch, {height}, {width}, {channels}]"
            )
        return _compiled(*nnx.split(self), method, images, *arguments)

    def _classify(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        features = self._represent(images, key)
        return self.head(features) if self.config.num_classes else features

    def _represent(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        """What `features` returns."""
        raise NotImplementedError

    def _make_head(self, features: int, rngs: nnx.Rngs) -> None:
        if self.config.num_classes:
            # In float32 always: around a bias of -10, bfloat16 steps are 0.06 wide.
            self.head = nnx.Linear(
                features,
                self.config.num_classes,
                kernel_init=nnx.initializers.zeros_init(),
                bias_init=nnx.initializers.constant(self.config.head_bias),
                dtype=jnp.float32,
                rngs=rngs,
            )


# Jitted at module level so that a model called eagerly, as in a notebook, is compiled once for all
# models of its shape, and not operation by operation; inside a train step it is inlined.
@functools.partial(compiled, static_argnums=(0, 2), inline=True)
def _compiled(
    graphdef: nnx.GraphDef[Classifier],
    params: nnx.State,
    method: str,
    *arguments: Any,
) -> jax.Array:
    return getattr(nnx.merge(graphdef, params), method)(*arguments)
