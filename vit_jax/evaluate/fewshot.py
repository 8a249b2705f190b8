"""Few-shot linear evaluation (section 4.1): ridge regression in closed form on frozen features.

Features of k images per class are mapped by least squares to targets in {-1, +1}; the accuracy
is that of the best class on the whole test split, over several draws of the k images.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # whose parts are imported when they are first used
from flax import nnx

from vit_jax.data.compose import Subset
from vit_jax.data.source import labels_of
from vit_jax.errors import UsageError
from vit_jax.evaluate.features import OnFeatures

L2 = 2.0**10
BIAS_FEATURE = 100.0  # so large that the penalty on its weight, the bias, is next to nothing
_TOLERANCE = 1e-4  # of weights, relative
_AT_A_TIME = 4096  # test images that are scored

Orders = Sequence[Sequence[np.ndarray]]  # for each draw and class, rows of features


@dataclasses.dataclass(frozen=True)
class FewShot(OnFeatures):
    """A value that measures a model: `FewShot(train, test)(model)` -> {"10_shot": mean, ...}.

    Which images are shots depends on the seed and on the labels alone, and only those that are
    shots of some seed go through the network. With several l2 there are results for each
    ("10_shot_l2_64"), and none is chosen: that would need images other than those tested on.
    """

    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: int = 3
    l2s: tuple[float, ...] = (L2,)

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        labels = labels_of(self.train)
        _check_labels(labels)
        most = max(self.shots)
        orders = [class_orders(labels, self.train.num_classes, seed) for seed in range(self.seeds)]
        for order in orders:
            check_enough(order, most, self.train.class_names)
        needed = np.unique(np.concatenate([part[:most] for order in orders for part in order]))
        shot_features, _, readable = self.features(model, Subset(self.train, needed))
        test_features, test_labels, are_readable = self.features(model, self.test)
        place = np.full(len(labels), -1)
        place[needed[readable]] = np.flatnonzero(readable)
        accuracies = fewshot_accuracies(
            shot_features,
            (test_features[are_readable], test_labels[are_readable]),
            [[_found(place[part[:most]]) for part in order] for order in orders],
            self.shots,
            self.l2s,
        )
        results = {}
        for (shot, l2), found in accuracies.items():
            name = f"{shot}_shot" if len(self.l2s) == 1 else f"{shot}_shot_l2_{l2:.12g}"
            results[name] = float(np.mean(found))
            results[f"{name}_std"] = float(np.std(found))
        return results


def _found(places: np.ndarray) -> np.ndarray:
    return places[places >= 0]


def fewshot_accuracies(
    features: np.ndarray,
    test: tuple[np.ndarray, np.ndarray],
    orders: Orders,
    shots: Sequence[int],
    l2s: Sequence[float] = (L2,),
) -> dict[tuple[int, float], list[float]]:
    """(shots, l2) -> test accuracy for each draw."""
    test_x, test_y = test
    _check_labels(test_y)
    accuracies: dict[tuple[int, float], list[float]] = {(k, l2): [] for k in shots for l2 in l2s}
    for shot, l2, solution in solutions(features, orders, shots, l2s):
        accuracies[shot, l2].append(float(np.mean(solution.classes(test_x) == test_y)))
    return accuracies


class Solution(NamedTuple):
    """A linear classifier."""

    origin: np.ndarray  # [feature], taken off first: features far from 0 would lose their digits
    weights: np.ndarray  # [feature, class]
    bias: np.ndarray  # [class]

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Scores [example, class]."""
        x = (features - self.origin).astype(np.float32, copy=False)
        # By SciPy, as all products here: the threads of NumPy's would wait in the way of SciPy's.
        return scipy.linalg.blas.sgemm(1.0, self.weights, x.T, trans_a=True).T + self.bias

    def classes(self, features: np.ndarray) -> np.ndarray:
        """The best class of each example, without the scores of all in memory at once."""
        parts = range(0, len(features), _AT_A_TIME)
        best = [self(features[start : start + _AT_A_TIME]).argmax(axis=1) for start in parts]
        return np.concatenate(best)


def solutions(
    features: np.ndarray, orders: Orders, shots: Sequence[int], l2s: Sequence[float] = (L2,)
) -> Iterator[tuple[int, float, Solution]]:
    """(shots, l2, classifier) for each draw, fewer shots first.

    Of the rows that `orders` has for a class, k shots are the first k.
    """
    # Somewhere among them is enough, so not all are asked.
    origin = features[:: 1 + len(features) // _AT_A_TIME].mean(axis=0).astype(np.float32)
    for order in orders:
        moments, before = Moments(origin, len(order)), 0
        for shot in sorted(set(shots)):
            new = [part[before:shot] for part in order]
            x = features[np.concatenate(new)].astype(np.float32, copy=False)
            x -= origin
            moments.add(x, np.array([len(part) for part in new]))
            before = shot
            for l2, solution in zip(l2s, moments.solve(l2s), strict=True):
                yield shot, l2, solution


class Moments:
    """All that ridge regression on {-1, +1} needs to know of features, gathered bit by bit.

    Targets need no matrix: what they contribute are the classes' sums. Standardising needs no pass
    over the features either: for weights of raw features it is another penalty, l2 times variance.
    And centred features have nothing to do with the bias feature, which is solved for by itself.
    What is left for n shots of d features is one product, which all l2 share and more shots add to,
    and for each l2 a Cholesky factorisation of the smaller side. An eigendecomposition would serve
    all l2, but takes as long as ten of these.
    """

    def __init__(self, origin: np.ndarray, classes: int) -> None:
        self._origin = origin
        self._rows: list[np.ndarray] = []  # which the product does not have yet
        self._labels: list[np.ndarray] = []
        self._gram: np.ndarray | float = 0.0  # its lower triangle
        self._sums = np.zeros((classes, len(origin)))
        self._counts = np.zeros(classes)

    def add(self, x: np.ndarray, counts: np.ndarray) -> None:
        """More features, less the origin: float32 [n, d], class by class, so many of each."""
        self._rows.append(x)
        self._labels.append(np.repeat(np.arange(len(counts)), counts))
        self._counts += counts
        rows, ends = np.arange(len(x)), np.concatenate([[0], np.cumsum(counts)])
        members = (np.ones(len(x), np.float32), rows, ends)
        self._sums += scipy.sparse.csr_array(members, (len(counts), len(x))) @ x

    def solve(self, l2s: Sequence[float]) -> list[Solution]:
        """The classifier for each l2."""
        n, d = int(self._counts.sum()), len(self._origin)
        mean = self._sums.sum(axis=0) / n
        weights = (self._by_features if n >= d else self._by_examples)(n, mean, l2s)
        return [self._solution(w, mean, l2) for w, l2 in zip(weights, l2s, strict=True)]

    def _by_features(self, n: int, mean: np.ndarray, l2s: Sequence[float]) -> Iterator[np.ndarray]:
        if self._rows:
            x = self._rows[0] if len(self._rows) == 1 else np.concatenate(self._rows)
            x = x.astype(_precision(n, len(mean), min(l2s)), copy=False)
            self._gram = self._gram + scipy.linalg.get_blas_funcs("syrk", (x,))(1.0, x.T).T
            self._rows = []  # there will never be fewer than features again: nobody asks for them
        variance = _deviation(self._gram.diagonal(), mean, n) ** 2
        mean = mean.astype(self._gram.dtype)
        covariance = np.outer(-n * mean, mean)
        covariance += self._gram
        # Centred features against targets 2 onehot - 1, of which the -1 falls out.
        right = np.outer(-2 * self._counts.astype(mean.dtype), mean)
        right += (2 * self._sums).astype(mean.dtype, copy=False)
        for l2 in l2s:
            yield _solve(covariance, l2 * variance, right.T, _precision(n, len(mean), l2))

    def _by_examples(self, n: int, mean: np.ndarray, l2s: Sequence[float]) -> Iterator[np.ndarray]:
        x = np.concatenate(self._rows).astype(np.float64)
        deviation = _deviation(np.einsum("nd,nd->d", x, x), mean, n)
        x -= mean
        x /= deviation
        gram = x @ x.T
        targets = np.full((n, len(self._counts)), -1.0)
        targets[np.arange(n), np.concatenate(self._labels)] = 1
        for l2 in l2s:
            yield (x.T @ _solve(gram, np.full(n, l2), targets)) / deviation[:, None]

    def _solution(self, weights: np.ndarray, mean: np.ndarray, l2: float) -> Solution:
        n = self._counts.sum()
        of_bias = BIAS_FEATURE * (2 * self._counts - n) / (BIAS_FEATURE**2 * n + l2)
        bias = BIAS_FEATURE * of_bias - np.einsum("d,dc->c", mean, weights)
        return Solution(
            self._origin, weights.astype(np.float32, copy=False), bias.astype(np.float32)
        )


def _deviation(squares: np.ndarray, mean: np.ndarray, n: int) -> np.ndarray:
    return np.sqrt(np.maximum(squares / n - mean**2, 0)) + 1e-5


def _precision(n: int, d: int, l2: float) -> type[np.floating]:
    """What to multiply and factorise in, for d features of n examples."""
    # Rounding adds to the product of standardised features, and to its factors, a random matrix of
    # about this norm; solving divides it by l2.
    noise = np.finfo(np.float32).eps / 2 * n * np.sqrt(d)
    return np.float32 if noise < _TOLERANCE * l2 else np.float64


def _solve(
    gram: np.ndarray,
    penalty: np.ndarray,
    right: np.ndarray,
    precision: type[np.floating] = np.float64,
) -> np.ndarray:
    """(gram + diag(penalty))⁻¹ right, of which the lower triangle of gram is enough."""
    penalised = gram.astype(precision)
    penalised.flat[:: len(gram) + 1] += penalty
    try:  # transposed, it is in the order that LAPACK works on in place
        factor = scipy.linalg.cho_factor(penalised.T, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError as error:
        raise UsageError("l2 is too small for these features: expected 1 or more") from error
    return scipy.linalg.cho_solve(
        factor, right.astype(precision), overwrite_b=True, check_finite=False
    )


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
