"""From images to tokens (equation 1): ResNet stem, patches, class token, positions, registers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.config import ViTConfig
from vit_jax.models.positions import Positions
from vit_jax.models.stochastic import dropout
from vit_jax.models.trunk import PostActivationTrunk


def patchify(images: jax.Array, patch_size: tuple[int, int]) -> jax.Array:
    """[batch, height, width, channel] -> [batch, patch, patch height, patch width, channel]."""
    batch, height, width, channels = images.shape
    patch_h, patch_w = patch_size
    patches = images.reshape(batch, height // patch_h, patch_h, width // patch_w, patch_w, channels)
    return patches.swapaxes(2, 3).reshape(batch, -1, patch_h, patch_w, channels)


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
        patches = patchify(images, self.kernel.shape[:2])
        patches = patches.reshape(*patches.shape[:2], -1)
        kernel = self.kernel[...].reshape(-1, self.kernel.shape[-1])
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

    def __call__(
        self,
        images: jax.Array,
        key: jax.Array | None = None,
        corrupt: Callable[[jax.Array], jax.Array] = lambda patches: patches,
    ) -> jax.Array:
        """`corrupt` changes patch tokens before they are given positions."""
        config = self.config
        if config.stem_stages is not None:
            images = self.stem(images)
        x = corrupt(self.patches(images))
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
    return jnp.broadcast_to(tokens.astype(x.dtype), (x.shape[0], *tokens.shape[1:]))
