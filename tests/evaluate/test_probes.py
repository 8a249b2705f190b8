"""Linear probe and neighbours: on features where the answer is known, and on a model's."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from vit_jax.cli import dispatch
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluate.evaluators import KINDS, make_evaluator
from vit_jax.evaluate.probes import LinearProbe, Neighbours, linear_probe, neighbours_accuracy
from vit_jax.models.network import create_model


def clouds(count, spread, seed):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(4, 16))
    labels = np.arange(count) % 4
    features = centres[labels] + spread * rng.normal(size=(count, 16))
    return features.astype(np.float32), labels


def test_clouds_that_lie_apart_are_told_apart():
    train, test = clouds(400, 0.3, 1), clouds(200, 0.3, 2)
    assert linear_probe(train, test)["accuracy"] > 0.98
    assert neighbours_accuracy(train, test, 20, 4) > 0.98


def test_the_linear_probe_is_scikit_learns():
    (x, y), test = clouds(200, 1.5, 1), clouds(300, 1.5, 2)
    is_held_out = np.arange(len(x)) % 10 == 0

    def classifier(inverse_l2):
        return LogisticRegression(C=inverse_l2, max_iter=1000)

    scaler = StandardScaler().fit(x)
    scaled = scaler.transform(x)
    held_out_accuracies = {
        c: classifier(c).fit(scaled[~is_held_out], y[~is_held_out])
        .score(scaled[is_held_out], y[is_held_out])
        for c in (0.01, 0.1, 1.0, 10.0)
    }  # fmt: skip
    found = linear_probe((x, y), test)
    assert held_out_accuracies[found["inverse_l2"]] == max(held_out_accuracies.values())
    expected = classifier(found["inverse_l2"]).fit(scaled, y)
    assert found["accuracy"] == expected.score(scaler.transform(test[0]), test[1])


def test_votes_are_weighted_as_scikit_learn_weighs_them():
    train, test = clouds(300, 1.0, 1), clouds(400, 1.0, 2)
    reference = KNeighborsClassifier(
        15, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07)
    )
    assert neighbours_accuracy(train, test, 15, 4) == reference.fit(*train).score(*test)


def test_the_penalty_is_chosen_where_it_matters():
    train, test = clouds(40, 3.0, 1), clouds(400, 3.0, 2)
    found = linear_probe(train, test)
    assert found["inverse_l2"] < 10 and 0.25 < found["accuracy"] < 1


def test_one_neighbour_is_the_nearest_by_angle():
    train, test = clouds(300, 1.0, 1), clouds(1500, 1.0, 2)  # more than are compared at a time
    expected = KNeighborsClassifier(1, metric="cosine").fit(*train).score(*test)
    assert neighbours_accuracy(train, test, 1, 4) == pytest.approx(expected)
    assert neighbours_accuracy(train, test, 10_000, 4) > 0.25  # all there are


def test_probes_of_a_model_are_above_chance_and_run_as_evaluators():
    model = create_model("Pico/8", image_size=16, pooling="gap", position_std=0.3)
    train, test = (open_source("digits", split, 16) for split in ("train", "test"))
    few = open_source("digits", "train[:400]", 16)
    assert LinearProbe(few, test)(model)["accuracy"] > 0.4
    assert {"linear", "neighbours"} <= set(KINDS)
    evaluator = make_evaluator(
        "neighbours", "digits", "test", image_size=(16, 16), num_classes=10, batch_size=256
    )
    found = evaluator(model)
    assert found == Neighbours(train, test)(model) and found["accuracy"] > 0.3


def test_the_probe_verb(trained_run, capsys):
    command = ["probe", f"--model={trained_run}", "--data=digits", "--k=5", "--json"]
    assert dispatch([*command, "--train-split=train[:200]", "--split=test[:50]"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {
        "linear_probe", "inverse_l2", "5_neighbours",
    }  # fmt: skip


def test_several_labels_are_refused():
    model = create_model("Pico/8", image_size=16, depth=1)
    source = open_source("visual_atoms_multi", "test[:8]", 16)
    with pytest.raises(UsageError, match="one label per image"):
        Neighbours(source, source)(model)
