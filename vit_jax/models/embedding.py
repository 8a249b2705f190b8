"""From images to tokens (equation 1): patches, class token, position embeddings."""

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.stochastic import dropout
from vit_jax.models.variants import ViTConfig


class PatchEmbedding(nnx.Module):
    """Images [batch, height, width, channel] -> patch tokens [batch, token, width].

    A convolution with kernel = stride = patch, computed as one matmul over flattened patches;
    the kernel keeps the convolution's shape, which is that of the published weights.
    """

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        shape = (*config.patch_size, config.channels, config.width)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(config.width, jnp.float32))
        self.dtype = jnp.dtype(config.dtype)

    def __call__(self, images: jax.Array) -> jax.Array:
        patch_h, patch_w, channels, width = self.kernel.shape
        batch, height, image_width, _ = images.shape
        rows, columns = height // patch_h, image_width // patch_w
        patches = images.reshape(batch, rows, patch_h, columns, patch_w, channels)
        patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, -1)
        kernel = self.kernel[...].reshape(-1, width)
        return patches.astype(self.dtype) @ kernel.astype(self.dtype) + self.bias.astype(self.dtype)


class Embedding(nnx.Module):
    """Patch tokens behind a class token (where pooling wants one), plus learned 1-D positions."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        self.patches = PatchEmbedding(config, rngs=rngs)
        if config.pooling == "token":
            self.class_token = nnx.Param(jnp.zeros((1, 1, config.width), jnp.float32))
        table = jax.random.normal(rngs.params(), (1, config.tokens, config.width))
        self.positions = nnx.Param(config.position_std * table)
        self.config = config

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        config = self.config
        if images.shape[1:] != (*config.image_size, config.channels):
            raise ValueError(
                f"images have shape {images.shape}, expected [batch, "
                f"{config.image_size[0]}, {config.image_size[1]}, {config.channels}]"
            )
        x = self.patches(images)
        if config.pooling == "token":
            token = self.class_token.astype(x.dtype)
            x = jnp.concatenate([jnp.broadcast_to(token, (len(x), *token.shape[1:])), x], axis=1)
        return dropout(x + self.positions.astype(x.dtype), config.dropout, key)
