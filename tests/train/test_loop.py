"""Whole runs: what they leave behind, and that an interrupted one is the same run."""

import dataclasses
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest

from tests.train.small_run import small_config
from vit_jax.data import batches
from vit_jax.errors import UsageError
from vit_jax.train import loop
from vit_jax.train.checkpoint import Checkpoints
from vit_jax.train.config import evaluator, run_config
from vit_jax.train.loop import train
from vit_jax.train.usage import MEASURED
from vit_jax.weights.checkpoint import finished_steps
from vit_jax.weights.load import read_weights
from vit_jax.weights.paths import as_path
from vit_jax.weights.run_folder import RunFolder, read_json, write_json


class Interrupted(Exception):
    pass


def final_state(workdir):
    """The last checkpoint as numpy leaves by path: parameters, moments, counters."""
    run = run_config(small_config())
    program = loop.make_program(
        run, loop.open_source("digits", "train", 16), loop.make_mesh(run.mesh)
    )
    with Checkpoints(RunFolder(pathlib.Path(workdir)).checkpoints, keep=2) as checkpoints:
        state = checkpoints.restore_newest(program.state).state
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def without_time(record):
    return {k: v for k, v in record.items() if k.removeprefix("train/") not in MEASURED}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    config = small_config()
    config.evaluators.digits = evaluator("digits", every="6 steps")
    return workdir, train(run_config(config), workdir)


def test_a_run_leaves_its_record(whole_run):
    workdir, summary = whole_run
    folder = RunFolder(workdir)
    assert read_json(folder.summary) == summary
    assert summary["steps"] == 12 and summary["examples"] == 192
    records = folder.metrics_records()
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
    assert {"train/loss", "train/accuracy", "train/learning_rate"} <= records[0].keys()
    assert [r["step"] for r in records if "digits/accuracy" in r] == [6, 12]
    assert read_json(folder.config)["batch_size"] == 16
    assert folder.network().num_classes == 10
    assert folder.class_names() == tuple("0123456789")
    assert read_json(folder.environment)["packages"]["jax"] == jax.__version__
    assert list(folder.tensorboard.glob("events.out.tfevents.*"))


def test_an_interrupted_run_resumes_as_the_same_run(whole_run, tmp_path, monkeypatch):
    config = small_config()
    config.evaluators.digits = evaluator("digits", every="6 steps")
    seen = record_batches(monkeypatch, stop_before=9)
    with pytest.raises(Interrupted):
        train(run_config(config), tmp_path)
    assert [step for step, _ in seen] == list(range(9))
    seen = record_batches(monkeypatch)
    resumed = train(run_config(config), tmp_path)

    workdir, uninterrupted = whole_run
    assert [step for step, _ in seen] == [5, 6, 7, 8, 9, 10, 11]  # from the checkpoint of step 5
    assert without_time(resumed["metrics"]) == without_time(uninterrupted["metrics"])
    assert [without_time(r) for r in RunFolder(tmp_path).metrics_records()] == [
        without_time(r) for r in RunFolder(workdir).metrics_records()
    ]
    expected, actual = final_state(workdir), final_state(tmp_path)
    assert expected.keys() == actual.keys() and any("opt_state" in key for key in expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(actual[key], value, err_msg=key)
    fresh = loop.train_batches(
        loop.open_source("digits", "train", 16),
        batch_size=16, image_size=(16, 16), seed=0, crop="inception",
    )  # fmt: skip
    for step, labels in seen:
        np.testing.assert_array_equal(labels, fresh[step]["label"])


def record_batches(monkeypatch, stop_before=None):
    """Notes (step, labels) of the batches that are trained on; raises instead of one."""
    seen = []

    def on_device(*args, start, **kwargs):
        for step, batch in enumerate(batches.on_device(*args, start=start, **kwargs), start):
            if step == stop_before:
                raise Interrupted
            seen.append((step, np.asarray(batch["label"])))
            yield batch

    monkeypatch.setattr(loop, "on_device", on_device)
    return seen


def test_a_finished_run_is_left_alone(whole_run, capsys):
    workdir, summary = whole_run
    before = (RunFolder(workdir).metrics).read_text()
    assert train(run_config(small_config()), workdir) == summary
    assert "nothing to do" in capsys.readouterr().err
    assert RunFolder(workdir).metrics.read_text() == before


def test_fine_tuning_starts_from_another_run_at_another_resolution(whole_run, tmp_path, capsys):
    workdir, _ = whole_run
    config = small_config(image_size=(32, 24), init=str(workdir), total="1 steps")
    config.optimizer.update(name="sgd", weight_decay=0.0, warmup="0 steps", learning_rate=1e-6)
    train(run_config(config), tmp_path)
    said = capsys.readouterr().err
    assert "resized positions 2x2 -> 4x3" in said
    assert "created head for 10 classes" in said
    params = final_params(tmp_path)
    pretrained = final_params(workdir)
    kernel = ("encoder", "blocks", "mlp", "up", "kernel")
    np.testing.assert_allclose(dig(params, kernel), dig(pretrained, kernel), atol=1e-5)
    assert np.abs(params["head"]["kernel"]).max() < 1e-4


def test_a_run_killed_before_its_summary_keeps_its_results(whole_run, tmp_path):
    workdir, summary = whole_run
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    (tmp_path / "summary.json").unlink()
    again = train(run_config(small_config()), tmp_path)
    assert again["metrics"] == summary["metrics"]
    assert again["seconds"] >= summary["metrics"]["train/seconds"] - 0.1


def test_a_record_cut_off_by_a_crash_is_dropped(whole_run, tmp_path):
    shutil.copytree(whole_run[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "summary.json").unlink()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "train/lo')
    train(run_config(small_config()), tmp_path)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == (whole_run[0] / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("section", "change", "says"),
    [
        (None, {"image_size": 32}, "image_size 16 -> 32"),
        (None, {"seed": 1}, "seed 0 -> 1"),
        ("optimizer", {"name": "sgd", "weight_decay": 0.0}, "optimizer.name adamw -> sgd"),
        ("data", {"flip": False}, "data.flip True -> False"),
    ],
)
def test_a_folder_belongs_to_one_run(whole_run, section, change, says):
    config = small_config()
    (config[section] if section else config).update(change)
    with pytest.raises(UsageError, match=re.escape(says)):
        train(run_config(config), whole_run[0])


def test_weights_that_are_not_there_leave_nothing_that_looks_like_a_run(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder: no/run"):
        train(run_config(small_config(init="no/run")), tmp_path)
    assert not RunFolder(tmp_path).is_run()


def test_a_folder_without_a_checkpoint_is_free(tmp_path):
    folder = RunFolder(tmp_path)  # as a run leaves it that is killed before its first checkpoint
    write_json(folder.config, dataclasses.asdict(run_config(small_config())) | {"network": {}})
    train(run_config(small_config(batch_size=32, total="1 steps")), tmp_path)
    assert read_json(folder.config)["batch_size"] == 32


def test_what_does_not_change_the_run_may_change(whole_run):
    config = small_config(log_every="5 steps", checkpoints_kept=5)
    config.model.remat = "full"
    assert train(run_config(config), whole_run[0]) == whole_run[1]


def test_an_evaluator_must_know_the_classes(tmp_path):
    config = small_config()
    config.evaluators.letters = evaluator("glyphs")
    with pytest.raises(UsageError, match="the model knows 10 classes, glyphs has 230"):
        train(run_config(config), tmp_path)


def test_a_workdir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is no folder to write to"):
        train(run_config(small_config()), tmp_path / "file")


def test_a_run_in_a_bucket_is_the_same_run(tmp_path, bucket):
    config = small_config(total="6 steps", checkpoint_every="2 steps", checkpoints_kept=2)
    for workdir in (tmp_path, bucket):
        train(run_config(config), f"{workdir}/run")
    local, remote = (RunFolder(as_path(f"{place}/run")) for place in (tmp_path, bucket))
    learned = [
        [without_time(record) for record in folder.metrics_records()] for folder in (local, remote)
    ]
    assert learned[0] == learned[1] and len(learned[0]) == 3
    assert finished_steps(remote.checkpoints) == finished_steps(local.checkpoints) == [4, 6]
    weights = [read_weights(folder.path).params for folder in (local, remote)]
    jax.tree.map(np.testing.assert_array_equal, *weights)
    assert read_json(remote.summary)["steps"] == 6
    names = [{path.name for path in folder.path.iterdir()} for folder in (local, remote)]
    assert names[0] - {".lock"} == names[1]  # what holds a bucket is given back


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_bucket_that_is_not_for_us_is_refused(method, bucket, bucket_server):
    bucket_server.refuse = lambda verb, bucket, name: 403 if verb == method else None
    with pytest.raises(UsageError, match="403"):
        train(run_config(small_config()), f"{bucket}/run")
    assert not bucket_server.names(bucket.removeprefix("gs://"))


def test_a_bucket_that_is_not_there_is_refused_and_not_made(bucket_server):
    with pytest.raises(UsageError, match="there is no bucket"):
        train(run_config(small_config()), "gs://of-nobody/run")
    assert "of-nobody" not in bucket_server.objects


def test_the_device_has_the_next_steps_while_a_record_is_written(tmp_path, monkeypatch):
    handed_over, ahead = [], {}
    compile_step, write = loop._compile, loop.MetricsWriter.write

    def compiled(*args):
        step = compile_step(*args)
        return lambda *values: handed_over.append(step) or step(*values)

    def written(self, step, values):
        ahead[step] = len(handed_over) - step
        write(self, step, values)

    monkeypatch.setattr(loop, "_compile", compiled)
    monkeypatch.setattr(loop.MetricsWriter, "write", written)
    train(run_config(small_config(log_every="1 steps", total="8 steps")), tmp_path)
    # Except at checkpoints, those of steps 5 and 8.
    assert list(ahead.values()) == [2, 2, 2, 1, 0, 2, 1, 0]


def test_training_learns(tmp_path):
    config = small_config(total="40 steps", batch_size=32, log_every="8 steps")
    config.model.update(dropout=0.0, stochastic_depth=0.0, position_std=0.3)
    config.optimizer.update(learning_rate=0.005)
    config.data.update(crop="resize", flip=False)
    losses = [r["train/loss"] for r in _train_and_read(config, tmp_path)]
    assert losses[-1] < 0.7 * losses[0]


def test_several_labels_per_image_train_with_the_sigmoid_loss(tmp_path):
    config = small_config(loss="sigmoid", total="2 steps")
    config.optimizer.update(warmup="0 steps")
    config.data.update(name="visual_atoms_multi")
    config.model.update(head_bias=-10.0)
    (record,) = _train_and_read(config, tmp_path)
    # 21,000 confident noes cost 1 in all, each of one to four missed yeses costs 10.
    assert 10 < record["train/loss"] < 45


def _train_and_read(config, workdir):
    train(run_config(config), workdir)
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def final_params(workdir):
    return read_weights(workdir).params


def dig(tree, keys):
    for key in keys:
        tree = tree[key]
    return tree


def test_fine_tuning_takes_over_the_architecture_it_starts_from(tmp_path):
    config = small_config(total="1 steps")
    config.model.update(pooling="gap", positions="sincos2d", registers=2)
    train(run_config(config), tmp_path / "first")
    config = small_config(total="1 steps", init=str(tmp_path / "first"), checkpoint_every="1 steps")
    train(run_config(config), tmp_path / "second")
    network = RunFolder(tmp_path / "second").network()
    assert (network.pooling, network.positions, network.registers) == ("gap", "sincos2d", 2)
    shutil.rmtree(tmp_path / "first")
    config.total = "2 steps"
    assert train(run_config(config), tmp_path / "second")["steps"] == 2  # resumed without it
