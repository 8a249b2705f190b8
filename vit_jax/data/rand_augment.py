"""RandAugment on the device (Cubuk et al., 2019): some random operations, all of one strength.

Operations and their ranges are those of AugReg's recipes: magnitude 10 of 10 is the strongest of
the original table, and larger ones go on in the same direction. Each image draws its own.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

MAX_MAGNITUDE = 10.0
GREY = np.array([0.299, 0.587, 0.114], np.float32)

# (image float32 [height, width, channel] in [0, 255], strength from 0, sign) -> image
Operation = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def rand_augment(images: jax.Array, key: jax.Array, layers: int, magnitude: float) -> jax.Array:
    """uint8 [batch, height, width, channel] -> the same; `layers` operations on each image."""
    strength = jnp.float32(magnitude / MAX_MAGNITUDE)

    def one(image: jax.Array, key: jax.Array) -> jax.Array:
        which_key, sign_key = jax.random.split(key)
        which = jax.random.randint(which_key, (layers,), 0, len(OPERATIONS))
        signs = jax.random.rademacher(sign_key, (layers,), jnp.float32)
        for layer in range(layers):
            image = jax.lax.switch(which[layer], OPERATIONS, image, strength, signs[layer])
            image = jnp.round(jnp.clip(image, 0, 255))
        return image

    augmented = jax.vmap(one)(images.astype(jnp.float32), jax.random.split(key, len(images)))
    return augmented.astype(jnp.uint8)


def _auto_contrast(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    """Each channel stretched to the whole range."""
    low, high = image.min(axis=(0, 1)), image.max(axis=(0, 1))
    stretched = (image - low) * 255 / jnp.maximum(high - low, 1)
    return jnp.where(high > low, stretched, image)


def _equalize(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    """Each channel's histogram made flat."""
    levels = jnp.arange(256)

    def channel(values: jax.Array) -> jax.Array:
        below = (values.reshape(-1, 1) <= levels).sum(axis=0)  # the cumulative histogram
        lowest = below[values.min().astype(int)]
        spread = jnp.maximum(values.size - lowest, 1)
        table = jnp.round((below - lowest) * 255 / spread)
        return jnp.where(values.max() > values.min(), table[values.astype(int)], values)

    return jax.vmap(channel, in_axes=2, out_axes=2)(image)


def _invert(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    return 255 - image


def _posterize(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    """Fewer bits: from all 8 down to 4 at full strength."""
    step = 2.0 ** jnp.clip(jnp.round(4 * strength), 0, 7)
    return jnp.floor(image / step) * step


def _solarize(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    """What is brighter than a threshold is inverted."""
    return jnp.where(image < 256 * (1 - jnp.minimum(strength, 1)), image, 255 - image)


def _solarize_add(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    """What is darker than the middle gets brighter."""
    return jnp.where(image < 128, jnp.clip(image + 110 * strength, 0, 255), image)


def _color(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    return _blend(_grey(image), image, strength, sign)


def _contrast(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    return _blend(_grey(image).mean(), image, strength, sign)


def _brightness(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    return _blend(0.0, image, strength, sign)


def _sharpness(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    """Away from, or towards, the image smoothed; its edge stays."""
    kernel = jnp.array([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    smooth = jax.vmap(
        lambda channel: jax.scipy.signal.convolve2d(channel, kernel, mode="valid"),
        in_axes=2,
        out_axes=2,
    )(image)
    return _blend(image.at[1:-1, 1:-1].set(smooth), image, strength, sign)


def _rotate(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    angle = sign * strength * jnp.deg2rad(30)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return _affine(image, jnp.array([[cosine, -sine], [sine, cosine]]), jnp.zeros(2))


def _shear_x(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    return _affine(image, jnp.array([[1, 0], [0.3 * sign * strength, 1]]), jnp.zeros(2))


def _shear_y(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    return _affine(image, jnp.array([[1, 0.3 * sign * strength], [0, 1]]), jnp.zeros(2))


def _translate_x(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    shift = sign * strength * 0.45 * image.shape[1]
    return _affine(image, jnp.eye(2), jnp.array([0.0, 1.0]) * shift)


def _translate_y(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    shift = sign * strength * 0.45 * image.shape[0]
    return _affine(image, jnp.eye(2), jnp.array([1.0, 0.0]) * shift)


OPERATIONS: tuple[Operation, ...] = (
    _auto_contrast, _equalize, _invert, _rotate, _posterize, _solarize, _color, _contrast,
    _brightness, _sharpness, _shear_x, _shear_y, _translate_x, _translate_y, _solarize_add,
)  # fmt: skip


def _blend(
    degenerate: jax.Array | float, image: jax.Array, strength: jax.Array, sign: jax.Array
) -> jax.Array:
    """Between 0.1 (nearly `degenerate`) and 1.9 (as far beyond the image) at full strength."""
    factor = 1 + 0.9 * sign * strength
    return jnp.clip(degenerate + factor * (image - degenerate), 0, 255)


def _grey(image: jax.Array) -> jax.Array:
    return (image @ GREY)[..., None] if image.shape[-1] == 3 else image


def _affine(image: jax.Array, matrix: jax.Array, shift: jax.Array) -> jax.Array:
    """The pixel at p comes from matrix (p - centre) + centre + shift; beyond the edge is grey."""
    height, width, _ = image.shape
    centre = (jnp.array([height, width]) - 1) / 2
    places = jnp.stack(jnp.mgrid[:height, :width], axis=-1) - centre
    rows, columns = jnp.moveaxis(places @ matrix.T + centre + shift, -1, 0)
    # Nearest, as in the original: at most one of many pixels, with no blur to be learned.
    at = jnp.round(rows).astype(int), jnp.round(columns).astype(int)
    inside = (at[0] >= 0) & (at[0] < height) & (at[1] >= 0) & (at[1] < width)
    moved = image[jnp.clip(at[0], 0, height - 1), jnp.clip(at[1], 0, width - 1)]
    return jnp.where(inside[..., None], moved, 128.0)
