"""Few-shot linear evaluation (section 4.1): ridge regression in closed form on frozen features.

Features of k images per class are mapped by least squares to targets in {-1, +1}; the accuracy
is that of the best class on the whole test split, over several draws of the k images.
"""

import dataclasses

import jax
import numpy as np
import scipy.linalg
from flax import nnx

from vit_jax.data.source import Source
from vit_jax.errors import UsageError
from vit_jax.evaluate.features import extract_features

L2 = 2.0**10
BIAS_FEATURE = 100.0  # so large that the penalty on its weight, the bias, is next to nothing


@dataclasses.dataclass(frozen=True)
class FewShot:
    """A value that measures a model: `FewShot(train, test)(model)` -> {"10_shot": mean, ...}."""

    train: Source
    test: Source
    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: int = 3
    batch_size: int = 256
    sharding: jax.sharding.Sharding | None = None
    crop: str = "resize"

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        train, test = (
            extract_features(model, split, self.batch_size, self.sharding, self.crop)
            for split in (self.train, self.test)
        )
        results = {}
        for shot, accuracies in fewshot_accuracies(
            train, test, self.shots, self.seeds, self.train.class_names
        ).items():
            results[f"{shot}_shot"] = float(np.mean(accuracies))
            results[f"{shot}_shot_std"] = float(np.std(accuracies))
        return results


def fewshot_accuracies(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    shots: tuple[int, ...],
    seeds: int,
    class_names: tuple[str, ...],
) -> dict[int, list[float]]:
    """Test accuracy for each number of shots and each seed, from (features, labels) pairs."""
    (train_x, train_y), (test_x, test_y) = train, test
    if train_y.ndim != 1:
        raise UsageError("few-shot evaluation needs data with one label per image")
    accuracies: dict[int, list[float]] = {shot: [] for shot in shots}
    for seed in range(seeds):
        order = class_orders(train_y, len(class_names), seed)
        for shot in shots:
            _check_enough(order, shot, class_names)
            chosen = np.concatenate([indices[:shot] for indices in order])
            x, standardize = standardized(train_x[chosen])
            targets = 2 * np.eye(len(class_names))[train_y[chosen]] - 1
            scores = standardize(test_x) @ ridge(x, targets, L2)
            accuracies[shot].append(float(np.mean(scores.argmax(axis=1) == test_y)))
    return accuracies


def class_orders(labels: np.ndarray, num_classes: int, seed: int) -> list[np.ndarray]:
    """For each class its examples in a random order, of which k shots are the first k.

    So the shots of one seed are nested, and depend on the seed and the labels alone.
    """
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]


def standardized(x: np.ndarray):
    """Features with the shot set's own mean 0 and deviation 1 and the bias feature appended.

    Returns them and the function that does the same to other features.
    """
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-5

    def standardize(features: np.ndarray) -> np.ndarray:
        scaled = ((features - mean) / deviation).astype(np.float64)
        return np.pad(scaled, ((0, 0), (0, 1)), constant_values=BIAS_FEATURE)

    return standardize(x), standardize


def ridge(x: np.ndarray, y: np.ndarray, l2: float) -> np.ndarray:
    """argmin |x w - y|² + l2 |w|², through the smaller of the two normal equations."""
    n, d = x.shape
    if n >= d:
        return scipy.linalg.solve(x.T @ x + l2 * np.eye(d), x.T @ y, assume_a="pos")
    return x.T @ scipy.linalg.solve(x @ x.T + l2 * np.eye(n), y, assume_a="pos")


def _check_enough(order: list[np.ndarray], shot: int, class_names: tuple[str, ...]) -> None:
    for name, indices in zip(class_names, order, strict=True):
        if len(indices) < shot:
            raise UsageError(
                f"class {name!r} has {len(indices)} training images, {shot} shots need {shot}: "
                f"lower --shots or add images"
            )
