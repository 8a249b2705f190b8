"""Few-shot linear evaluation (section 4.1): ridge regression in closed form on frozen features.

Features of k images per class are mapped by least squares to targets in {-1, +1}; the accuracy
is that of the best class on the whole test split, over several draws of the k images.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from flax import nnx

from vit_jax.data.compose import Subset
from vit_jax.data.source import labels_of
from vit_jax.errors import UsageError
from vit_jax.evaluate.features import OnFeatures

L2 = 2.0**10
BIAS_FEATURE = 100.0  # so large that the penalty on its weight, the bias, is next to nothing


@dataclasses.dataclass(frozen=True)
class FewShot(OnFeatures):
    """A value that measures a model: `FewShot(train, test)(model)` -> {"10_shot": mean, ...}.

    Which images are shots depends on the seed and on the labels alone, and only those that are
    shots of some seed go through the network.
    """

    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: int = 3
    l2: float = L2

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        labels = labels_of(self.train)
        _check_labels(labels)
        orders = [class_orders(labels, self.train.num_classes, seed) for seed in range(self.seeds)]
        for order in orders:
            check_enough(order, max(self.shots), self.train.class_names)
        most = max(self.shots)
        needed = np.unique(np.concatenate([part[:most] for order in orders for part in order]))
        shot_features, _, readable = self.features(model, Subset(self.train, needed))
        test_features, test_labels, are_readable = self.features(model, self.test)
        place = {int(index): number for number, index in enumerate(needed) if readable[number]}
        results = {}
        accuracies = fewshot_accuracies(
            shot_features,
            (test_features[are_readable], test_labels[are_readable]),
            [
                [[place[int(i)] for i in part[:most] if int(i) in place] for part in order]
                for order in orders
            ],
            self.shots,
            (self.l2,),
        )
        for shot in self.shots:
            results[f"{shot}_shot"] = float(np.mean(accuracies[shot, self.l2]))
            results[f"{shot}_shot_std"] = float(np.std(accuracies[shot, self.l2]))
        return results


def fewshot_accuracies(
    features: np.ndarray,
    test: tuple[np.ndarray, np.ndarray],
    orders: Sequence[Sequence[Sequence[int]]],
    shots: Sequence[int],
    l2s: Sequence[float] = (L2,),
) -> dict[tuple[int, float], list[float]]:
    """(shots, l2) -> test accuracy for each draw.

    `orders` has, for each draw and class, rows of `features`, of which k shots are the first k.
    """
    test_x, test_y = test
    _check_labels(test_y)
    accuracies: dict[tuple[int, float], list[float]] = {(k, l2): [] for k in shots for l2 in l2s}
    for order in orders:
        gathered, before = Moments(features.shape[1], len(order)), 0
        for shot in sorted(shots):
            rows = [index for part in order for index in part[before:shot]]
            labels = np.repeat(np.arange(len(order)), [len(part[before:shot]) for part in order])
            gathered.add(features[rows], labels)
            before = shot
            for l2, solution in zip(l2s, gathered.solve(l2s), strict=True):
                predicted = solution(test_x).argmax(axis=1)
                accuracies[shot, l2].append(float(np.mean(predicted == test_y)))
    return accuracies


class Solution(NamedTuple):
    """A linear classifier of raw features."""

    weights: np.ndarray  # [feature, class]
    bias: np.ndarray  # [class]

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return features @ self.weights + self.bias


class Moments:
    """All that ridge regression on {-1, +1} needs to know of features, gathered bit by bit.

    Targets need no matrix: what they contribute are the classes' sums. Standardising needs no pass
    over the features either: it scales their moments. And standardised features have mean 0, so
    that the bias feature has nothing to do with the others and is solved for by itself. What is
    left for n shots of d features is one product, which more shots add to, and one factorisation of
    the smaller side, which all l2 share.
    """

    def __init__(self, features: int, classes: int) -> None:
        self._rows: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._multiplied = 0  # of these, how many are in the gram matrix
        self._gram = np.zeros((features, features))
        self._sums = np.zeros((classes, features))
        self._counts = np.zeros(classes)
        self._origin: np.ndarray | None = None

    def add(self, x: np.ndarray, labels: np.ndarray) -> None:
        """More features [n, d], and the class of each."""
        if self._origin is None:
            # Somewhere among them: moments about a far-away 0 would lose their digits.
            self._origin = x.mean(axis=0, dtype=np.float64).astype(np.float32)
        x = x.astype(np.float32, copy=False) - self._origin
        self._rows.append(x)
        self._labels.append(labels)
        self._counts += np.bincount(labels, minlength=len(self._counts))
        members = (np.ones(len(x), np.float32), (labels, np.arange(len(x))))
        self._sums += scipy.sparse.csr_array(members, (len(self._counts), len(x))) @ x

    def solve(self, l2s: Sequence[float]) -> list[Solution]:
        """The classifier for each l2."""
        n, d = int(self._counts.sum()), self._sums.shape[1]
        mean = self._sums.sum(axis=0) / n
        squares = sum(np.einsum("nd,nd->d", x, x) for x in self._rows)
        scale = np.sqrt(np.maximum(squares / n - mean**2, 0)) + 1e-5
        # Of centred, scaled features against targets 2 onehot - 1, of which the -1 falls out.
        to_targets = (2 * (self._sums - self._counts[:, None] * mean) / scale).T
        if n >= d:
            centred = self._product() - n * np.outer(mean, mean)
            weights = _solve(centred / np.outer(scale, scale), to_targets, l2s)
        else:
            x = (np.concatenate(self._rows) - mean) / scale
            targets = np.full((n, len(self._counts)), -1.0)
            targets[np.arange(n), np.concatenate(self._labels)] = 1
            weights = [x.T @ dual for dual in _solve(x @ x.T, targets, l2s)]
        return [self._as_solution(w, mean, scale, l2) for w, l2 in zip(weights, l2s, strict=True)]

    def _product(self) -> np.ndarray:
        """xᵀx of all rows; of those that came since it was last asked for, in one go."""
        if self._multiplied < len(self._rows):
            x = np.concatenate(self._rows[self._multiplied :])
            self._gram += x.T @ x
            self._multiplied = len(self._rows)
        return self._gram

    def _as_solution(
        self, weights: np.ndarray, mean: np.ndarray, scale: np.ndarray, l2: float
    ) -> Solution:
        n = self._counts.sum()
        of_bias = BIAS_FEATURE * (2 * self._counts - n) / (BIAS_FEATURE**2 * n + l2)
        raw = weights / scale[:, None]
        bias = BIAS_FEATURE * of_bias - (self._origin + mean) @ raw
        return Solution(raw.astype(np.float32), bias.astype(np.float32))


def _solve(gram: np.ndarray, right: np.ndarray, l2s: Sequence[float]) -> list[np.ndarray]:
    """(gram + l2 I)⁻¹ right for each l2, through one factorisation."""
    if len(l2s) == 1:
        factor = scipy.linalg.cho_factor(gram + l2s[0] * np.eye(len(gram)), check_finite=False)
        return [scipy.linalg.cho_solve(factor, right, check_finite=False)]
    values, vectors = scipy.linalg.eigh(gram)
    projected = vectors.T @ right
    return [vectors @ (projected / (values + l2)[:, None]) for l2 in l2s]


def class_orders(labels: np.ndarray, num_classes: int, seed: int) -> list[np.ndarray]:
    """For each class its examples in a random order, of which k shots are the first k.

    So the shots of one seed are nested, and depend on the seed and the labels alone.
    """
    rng = np.random.default_rng(seed)
    by_class = np.split(
        np.argsort(labels, kind="stable"),
        np.cumsum(np.bincount(labels, minlength=num_classes))[:-1],
    )
    return [rng.permutation(indices) for indices in by_class]


def check_enough(order: list[np.ndarray], shot: int, class_names: tuple[str, ...]) -> None:
    """Raises where a class has too few images, and names it."""
    for name, indices in zip(class_names, order, strict=True):
        if len(indices) < shot:
            raise UsageError(
                f"class {name!r} has {len(indices)} training images, {shot} shots need {shot}: "
                f"lower --shots or add images"
            )


def _check_labels(labels: np.ndarray) -> None:
    if labels.ndim != 1:
        raise UsageError("few-shot evaluation needs data with one label per image")
