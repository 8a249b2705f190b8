"""The Vision Transformer: embedding, encoder, pooled representation, linear head."""

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.config import ViTConfig
from vit_jax.models.embedding import Embedding
from vit_jax.models.encoder import Encoder
from vit_jax.models.heads import AttentionPooling, Classifier


class ViT(Classifier):
    """Plain, hybrid and axial: they differ in the embedding's stem and in the encoder's blocks."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = Embedding(config, rngs=rngs)
        self.encoder = Encoder(config, rngs=rngs)
        if config.pooling == "map":
            self.pooling = AttentionPooling(config, rngs=rngs)
        if config.representation_size:
            self.pre_logits = nnx.Linear(
                config.width,
                config.representation_size,
                dtype=jnp.dtype(config.dtype),
                rngs=rngs,
            )
        self._make_head(config.representation_size or config.width, rngs)

    def _represent(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        embedding_key, encoder_key = (None, None) if key is None else jax.random.split(key)
        tokens = self.encoder(self.embedding(images, embedding_key), encoder_key)
        pooled = self._pooled(tokens[:, : self.config.patch_tokens])  # registers are done
        if self.config.representation_size:
            pooled = jnp.tanh(self.pre_logits(pooled))
        return pooled.astype(jnp.float32)

    def _pooled(self, tokens: jax.Array) -> jax.Array:
        if self.config.pooling == "map":
            return self.pooling(tokens)
        return tokens[:, 0] if self.config.pooling == "token" else tokens.mean(axis=1)
