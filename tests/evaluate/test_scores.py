"""Scores against what can be worked out by hand and by scikit-learn."""

import csv

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    log_loss,
    top_k_accuracy_score,
)

from vit_jax.cli import dispatch
from vit_jax.data.labels import multi_hot
from vit_jax.evaluate.scores import Scores, judged, mean_average_precision


def gathered(logits, targets, mask=None, several=False):
    scores = Scores(logits.shape[1], several)
    mask = np.ones(len(logits)) if mask is None else mask
    for part in np.array_split(np.arange(len(logits)), 3):
        answers = judged(logits[part].astype(np.float32), targets[part].astype(np.float32))
        scores.add({key: np.asarray(value) for key, value in answers.items()}, mask[part])
        if several:
            scores.keep(logits[part], targets[part], mask[part])
    return scores


def test_scores_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, 8, 200), rng.normal(size=(200, 8))
    logits[np.arange(200), labels] += 1
    scores = gathered(logits, np.eye(8)[labels])
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    results = scores.results()
    assert results["accuracy"] == pytest.approx((logits.argmax(-1) == labels).mean())
    assert results["top5_accuracy"] == pytest.approx(top_k_accuracy_score(labels, logits, k=5))
    assert results["loss"] == pytest.approx(log_loss(labels, probabilities), rel=1e-5)
    np.testing.assert_array_equal(
        scores.confusion(), confusion_matrix(labels, logits.argmax(-1), labels=range(8))
    )
    table = scores.per_class(tuple("abcdefgh"))
    hits = scores.confusion()[2]
    assert table[2]["class"] == "c" and table[2]["recall"] == pytest.approx(hits[2] / hits.sum())


def test_average_precision_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    targets, logits = rng.random((100, 5)) < 0.3, rng.normal(size=(100, 5))
    expected = np.mean([average_precision_score(targets[:, k], logits[:, k]) for k in range(5)])
    assert mean_average_precision(logits, targets) == pytest.approx(expected)
    scores = gathered(logits, targets.astype(float), several=True)
    # Images without any label do not count, here as everywhere.
    some = targets.any(axis=1)
    expected = mean_average_precision(logits[some], targets[some])
    assert scores.results()["mean_average_precision"] == pytest.approx(expected)
    assert scores.confusion() is None


def test_calibration_error_by_hand():
    # Three answers of confidence 0.9, of which two are right: |2.7 - 2| / 3.
    logits = np.log(np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]))
    results = gathered(logits, np.eye(2)[[0, 0, 1]]).results()
    assert results["calibration_error"] == pytest.approx(0.7 / 3)


def test_real_accuracy_by_hand():
    """Right where the answer is one of the labels; images without labels do not count."""
    labels = np.array([[0, 2], [1, -1], [-1, -1], [2, -1]])
    logits = np.array([[0, 1, 5], [5, 0, 0], [5, 0, 0], [0, 0, 5]], float)
    targets = np.asarray(multi_hot(labels, 3))
    scores = gathered(logits, targets, several=True)
    assert scores.results()["accuracy"] == pytest.approx(2 / 3) and scores.examples == 3


def test_padding_counts_nowhere():
    logits, targets = np.eye(3), np.eye(3)
    scores = gathered(logits, targets, mask=np.array([1.0, 0.0, 1.0]))
    assert (scores.examples, scores.results()["accuracy"]) == (2, 1)


def test_the_eval_verb_writes_tables(trained_run, tmp_path, capsys):
    tables = [f"--per-class={tmp_path / 'classes.csv'}", f"--confusion={tmp_path / 'matrix.csv'}"]
    assert dispatch(["eval", f"--model={trained_run}", "--data=digits", *tables]) == 0
    assert "calibration_error" in capsys.readouterr().out
    with (tmp_path / "classes.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["class", "images", "recall", "precision"]
    assert [row[1] for row in rows[1:]] == ["50"] * 10
    with (tmp_path / "matrix.csv").open() as file:
        matrix = np.array([row[1:] for row in list(csv.reader(file))[1:]], int)
    assert matrix.sum() == 500
