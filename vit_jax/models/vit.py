"""The Vision Transformer: embedding, encoder, pooled representation, linear head."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.config import ViTConfig
from vit_jax.models.embedding import Embedding
from vit_jax.models.encoder import Encoder
from vit_jax.models.heads import AttentionPooling, Classifier, Corruption, PatchPrediction
from vit_jax.models.stack import See


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
        if config.patch_outputs:
            self.prediction = PatchPrediction(config, rngs=rngs)
        self._make_head(config.representation_size or config.width, rngs)

    def predict_patches(
        self, images: jax.Array, corruption: Corruption, key: jax.Array | None = None
    ) -> jax.Array:
        """Outputs for the patches that were corrupted: float32 [batch, patch, output]."""
        return self._run("_predict", images, corruption, key)

    def watched(self, images: jax.Array, see: See, first: Any) -> tuple[jax.Array, Any, Any]:
        """Encoded tokens [batch, token, width], and what `see` made of the attention weights.

        `see(seen, weights)`, with `first` seen at the beginning, returns what it sees now and what
        to keep: the second result is what it saw last, the third what it kept of each layer.
        Weights are [batch, head, query, key] over all tokens (class token, patches, registers), or
        AxialWeights.
        """
        tokens, last, each = self.encoder.watched(self.embedding(images), see, first)
        return tokens[:, : self.config.patch_tokens], last, each

    def _represent(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        is_first_enough = self.config.pooling == "token"
        pooled = self._pooled(self._encode(images, key, is_first_enough=is_first_enough))
        if self.config.representation_size:
            pooled = jnp.tanh(self.pre_logits(pooled))
        return pooled.astype(jnp.float32)

    def _predict(
        self, images: jax.Array, corruption: Corruption, key: jax.Array | None
    ) -> jax.Array:
        corrupt = functools.partial(self.prediction.corrupt, corruption=corruption)
        tokens = self._encode(images, key, corrupt=corrupt)
        first = 1 if self.config.pooling == "token" else 0  # the class token comes first
        return self.prediction(tokens[:, first:], corruption)

    def _encode(
        self,
        images: jax.Array,
        key: jax.Array | None,
        *,
        is_first_enough: bool = False,
        **embedding: Any,
    ) -> jax.Array:
        keys = (None, None) if key is None else jax.random.split(key)
        tokens = self.embedding(images, keys[0], **embedding)
        tokens = self.encoder(tokens, keys[1], is_first_enough=is_first_enough)
        return tokens[:, : self.config.patch_tokens]  # registers are done

    def _pooled(self, tokens: jax.Array) -> jax.Array:
        if self.config.pooling == "map":
            return self.pooling(tokens)
        return tokens[:, 0] if self.config.pooling == "token" else tokens.mean(axis=1)
