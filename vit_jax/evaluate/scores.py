"""All that is said of a classifier's answers, gathered batch by batch on the host.

An image without labels (ReaL has some) counts nowhere.
"""

import dataclasses
from typing import Any

import numpy as np

_BINS = 15  # of confidence, for the calibration error
_MOST_CONFUSED = 2000  # classes up to which a confusion matrix is worth its memory
_MOST_SCORES = 2e8  # numbers kept for average precision


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

    def add(self, logits: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> None:
        """logits and targets (0 or 1): [batch, class]; mask [batch]."""
        counts = (mask > 0) & (targets.max(axis=-1) > 0)
        logits, targets = logits[counts].astype(np.float64), targets[counts] > 0
        if not len(logits):
            return
        rows = np.arange(len(logits))
        best = logits.argmax(axis=-1)
        five = np.argpartition(-logits, min(5, self.num_classes - 1), axis=-1)[:, :5]
        right = targets[rows, best]
        self._examples += len(logits)
        self._top1 += int(right.sum())
        self._top5 += int(np.take_along_axis(targets, five, axis=-1).any(axis=-1).sum())
        logits -= logits.max(axis=-1, keepdims=True)
        total = np.log(np.exp(logits).sum(axis=-1))
        confidence = np.exp(logits[rows, best] - total)
        own = np.where(targets, logits, 0).sum(axis=-1) / targets.sum(axis=-1)
        self._loss += float((total - own).sum())  # cross-entropy, shared among several labels
        which = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
        for line, values in zip(self._bins, (np.ones(len(rows)), confidence, right), strict=True):
            line += np.bincount(which, values, _BINS)
        if self._confusion is not None:
            np.add.at(self._confusion, (targets.argmax(axis=-1), best), 1)
        kept = self._examples * self.num_classes <= _MOST_SCORES
        if self.several_labels and kept:
            self._kept.append((logits.astype(np.float32), targets))

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
            "examples": float(self._examples),
        }
        if self._kept:
            logits, targets = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
            found["mean_average_precision"] = mean_average_precision(logits, targets)
        return found

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
