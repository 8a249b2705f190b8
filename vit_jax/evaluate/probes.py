"""What frozen features are worth when all training images are used: a linear probe, neighbours."""

import dataclasses

import numpy as np
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.evaluate.features import OnFeatures

# Strengths of the penalty that are tried; the held-out images choose.
_INVERSE_L2 = (0.01, 0.1, 1.0, 10.0)
_HELD_OUT = 10  # every tenth training image
_TEMPERATURE = 0.07  # of neighbours' votes
_AT_A_TIME = 1024  # test images compared with all training images


@dataclasses.dataclass(frozen=True)
class LinearProbe(OnFeatures):
    """Logistic regression on standardised features, by L-BFGS (scikit-learn's)."""

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        train, test = _both(self, model)
        return linear_probe(train, test)


@dataclasses.dataclass(frozen=True)
class Neighbours(OnFeatures):
    """The k nearest training images vote, nearer ones more (cosine similarity)."""

    k: int = 20

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        train, test = _both(self, model)
        return {"accuracy": neighbours_accuracy(train, test, self.k, self.train.num_classes)}


Labelled = tuple[np.ndarray, np.ndarray]  # features [n, d], labels [n]


def linear_probe(train: Labelled, test: Labelled) -> dict[str, float]:
    """Accuracy on the test features, and the strength that was chosen for it."""
    from sklearn.linear_model import LogisticRegression  # a second to import

    (x, y), (test_x, test_y) = train, test
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-5
    x, test_x = (x - mean) / deviation, (test_x - mean) / deviation
    held_out = np.arange(len(x)) % _HELD_OUT == 0

    def fitted(chosen: np.ndarray, inverse_l2: float) -> LogisticRegression:
        return LogisticRegression(C=inverse_l2, max_iter=1000).fit(x[chosen], y[chosen])

    kept = {c: fitted(~held_out, c).score(x[held_out], y[held_out]) for c in _INVERSE_L2}
    best = max(kept, key=kept.get)
    final = fitted(np.ones(len(x), bool), best)
    return {"accuracy": float(final.score(test_x, test_y)), "inverse_l2": best}


def neighbours_accuracy(train: Labelled, test: Labelled, k: int, num_classes: int) -> float:
    """With votes weighted by exp(similarity / temperature) (Wu et al., 2018)."""
    (x, y), (test_x, test_y) = train, test
    x, test_x = _normalized(x), _normalized(test_x)
    k, right = min(k, len(x)), 0
    for start in range(0, len(test_x), _AT_A_TIME):
        similarity = test_x[start : start + _AT_A_TIME] @ x.T
        nearest = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        weights = np.exp(np.take_along_axis(similarity, nearest, axis=1) / _TEMPERATURE)
        votes = np.zeros((len(similarity), num_classes))
        np.add.at(votes, (np.arange(len(votes))[:, None], y[nearest]), weights)
        right += int((votes.argmax(axis=1) == test_y[start : start + _AT_A_TIME]).sum())
    return right / len(test_x)


def _normalized(features: np.ndarray) -> np.ndarray:
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def both_probes(model: nnx.Module, data: OnFeatures, k: int) -> dict[str, float]:
    """The linear probe and the neighbours, with features computed once."""
    features = _both(data, model)
    linear = linear_probe(*features)
    return {
        "linear_probe": linear["accuracy"],
        "inverse_l2": linear["inverse_l2"],
        f"{k}_neighbours": neighbours_accuracy(*features, k, data.train.num_classes),
    }


def _both(data: OnFeatures, model: nnx.Module) -> tuple[Labelled, Labelled]:
    found = []
    for source in (data.train, data.test):
        features, labels, readable = data.features(model, source)
        if labels.ndim != 1:
            raise UsageError(f"{source.name}: a probe needs data with one label per image")
        found.append((features[readable], labels[readable]))
    return found[0], found[1]
