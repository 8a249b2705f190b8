"""RandAugment's operations, against Pillow where it has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data import rand_augment as operations
from vit_jax.data.rand_augment import OPERATIONS, rand_augment

IMAGE = np.random.default_rng(0).integers(20, 200, (24, 32, 3), dtype=np.uint8)
SMOOTH = np.asarray(Image.fromarray(IMAGE).resize((6, 5)).resize((32, 24), Image.BILINEAR))


def apply(operation, image, strength=0.5, sign=1.0):
    result = operation(jnp.asarray(image, jnp.float32), jnp.float32(strength), jnp.float32(sign))
    return np.asarray(jnp.round(jnp.clip(result, 0, 255)))


@pytest.mark.parametrize(
    ("name", "strength", "expected"),
    [
        ("_auto_contrast", 0.5, ImageOps.autocontrast),
        ("_invert", 0.5, ImageOps.invert),
        ("_posterize", 1.0, lambda image: ImageOps.posterize(image, 4)),
        ("_solarize", 0.5, lambda image: ImageOps.solarize(image, 128)),
        ("_color", 1.0, lambda image: ImageEnhance.Color(image).enhance(1.9)),
        ("_contrast", 0.5, lambda image: ImageEnhance.Contrast(image).enhance(1.45)),
        ("_brightness", 1.0, lambda image: ImageEnhance.Brightness(image).enhance(1.9)),
        ("_sharpness", 1.0, lambda image: ImageEnhance.Sharpness(image).enhance(1.9)),
    ],
)
def test_an_operation_does_what_pillow_does(name, strength, expected):
    ours = apply(getattr(operations, name), IMAGE, strength)
    theirs = np.asarray(expected(Image.fromarray(IMAGE))).astype(float)
    assert np.abs(ours - theirs).max() <= 2  # they round in between
    assert np.abs(theirs - IMAGE).max() > 5


def test_equalizing_flattens_the_histogram():
    channel = apply(operations._equalize, SMOOTH)[..., 0]
    quarters = np.histogram(channel, bins=4, range=(0, 256))[0] / channel.size
    assert quarters.min() > 0.15 and channel.min() == 0 and channel.max() == 255


@pytest.mark.parametrize("name", ["_rotate", "_shear_x", "_shear_y", "_translate_x"])
def test_moving_there_and_back_restores_the_middle(name):
    moved = apply(getattr(operations, name), SMOOTH, 0.4, 1.0)
    back = apply(getattr(operations, name), moved, 0.4, -1.0)
    assert np.abs(moved - SMOOTH).max() > 5
    assert np.abs(back - SMOOTH)[9:15, 13:19].max() < 25
    still = apply(getattr(operations, name), SMOOTH, 0.0)
    np.testing.assert_array_equal(still, SMOOTH)


def test_translation_is_by_whole_pixels_and_fills_with_grey():
    moved = apply(operations._translate_y, IMAGE, 10 / 24 / 0.45)
    np.testing.assert_array_equal(moved[:14], IMAGE[10:])
    assert (moved[14:] == 128).all()


def test_images_draw_their_own_operations_from_the_key():
    images = jnp.asarray(np.stack([SMOOTH] * 16))
    run = jax.jit(rand_augment, static_argnums=(2, 3))
    first, again, other = (run(images, jax.random.key(k), 2, 10.0) for k in (0, 0, 1))
    assert first.dtype == jnp.uint8 and first.shape == images.shape
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len({np.asarray(image).tobytes() for image in first}) > 12
    assert len(OPERATIONS) == 15
