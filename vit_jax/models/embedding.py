"""From images to tokens (equation 1): ResNet stem, patches, class token, positions, registers."""

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.config import ViTConfig
from vit_jax.models.positions import Positions
from vit_jax.models.stochastic import dropout
from vit_jax.models.trunk import PostActivationTrunk


class PatchEmbedding(nnx.Module):
    """Images [batch, height, width, channel] -> patch tokens [batch, token, width].

    A convolution with kernel = stride = patch, computed as one matmul over flattened patches;
    the kernel keeps the convolution's shape, which is that of the published weights.
    """

    def __init__(self, config: ViTConfig, channels: int, *, rngs: nnx.Rngs) -> None:
        shape = (*config.patch_size, channels, config.width)
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
    """Class token (where pooling wants one) and patch tokens, plus positions, then registers."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        channels = config.channels
        if config.stem_stages is not None:  # hybrid: the patches are of its feature map
            self.stem = PostActivationTrunk(
                config.stem_stages,
                config.stem_width,
                channels,
                remat=config.remat,
                dtype=jnp.dtype(config.dtype),
                rngs=rngs,
            )
            channels = self.stem.outputs
        self.patches = PatchEmbedding(config, channels, rngs=rngs)
        if config.pooling == "token":
            self.class_token = nnx.Param(jnp.zeros((1, 1, config.width), jnp.float32))
        self.adds_positions = config.positions_at == "stem" and config.positions in (
            "1d", "2d", "sincos2d",
        )  # fmt: skip
        if self.adds_positions:
            self.positions = Positions(config, rngs=rngs)
        if config.registers:
            shape = (1, config.registers, config.width)
            self.registers = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape))
        self.config = config

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        config = self.config
        if config.stem_stages is not None:
            images = self.stem(images)
        x = self.patches(images)
        if config.pooling == "token":
            x = jnp.concatenate([_for_each(x, self.class_token), x], axis=1)
        if self.adds_positions:
            x = x + self.positions().astype(x.dtype)
        x = dropout(x, config.dropout, key)
        if config.registers:
            x = jnp.concatenate([x, _for_each(x, self.registers)], axis=1)
        return x


def _for_each(x: jax.Array, tokens: nnx.Param) -> jax.Array:
    """The same tokens for each image of the batch x."""
    return jnp.broadcast_to(tokens.astype(x.dtype), (len(x), *tokens.shape[1:]))
