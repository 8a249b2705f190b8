"""What happens to a batch on the device: it arrives as uint8 and leaves as the network's input."""

import jax
import jax.numpy as jnp


def normalize(images: jax.Array) -> jax.Array:
    """uint8 [0, 255] -> float32 [-1, 1], the range all published ViT weights expect."""
    return (images.astype(jnp.float32) - 127.5) / 127.5


def random_flip(images: jax.Array, key: jax.Array) -> jax.Array:
    """Mirrors each image left to right with probability one half."""
    flip = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
    return jnp.where(flip, images[:, :, ::-1], images)
