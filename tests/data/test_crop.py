"""Cropping and resizing on the host."""

import numpy as np
import pytest

from vit_jax.data.crop import check_crop, fit, inception_region, resize
from vit_jax.errors import UsageError


def test_resize_interpolates_between_pixel_centres():
    image = np.array([[[0, 0, 0], [100, 100, 100]]], np.uint8)
    np.testing.assert_array_equal(resize(image, (1, 4))[0, :, 0], [0, 25, 75, 100])


def test_an_image_of_the_right_size_is_left_alone():
    image = np.zeros((8, 6, 3), np.uint8)
    assert resize(image, (8, 6)) is image


def test_inception_crops_keep_area_and_aspect_in_range():
    image = np.zeros((60, 80, 3), np.uint8)
    rng = np.random.default_rng(0)
    sizes = np.array([inception_region(*image.shape[:2], rng)[2:] for _ in range(300)])
    areas, aspects = sizes.prod(axis=1) / (60 * 80), sizes[:, 1] / sizes[:, 0]
    assert 0.04 < areas.min() < 0.1 and 0.9 < areas.max() <= 1
    assert 0.7 < aspects.min() < 0.85 and 1.2 < aspects.max() < 1.4


def test_an_image_too_narrow_to_crop_is_used_whole():
    image = np.zeros((1, 5000, 3), np.uint8)
    assert fit(image, (8, 8), "inception", np.random.default_rng(0)).shape == (8, 8, 3)


def test_an_unknown_crop_is_refused():
    with pytest.raises(UsageError, match="expected one of inception, random, resize"):
        check_crop("centre")
