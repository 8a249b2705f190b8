"""The Vision Transformer: embedding, encoder, pooled representation, linear head."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.embedding import Embedding
from vit_jax.models.encoder import Encoder
from vit_jax.models.variants import ViTConfig, model_config


def create_model(
    name: str,
    *,
    num_classes: int = 1000,
    image_size: int | tuple[int, int] = 224,
    seed: int = 0,
    **overrides: Any,
) -> "ViT":
    """A freshly initialised model: `create_model("B/16", image_size=384)(images)` -> logits.

    Any field of ViTConfig can be overridden by name.
    """
    config = model_config(name, num_classes=num_classes, image_size=image_size, **overrides)
    return create_from_config(config, seed)


def create_from_config(config: ViTConfig, seed: int = 0) -> "ViT":
    """A freshly initialised model of exactly this shape."""
    return nnx.merge(graphdef(config), init_params(config, jax.random.key(seed)))


class ViT(nnx.Module):
    """Images [batch, height, width, channel] in [-1, 1] -> logits [batch, class].

    Noise (dropout, stochastic depth) needs a key; without one the model is deterministic.
    """

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        self.embedding = Embedding(config, rngs=rngs)
        self.encoder = Encoder(config, rngs=rngs)
        if config.representation_size:
            self.pre_logits = nnx.Linear(
                config.width,
                config.representation_size,
                dtype=jnp.dtype(config.dtype),
                rngs=rngs,
            )
        if config.num_classes:
            # In float32 always: around a bias of -10, bfloat16 steps are 0.06 wide.
            self.head = nnx.Linear(
                config.representation_size or config.width,
                config.num_classes,
                kernel_init=nnx.initializers.zeros_init(),
                bias_init=nnx.initializers.constant(config.head_bias),
                dtype=jnp.float32,
                rngs=rngs,
            )
        self.config = config

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        features = self.features(images, key)
        if not self.config.num_classes:
            return features
        return self.head(features)

    def features(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """The representation that the head reads: [batch, width or representation size]."""
        embedding_key, encoder_key = (None, None) if key is None else jax.random.split(key)
        tokens = self.encoder(self.embedding(images, embedding_key), encoder_key)
        pooled = tokens[:, 0] if self.config.pooling == "token" else tokens.mean(axis=1)
        if self.config.representation_size:
            pooled = jnp.tanh(self.pre_logits(pooled))
        return pooled.astype(jnp.float32)


@functools.cache
def graphdef(config: ViTConfig) -> nnx.GraphDef[ViT]:
    """The network without its numbers; `nnx.merge(graphdef(config), params)` is the model."""
    return nnx.graphdef(nnx.eval_shape(lambda: ViT(config, rngs=nnx.Rngs(0))))


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: ViTConfig, key: jax.Array) -> dict[str, Any]:
    """Fresh float32 parameters as a nested dict, a pure function of the key."""
    return nnx.to_pure_dict(nnx.state(ViT(config, rngs=nnx.Rngs(key))))


def abstract_params(config: ViTConfig) -> dict[str, Any]:
    """Shapes and dtypes of the parameters, without any memory."""
    return jax.eval_shape(functools.partial(init_params, config), jax.random.key(0))


def parameter_count(config: ViTConfig) -> int:
    """Exact number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))
