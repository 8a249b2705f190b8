"""What happens to images and labels on the device."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.augment import normalize, random_flip
from vit_jax.data.labels import multi_hot, top1_correct


def test_normalize_maps_bytes_to_minus_one_to_one():
    values = normalize(jnp.array([0, 127, 128, 255], jnp.uint8))
    np.testing.assert_allclose(values, [-1, -1 / 255, 1 / 255, 1], atol=1e-6)


def test_about_half_of_the_images_are_mirrored_and_none_is_changed_otherwise():
    images = jnp.arange(200 * 6).reshape(200, 2, 3, 1)
    flipped = random_flip(images, jax.random.key(0))
    same = np.array([np.array_equal(a, b) for a, b in zip(images, flipped, strict=True)])
    mirrored = np.array(
        [np.array_equal(a[:, ::-1], b) for a, b in zip(images, flipped, strict=True)]
    )
    assert (same ^ mirrored).all()
    assert 60 < mirrored.sum() < 140


def test_multi_hot_ignores_padding():
    np.testing.assert_array_equal(multi_hot(jnp.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
    labels = jnp.array([[1, 2, -1], [0, -1, -1]])
    np.testing.assert_array_equal(multi_hot(labels, 3), [[0, 1, 1], [1, 0, 0]])


def test_any_of_an_images_labels_counts_as_correct():
    targets = jnp.array([[0.0, 1, 1], [1, 0, 0]])
    logits = jnp.array([[0.0, 1, 2], [0, 5, 1]])
    np.testing.assert_array_equal(top1_correct(logits, targets), [1, 0])
