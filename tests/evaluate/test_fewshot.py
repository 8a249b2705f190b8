"""Few-shot: the solver against scikit-learn, the draw of the shots, the whole evaluation."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import vit_jax
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluate.fewshot import (
    BIAS_FEATURE,
    FewShot,
    class_orders,
    fewshot_accuracies,
    ridge,
    standardized,
)


@pytest.mark.parametrize(("n", "d"), [(200, 30), (30, 200)])
def test_ridge_agrees_with_scikit_learn(n, d):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, d)), rng.normal(size=(n, 4))
    expected = Ridge(alpha=7.0, fit_intercept=False).fit(x, y).coef_.T
    np.testing.assert_allclose(ridge(x, y, 7.0), expected, atol=1e-8)


def test_shots_are_nested_and_depend_on_seed_and_labels_alone():
    labels = np.array([0, 1, 2] * 10)
    first, again, other = (class_orders(labels, 3, seed) for seed in (0, 0, 1))
    for label in range(3):
        assert sorted(first[label]) == list(np.flatnonzero(labels == label))
        np.testing.assert_array_equal(first[label], again[label])
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_features_are_standardised_by_the_shots_and_get_a_bias():
    x, standardize = standardized(np.random.default_rng(0).normal(3, 2, (50, 4)))
    np.testing.assert_allclose(x[:, :4].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(x[:, :4].std(axis=0), 1, atol=1e-4)
    assert (standardize(np.ones((2, 4)))[:, 4] == BIAS_FEATURE).all()


def test_separable_classes_are_learned_from_one_image_each():
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(3, 8))
    labels = np.arange(60) % 3
    split = (centres[labels] + rng.normal(size=(60, 8)), labels)
    accuracies = fewshot_accuracies(split, split, (1, 5), 3, ("a", "b", "c"))
    assert {k: len(v) for k, v in accuracies.items()} == {1: 3, 5: 3}
    assert np.mean(accuracies[5]) > 0.95


def test_chance_is_what_random_features_give():
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    train, test = ((rng.normal(size=(400, 8)), labels) for _ in range(2))
    assert 0.15 < np.mean(fewshot_accuracies(train, test, (25,), 3, tuple("abcd"))[25]) < 0.35


def test_a_class_with_too_few_images_is_named():
    split = (np.zeros((5, 2)), np.array([0, 0, 0, 0, 1]))
    with pytest.raises(UsageError, match="class 'cat' has 1 training images, 2 shots need 2"):
        fewshot_accuracies(split, split, (2,), 1, ("dog", "cat"))


def test_several_labels_per_image_are_refused():
    split = (np.zeros((5, 2)), np.zeros((5, 3), int))
    with pytest.raises(UsageError, match="one label per image"):
        fewshot_accuracies(split, split, (1,), 1, ("a",))


def test_a_model_is_evaluated_on_digits():
    model = vit_jax.create_model("Pico/8", image_size=16, pooling="gap", position_std=0.3)
    train, test = (open_source("digits", split, 16) for split in ("train", "test"))
    results = FewShot(train, test, shots=(1, 25))(model)
    assert 0.1 < results["1_shot"] < results["25_shot"] < 1
    assert results["25_shot_std"] > 0
