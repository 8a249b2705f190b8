"""Few-shot: the solver against scikit-learn, the draw of the shots, the whole evaluation."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import vit_jax
from tests.data.images import jpeg, photo, write
from vit_jax.cli import dispatch, run_verb
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluate import features
from vit_jax.evaluate.fewshot import (
    BIAS_FEATURE,
    L2,
    FewShot,
    check_enough,
    class_orders,
    fewshot_accuracies,
    solutions,
)


def orders(labels, classes, seeds=3):
    return [class_orders(labels, classes, seed) for seed in range(seeds)]


@pytest.mark.parametrize("kind", ["plain", "badly scaled", "correlated"])
@pytest.mark.parametrize(("classes", "shots", "d"), [(4, (20, 50), 30), (4, (5, 8), 200)])
def test_the_solver_agrees_with_scikit_learn(kind, classes, shots, d):
    rng = np.random.default_rng(0)
    labels = np.arange(classes * 60) % classes
    x = rng.normal(size=(classes, d))[labels] + rng.normal(5, 2, (len(labels), d))
    if kind == "correlated":
        x = 0.01 * x + rng.normal(size=(len(labels), 1))
    if kind == "badly scaled":
        x = x * 10.0 ** rng.uniform(-3, 3, d) + 10.0 ** rng.uniform(-3, 3, d)
    x = x.astype(np.float32)
    drawn = orders(labels, classes, seeds=2)
    l2s = (0.5, 64.0, 1024.0)
    found = list(solutions(x, drawn, shots, l2s))
    assert len(found) == 2 * len(shots) * len(l2s)
    cases = itertools.product(drawn, shots, l2s)
    for (shot, l2, solution), (order, *expected) in zip(found, cases, strict=True):
        assert [shot, l2] == expected
        rows = np.concatenate([part[:shot] for part in order])
        with_bias = standardised(x, x[rows])
        targets = 2 * np.eye(classes)[labels[rows]] - 1
        ridge = Ridge(alpha=l2, fit_intercept=False).fit(with_bias[rows], targets)
        np.testing.assert_allclose(solution(x), ridge.predict(with_bias), atol=1e-4)


def standardised(x, shots):
    """As the published evaluation does it, with the bias feature."""
    shots = shots.astype(np.float64)
    scaled = (x - shots.mean(axis=0)) / (shots.std(axis=0) + 1e-5)
    return np.pad(scaled, ((0, 0), (0, 1)), constant_values=BIAS_FEATURE)


def test_the_sum_of_many_images_keeps_its_digits():
    """Large enough for float32 with a large l2, and for float64 with a small one."""
    rng = np.random.default_rng(0)
    labels = np.arange(4000) % 4
    x = (rng.normal(3, 1, (4000, 1)) + 0.1 * rng.normal(size=(4000, 64))).astype(np.float32)
    order = [class_orders(labels, 4, 0)]
    with_bias = standardised(x, x)
    for l2 in (1024.0, 1.0):
        ((_, _, solution),) = solutions(x, order, (1000,), (l2,))
        ridge = Ridge(alpha=l2, fit_intercept=False).fit(with_bias, 2 * np.eye(4)[labels] - 1)
        np.testing.assert_allclose(solution(x), ridge.predict(with_bias), atol=1e-4)


def test_no_penalty_at_all_is_told_where_it_matters():
    with pytest.raises(UsageError, match="l2 is too small for these features"):
        list(solutions(np.zeros((8, 2)), [[np.arange(4), np.arange(4, 8)]], (4,), (1e-320,)))


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
        fewshot_accuracies(test[0], test, [[np.array([0])]], (1,))


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


def test_the_verb_shows_every_l2_and_chooses_none(trained_run, capsys):
    command = ["fewshot", f"--model={trained_run}", "--data=digits", "--shots=1,2", "--json"]
    command += ["--seeds=2", "--train-split=train[:50%]"]
    assert dispatch([*command, "--l2=64,1024"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both.keys() == {
        f"{shot}_shot_l2_{l2}{what}"
        for shot in (1, 2) for l2 in (64, 1024) for what in ("", "_std")
    }  # fmt: skip
    assert dispatch(command) == 0
    one = json.loads(capsys.readouterr().out)
    assert one == {key: both[key.replace("_shot", "_shot_l2_1024")] for key in one}
    for wrong in ("0", "a", "-1,5", "nan"):
        assert run_verb(dispatch, [*command, f"--l2={wrong}"]) == 2
        assert "expected numbers above 0" in capsys.readouterr().err


def test_the_verb_names_a_class_with_too_few_images(trained_run, tmp_path, capsys):
    for number in range(4):
        write(tmp_path / "train" / "dog" / f"{number}.jpg", jpeg(photo(seed=number)))
    write(tmp_path / "train" / "cat" / "1.jpg", jpeg(photo(seed=9)))
    write(tmp_path / "test" / "cat" / "1.jpg", jpeg(photo(seed=8)))
    command = ["fewshot", f"--model={trained_run}", f"--data={tmp_path}", "--shots=1,3"]
    assert run_verb(dispatch, command) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "vit-jax: class 'cat' has 1 training images, 3 shots need 3: lower --shots or add images"
    )


MEASURE = """
import json, sys
import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import vit_jax
from vit_jax.data.sources import open_source
from vit_jax.evaluate.fewshot import FewShot
from vit_jax.train import cluster

cluster.join()
mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
model = vit_jax.create_model("Pico/8", image_size=16, depth=1, pooling="gap", position_std=0.3)
splits = (open_source("digits", split, 16) for split in ("train", "test"))
options = {"batch_size": int(sys.argv[1]), "sharding": NamedSharding(mesh, PartitionSpec("batch"))}
results = FewShot(*splits, (1, 5), **options)(model)
if cluster.is_lead():
    print(json.dumps(results))
"""


def test_results_are_the_same_for_any_number_of_processes_and_batch_size():
    found = []
    for processes, devices, batch_size in ((1, 2, 256), (2, 1, 60)):
        command = [sys.executable, "launch/local.py", f"--processes={processes}"]
        command += [f"--devices-per-process={devices}", "--", sys.executable, "-c", MEASURE]
        result = subprocess.run([*command, str(batch_size)], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-2000:]
        found.append(json.loads(result.stdout.splitlines()[-1]))
    assert found[0] == found[1] and 0.2 < found[0]["5_shot"] < 1
