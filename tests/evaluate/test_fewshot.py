"""Few-shot: the solver against scikit-learn, the draw of the shots, the whole evaluation."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import vit_jax
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluate import features
from vit_jax.evaluate.fewshot import (
    BIAS_FEATURE,
    L2,
    FewShot,
    Moments,
    check_enough,
    class_orders,
    fewshot_accuracies,
)


def orders(labels, classes, seeds=3):
    return [class_orders(labels, classes, seed) for seed in range(seeds)]


@pytest.mark.parametrize(("n", "d"), [(200, 30), (30, 200)])
def test_the_solver_agrees_with_scikit_learn(n, d):
    rng = np.random.default_rng(0)
    x = rng.normal(5, 2, (n, d)) * rng.uniform(0.1, 3, d)  # off centre, of all scales
    labels = rng.integers(0, 4, n)
    l2s = (7.0, 1024.0)
    standard = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    with_bias = np.pad(standard, ((0, 0), (0, 1)), constant_values=BIAS_FEATURE)
    targets = 2 * np.eye(4)[labels] - 1
    for chosen in (l2s, l2s[:1]):
        moments = Moments(d, 4)
        for part in (slice(0, None, 2), slice(1, None, 2)):  # gathered in two goes, solved twice
            moments.add(x[part], labels[part])
            solutions = moments.solve(chosen)
        for l2, solution in zip(chosen, solutions, strict=True):
            ridge = Ridge(alpha=l2, fit_intercept=False).fit(with_bias, targets)
            np.testing.assert_allclose(solution(x), ridge.predict(with_bias), atol=1e-4)
            expected = ridge.coef_.T[:d] / (x.std(axis=0) + 1e-5)[:, None]
            np.testing.assert_allclose(solution.weights, expected, atol=1e-4)


def test_shots_are_nested_and_depend_on_seed_and_labels_alone():
    labels = np.array([0, 1, 2] * 10)
    first, again, other = (class_orders(labels, 3, seed) for seed in (0, 0, 1))
    for label in range(3):
        assert sorted(first[label]) == list(np.flatnonzero(labels == label))
        np.testing.assert_array_equal(first[label], again[label])
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_separable_classes_are_learned_from_one_image_each():
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(3, 8))
    labels = np.arange(60) % 3
    split = (centres[labels] + rng.normal(size=(60, 8)), labels)
    accuracies = fewshot_accuracies(split[0], split, orders(labels, 3), (5, 1), (L2, 1.0))
    assert {key: len(v) for key, v in accuracies.items()} == dict.fromkeys(
        [(5, L2), (5, 1.0), (1, L2), (1, 1.0)], 3
    )
    assert np.mean(accuracies[5, L2]) > 0.95


def test_chance_is_what_random_features_give():
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    train, test = ((rng.normal(size=(400, 8)), labels) for _ in range(2))
    found = fewshot_accuracies(train[0], test, orders(labels, 4), (25,))
    assert 0.15 < np.mean(found[25, L2]) < 0.35


def test_a_class_with_too_few_images_is_named():
    order = class_orders(np.array([0, 0, 0, 0, 1]), 2, seed=0)
    with pytest.raises(UsageError, match="class 'cat' has 1 training images, 2 shots need 2"):
        check_enough(order, 2, ("dog", "cat"))


def test_several_labels_per_image_are_refused():
    test = (np.zeros((5, 2)), np.zeros((5, 3), int))
    with pytest.raises(UsageError, match="one label per image"):
        fewshot_accuracies(test[0], test, [[[0]]], (1,))


def test_a_model_is_evaluated_on_digits():
    model = vit_jax.create_model("Pico/8", image_size=16, pooling="gap", position_std=0.3)
    train, test = (open_source("digits", split, 16) for split in ("train", "test"))
    results = FewShot(train, test, shots=(1, 25))(model)
    assert 0.1 < results["1_shot"] < results["25_shot"] < 1
    assert results["25_shot_std"] > 0


def test_only_shots_go_through_the_network(monkeypatch):
    seen = []
    real = features.eval_batches
    monkeypatch.setattr(
        features,
        "eval_batches",
        lambda source, **kw: seen.append(len(source)) or real(source, **kw),
    )
    model = vit_jax.create_model("Pico/8", image_size=16, depth=1)
    train, test = (open_source("digits", split, 16) for split in ("train", "test"))
    FewShot(train, test, shots=(1, 2), seeds=2)(model)
    assert seen[0] <= 2 * 2 * 10 and seen[1] == len(test)
