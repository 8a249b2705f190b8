"""What happens to images and labels on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.data.augment import cutmix, mixup, normalize, random_erasing, random_flip
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


def one_hot(count):
    return jnp.eye(count)


def test_mixup_overlays_an_image_and_its_neighbour_with_their_labels():
    images = jnp.arange(4.0)[:, None, None, None] * jnp.ones((4, 2, 2, 3))
    mixed, targets = mixup(images, one_hot(4), jax.random.key(0), alpha=0.5)
    weight = float(targets[1, 1])
    assert 0.5 <= weight < 1 and float(targets[1, 0]) == pytest.approx(1 - weight)
    np.testing.assert_allclose(mixed[1], weight * images[1] + (1 - weight) * images[0], atol=1e-6)
    np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-6)


def test_mixup_weights_follow_their_distribution():
    keys = jax.random.split(jax.random.key(0), 500)
    weights = jax.vmap(lambda key: mixup(one_hot(2), one_hot(2), key, 0.2)[1][0, 0])(keys)
    draws = np.random.default_rng(0).beta(0.2, 0.2, 100_000)
    assert float(weights.mean()) == pytest.approx(np.maximum(draws, 1 - draws).mean(), abs=0.02)


def test_cutmix_mixes_labels_by_the_area_that_was_pasted():
    images = jnp.arange(3.0)[:, None, None, None] * jnp.ones((3, 20, 30, 1))
    shares = []
    for seed in range(10):
        pasted, targets = cutmix(images, one_hot(3), jax.random.key(seed), alpha=1.0)
        share = float((pasted[1] == images[0]).mean())
        assert float(targets[1, 0]) == pytest.approx(share, abs=1e-5)
        rows, columns = np.nonzero(np.asarray(pasted[1, :, :, 0]) == 0)
        if len(rows):  # it is a box
            assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        shares.append(share)
    assert len(set(shares)) > 5


def test_random_erasing_puts_noise_into_a_box_of_some_images():
    images = jnp.full((64, 32, 32, 3), 7.0)
    erased = np.asarray(random_erasing(images, jax.random.key(0), probability=0.5))
    touched = (erased != 7).any(axis=(1, 2, 3))
    assert 20 < touched.sum() < 44
    share = (erased[touched] != 7).mean(axis=(1, 2, 3))
    assert share.max() < 0.36 and share.min() > 0
    assert len(np.unique(share)) > 10  # each image its own
    np.testing.assert_array_equal(random_erasing(images, jax.random.key(0), 0.0), images)
