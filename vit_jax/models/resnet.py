"""The ResNets that the paper compares with: BiT, and those with axial attention (D.6)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.config import ResNetConfig
from vit_jax.models.heads import Classifier
from vit_jax.models.stack import See
from vit_jax.models.trunk import PostActivationTrunk, PreActivationTrunk


class ResNet(Classifier):
    """A trunk, the mean over its feature map, a linear head."""

    def __init__(self, config: ResNetConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make_trunk = PreActivationTrunk
        if config.kind == "axial":
            make_trunk = functools.partial(
                PostActivationTrunk, axial=(config.image_size, config.heads)
            )
        self.trunk = make_trunk(
            config.stages,
            config.width,
            config.channels,
            remat=config.remat,
            dtype=jnp.dtype(config.dtype),
            rngs=rngs,
        )
        self._make_head(config.features, rngs)

    def watched(self, images: jax.Array, see: See, first: Any) -> tuple[jax.Array, Any, tuple]:
        """As ViT.watched, for those that attend: the feature map, and what was seen."""
        return self.trunk.watched(images, see, first)

    def _represent(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        return self.trunk(images).mean(axis=(1, 2), dtype=jnp.float32)
