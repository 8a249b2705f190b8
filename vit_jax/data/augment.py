"""What happens to a batch on the device: it arrives as uint8 and leaves as the network's input.

Images are [batch, height, width, channel], targets float32 [batch, class]. Every function draws
from the key it is given and from nothing else.
"""

import jax
import jax.numpy as jnp


def normalize(images: jax.Array) -> jax.Array:
    """uint8 [0, 255] -> float32 [-1, 1], the range all published ViT weights expect."""
    return (images.astype(jnp.float32) - 127.5) / 127.5


def random_flip(images: jax.Array, key: jax.Array) -> jax.Array:
    """Mirrors each image left to right with probability one half."""
    flip = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
    return jnp.where(flip, images[:, :, ::-1], images)


def mixup(
    images: jax.Array, targets: jax.Array, key: jax.Array, alpha: float
) -> tuple[jax.Array, jax.Array]:
    """Every image and its neighbour in the batch, overlaid (Zhang et al., 2017).

    One weight for the whole batch, of which each image keeps the larger part, as in AugReg.
    """
    weight = jax.random.beta(key, alpha, alpha)
    weight = jnp.maximum(weight, 1 - weight)
    return _mixed(images, weight), _mixed(targets, weight)


def cutmix(
    images: jax.Array, targets: jax.Array, key: jax.Array, alpha: float
) -> tuple[jax.Array, jax.Array]:
    """A box of each image's neighbour in the batch, pasted into it (Yun et al., 2019).

    One box for the whole batch; targets are mixed by the area that it really covers.
    """
    area_key, box_key = jax.random.split(key)
    area = 1 - jax.random.beta(area_key, alpha, alpha)
    inside = _box(box_key, images.shape[1:3], area, aspect=jnp.float32(1))
    covered = inside.mean()
    pasted = jnp.where(inside[None, :, :, None], jnp.roll(images, 1, axis=0), images)
    return pasted, _mixed(targets, 1 - covered)


def random_erasing(images: jax.Array, key: jax.Array, probability: float) -> jax.Array:
    """Noise over a box of some images (Zhong et al., 2017). `images` are normalised.

    2 % to 33 % of the area, of an aspect between 0.3 and 3.3, each image with its own.
    """

    def erased(image: jax.Array, key: jax.Array) -> jax.Array:
        chance, area_key, aspect_key, box_key, noise_key = jax.random.split(key, 5)
        area = jax.random.uniform(area_key, minval=0.02, maxval=0.33)
        log_aspect = jax.random.uniform(aspect_key, minval=-jnp.log(3.3), maxval=jnp.log(3.3))
        inside = _box(box_key, image.shape[:2], area, jnp.exp(log_aspect))
        inside &= jax.random.bernoulli(chance, probability)
        noise = jax.random.normal(noise_key, image.shape, image.dtype)
        return jnp.where(inside[..., None], noise, image)

    return jax.vmap(erased)(images, jax.random.split(key, len(images)))


def _mixed(x: jax.Array, weight: jax.Array) -> jax.Array:
    return weight * x + (1 - weight) * jnp.roll(x, 1, axis=0)


def _box(key: jax.Array, size: tuple[int, int], area: jax.Array, aspect: jax.Array) -> jax.Array:
    """bool [height, width]: a box of about that share of the image, its centre anywhere in it."""
    height, width = size
    extent = jnp.sqrt(area) * jnp.stack([jnp.sqrt(aspect), 1 / jnp.sqrt(aspect)])
    half = extent * jnp.array([height, width]) / 2
    centre = jax.random.uniform(key, (2,)) * jnp.array([height, width])
    rows, columns = (jnp.arange(n) + 0.5 for n in size)
    return (jnp.abs(rows - centre[0]) < half[0])[:, None] & (jnp.abs(columns - centre[1]) < half[1])
