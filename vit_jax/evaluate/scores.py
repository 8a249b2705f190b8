"""All that is said of a classifier's answers: judged on the devices, gathered on the host.

An image without labels (ReaL has some) counts nowhere.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

_BINS = 15  # of confidence, for the calibration error
_MOST_CONFUSED = 2000  # classes up to which a confusion matrix is worth its memory
_MOST_SCORES = 2e8  # numbers kept for average precision


def judged(logits: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
    """What each answer is worth, [batch] each: logits and targets (0 or 1) are [batch, class].

    Without sorting, and along the classes only, so that a batch split over devices stays so.
    """
    labels = targets.sum(axis=-1)
    own = jnp.where(targets > 0, logits, -jnp.inf).max(axis=-1)  # of the likeliest label
    better = (logits > own[:, None]).sum(axis=-1)
    shared = targets / jnp.maximum(labels, 1)[:, None]
    return {
        "counts": labels > 0,
        "best": logits.argmax(axis=-1),
        "label": targets.argmax(axis=-1),
        "top1": jnp.take_along_axis(targets, logits.argmax(axis=-1)[:, None], axis=-1)[:, 0] > 0,
        "top5": better < 5,
        "loss": optax.softmax_cross_entropy(logits, shared),
        "confidence": jax.nn.softmax(logits).max(axis=-1),
    }


@dataclasses.dataclass
class Scores:
    """Of a model of so many classes."""

    num_classes: int
    several_labels: bool = False

    def __post_init__(self) -> None:
        self._examples = self._top1 = self._top5 = 0
        self._loss = 0.0
        self._bins = np.zeros((3, _BINS))  # answers, their confidence, how many were right
        confused = self.num_classes <= _MOST_CONFUSED and not self.several_labels
        self._confusion = np.zeros((self.num_classes,) * 2, np.int64) if confused else None
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, answers: dict[str, np.ndarray], mask: np.ndarray) -> None:
        """What `judged` says of a batch; the mask [batch] is 0 where there is no image."""
        counts = (mask > 0) & answers["counts"]
        answers = {key: value[counts] for key, value in answers.items()}
        right, confidence = answers["top1"], answers["confidence"].astype(np.float64)
        self._examples += int(counts.sum())
        self._top1 += int(right.sum())
        self._top5 += int(answers["top5"].sum())
        self._loss += float(answers["loss"].sum(dtype=np.float64))
        which = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
        for line, values in zip(self._bins, (np.ones(len(which)), confidence, right), strict=True):
            line += np.bincount(which, values, _BINS)
        if self._confusion is not None:
            np.add.at(self._confusion, (answers["label"], answers["best"]), 1)

    def keep(self, logits: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> None:
        """For average precision, which compares images with each other: [batch, class] each."""
        counts = (mask > 0) & (targets.max(axis=-1) > 0)
        if self._examples * self.num_classes <= _MOST_SCORES:
            self._kept.append((logits[counts], targets[counts] > 0))
        else:
            self._kept = []  # that of a part would pass for that of all

    def results(self) -> dict[str, float]:
        """Shares from 0 to 1."""
        n = max(self._examples, 1)
        answers, confidence, right = self._bins
        found = {
            "accuracy": self._top1 / n,
            "top5_accuracy": self._top5 / n,
            "loss": self._loss / n,
            # How far confidence and accuracy are apart, bin by bin (Guo et al., 2017).
            "calibration_error": float(np.abs(confidence - right).sum() / max(answers.sum(), 1)),
        }
        if self._kept:
            logits, targets = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
            found["mean_average_precision"] = mean_average_precision(logits, targets)
        return found

    @property
    def examples(self) -> int:
        """Images that counted."""
        return self._examples

    def confusion(self) -> np.ndarray | None:
        """[true class, predicted class], where that makes sense."""
        return self._confusion

    def per_class(self, class_names: tuple[str, ...]) -> list[dict[str, Any]]:
        """Of each class: images, how many of them were found, how many of its answers are right."""
        if self._confusion is None:
            return []
        images, answers = self._confusion.sum(axis=1), self._confusion.sum(axis=0)
        right = self._confusion.diagonal()
        return [
            {
                "class": name,
                "images": int(images[k]),
                "recall": float(right[k] / images[k]) if images[k] else None,
                "precision": float(right[k] / answers[k]) if answers[k] else None,
            }
            for k, name in enumerate(class_names)
        ]


def mean_average_precision(scores: np.ndarray, targets: np.ndarray) -> float:
    """Over the classes that occur: the mean precision at the rank of each of its images."""
    precisions = []
    for k in np.flatnonzero(targets.any(axis=0)):
        found = targets[np.argsort(-scores[:, k], kind="stable"), k]
        ranks = np.flatnonzero(found) + 1
        precisions.append(np.mean(np.arange(1, len(ranks) + 1) / ranks))
    return float(np.mean(precisions))
