"""What a user types about a run in a bucket is what they type about one on disk."""

import json

import cv2
import jax
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.train.small_run import small_config
from vit_jax.cli import dispatch, run_verb
from vit_jax.errors import UsageError
from vit_jax.train.config import run_config
from vit_jax.train.loop import train
from vit_jax.weights.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(bucket_server):
    """The gs:// of a finished run of a few steps."""
    bucket_server.objects["runs"] = {}
    train(run_config(small_config(total="3 steps")), "gs://runs/some/run")
    return "gs://runs/some/run"


def typed(capsys, *arguments):
    """What it prints."""
    assert run_verb(dispatch, list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def params(path):
    return nnx.to_pure_dict(nnx.state(vit_jax.load(path)))


def test_it_is_evaluated_and_predicted_with(run, trained_run, tmp_path, capsys):
    command = ["eval", "--data=digits", "--batch-size=16", "--json"]
    results = [
        json.loads(typed(capsys, *command, f"--model={model}")) for model in (run, trained_run)
    ]
    assert results[0] == results[1]
    image = tmp_path / "0.png"
    cv2.imwrite(str(image), np.zeros((16, 16, 3), np.uint8))
    assert "0.png" in typed(capsys, "predict", f"--model={run}", str(image), "--top=1")


def test_it_is_reported(run, capsys, bucket_server):
    assert typed(capsys, "report", run).strip() == f"{run}/report.html"
    assert b"<html" in bucket_server.get("runs", "some/run/report.html", {}).data
    assert b"PNG" in bucket_server.get("runs", "some/run/plots/filters.png", {}).data
    (found,) = json.loads(typed(capsys, "results", "gs://runs", "--json"))["runs"]
    assert found["path"] == run and found["state"] == "finished"


def test_it_is_converted_and_back(run, tmp_path, capsys):
    for source, target in (
        (run, tmp_path / "a.npz"),
        (tmp_path / "a.npz", "gs://runs/b.npz"),
        ("gs://runs/b.npz", "gs://runs/converted"),
    ):
        assert str(target) in typed(capsys, "convert", str(source), str(target))
        jax.tree.map(np.testing.assert_array_equal, params(target), params(run))
    assert run_verb(dispatch, ["convert", run, "gs://of-nobody/a.npz"]) == 2
    assert "there is no bucket" in capsys.readouterr().err


def test_others_start_from_it(run, tmp_path):
    config = small_config(total="1 steps", init=run)
    config.teacher.update(path=run)
    train(run_config(config), tmp_path)
    assert json.loads(RunFolder(tmp_path).config.read_text())["teacher_version"] == "step 3"


@pytest.mark.parametrize("path", ["gs://runs/none", "gs://of-nobody/run"])
def test_what_is_not_there(path, bucket_server):
    with pytest.raises(UsageError, match="no such file or folder: gs://"):
        vit_jax.load(path)
