"""A table of real runs, beside the paper's figures where there are any, and of broken ones."""

import json
import shutil

import pytest

from tests.train.small_run import small_config
from vit_jax.cli import dispatch, run_verb
from vit_jax.insight.results import find_runs, over_seeds, results_text
from vit_jax.train.config import evaluator, run_config
from vit_jax.train.loop import train
from vit_jax.weights.run_folder import read_json, write_json


@pytest.fixture(scope="module")
def sweep(trained_run, tmp_path_factory):
    """Runs in a run, as a sweep leaves them: two seeds, and another one without evaluations."""
    workdir = tmp_path_factory.mktemp("sweep")
    for name, seed in ((".", 0), ("lr_0.01/seed_1", 1)):
        config = small_config(total="2 steps", checkpoint_every="100%", seed=seed)
        config.model.update(width=16, depth=1, mlp_dim=32, heads=2)
        config.evaluators.test = evaluator("digits", every="100%")
        train(run_config(config), workdir / name)
    shutil.copytree(trained_run, workdir / "lr_0.1")
    return workdir


@pytest.fixture
def as_if(trained_run, tmp_path):
    """A copy of a run, and a function that says it was another."""
    path = shutil.copytree(trained_run, tmp_path / "copy")

    def change(model, data, classes, scores, kind="classification", size=384):
        config, summary = read_json(path / "config.json"), read_json(path / "summary.json")
        config["network"] |= {"name": model, "num_classes": classes, "image_size": [size, size]}
        config["data"]["name"] = data
        config["evaluators"] = {"test": {"kind": kind, "data": data, "split": "test"}}
        summary["metrics"] |= {f"test/{key}": value for key, value in scores.items()}
        write_json(path / "config.json", config)
        write_json(path / "summary.json", summary)
        return find_runs([path])

    return change


def columns(text):
    """Row by row, what stands under each head. Columns are two spaces apart at least."""
    header, *lines = text.splitlines()
    names = [name.strip() for name in header.split("  ") if name.strip()]
    starts = [header.index(name) for name in names]
    ends = [*starts[1:], None]
    return [
        {name: line[a:b].strip() for name, a, b in zip(names, starts, ends, strict=True)}
        for line in lines
    ]


def test_runs_are_found_however_deep_and_each_once(sweep):
    runs = find_runs([sweep, sweep / "lr_0.1"])
    assert [run.path for run in runs] == [
        str(sweep / name) for name in ("", "lr_0.01/seed_1", "lr_0.1")
    ]
    assert {run.state for run in runs} == {"finished"}


def test_seeds_have_a_mean_after_the_last_of_them(sweep, capsys):
    assert run_verb(dispatch, ["results", str(sweep)]) == 0
    rows = columns(capsys.readouterr().out)
    ours = [read_json(p / "summary.json")["metrics"]["test/accuracy"] for p in
            (sweep, sweep / "lr_0.01" / "seed_1")]  # fmt: skip
    assert rows[0]["test/accuracy, %"] == f"{100 * ours[0]:.2f}"
    mean, deviation = sum(ours) / 2, abs(ours[0] - ours[1]) / 2
    assert [row["run"] for row in rows][2] == "= mean of 2 seeds"
    assert rows[2]["test/accuracy, %"] == f"{100 * mean:.2f} ± {100 * deviation:.2f}"
    assert rows[3]["run"].endswith("lr_0.1") and rows[3]["state"] == "finished"
    assert rows[3]["model"] == "48x4/8" and rows[3]["test/accuracy, %"] == ""
    expected = {"model": "16x1/8", "from": "scratch", "data": "digits", "px": "16", "steps": "2"}
    assert rows[0].items() >= expected.items()
    assert float(rows[0]["core-hours"]) > 0 and "paper, %" not in rows[0]


def test_json_has_all_of_it(sweep, capsys):
    assert run_verb(dispatch, ["results", str(sweep), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["seed"] for run in found["runs"]] == [0, 1, 0]
    assert found["runs"][0]["metrics"] == read_json(sweep / "summary.json")["metrics"]
    (group,) = found["over_seeds"]
    assert group["seeds"] == [0, 1] and group["scores"].keys() == {"test/accuracy"}


def test_unfinished_runs_have_no_part_in_a_mean(sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "copy")
    (copy / "lr_0.01" / "seed_1" / "summary.json").unlink()
    runs = find_runs([copy])
    assert runs[1].state == "step 2 of 2 steps" and not over_seeds(runs)


@pytest.mark.parametrize(
    ("model", "data", "classes", "size", "paper"),
    [
        ("B/16", "tfds:cifar10", 10, 384, "98.13 / 98.95 / 99.00"),
        ("L/16", "tfds:imagenet2012", 1000, 384, "76.53 / 85.15 / 87.12"),
        ("L/16", "tfds:imagenet2012", 1000, 512, "- / 85.30 / 87.76"),
        ("R50+B/16", "/data/cifar100", 100, 384, "- / - / 92.63"),
        ("BiT-R152x4", "tfds:oxford_iiit_pet", 37, 480, "- / - / 96.62"),
        ("L/16", "vtab:dmlab", 6, 384, "- / 41.9 / 49.7"),
    ],
)
def test_the_paper_stands_beside(as_if, model, data, classes, size, paper):
    (run,) = runs = as_if(model, data, classes, {"accuracy": 0.9, "loss": 0.1}, size=size)
    text = results_text(runs)
    row, _ = columns(text)
    assert row["test/accuracy, %"] == "90.00" and row["paper, %"] == paper
    assert "ImageNet / ImageNet-21k / JFT-300M (Table" in text.splitlines()[-1]
    assert all(figure["percent"] > 40 for figure in run.as_dict()["paper"]["test/accuracy"])


def test_the_paper_has_few_shot_too(as_if):
    scores = {"5_shot": 0.6, "5_shot_std": 0.01, "10_shot": 0.7}
    row, _ = columns(results_text(as_if("L/16", "tfds:imagenet2012", 21843, scores, "fewshot")))
    assert row["test/5_shot, %"] == "60.00" and row["paper, %"] == "- / - / 71.6"
    assert "test/5_shot_std, %" not in row


def test_other_data_have_nothing_beside(as_if):
    runs = as_if("B/16", "tfds:cifar10", 5, {"accuracy": 0.9})
    assert "paper" not in results_text(runs)


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("config.json", "{", "config.json is broken: JSONDecodeError"),
        ("config.json", "[1]", "config.json is broken: TypeError"),
        ("summary.json", "", "summary.json is broken: JSONDecodeError"),
        ("summary.json", "{}", "summary.json is broken: KeyError('steps')"),
        ("metrics.jsonl", "{}\n", "metrics.jsonl is broken: KeyError('step')"),
        ("metrics.jsonl", "\x00\n", "metrics.jsonl is broken: JSONDecodeError"),
    ],
)
def test_a_broken_file_is_told_in_its_row(trained_run, tmp_path, capsys, file, text, says):
    shutil.copytree(trained_run, tmp_path / "a")
    shutil.copytree(trained_run, tmp_path / "b")
    (tmp_path / "a" / file).write_text(text)
    for more in ([], ["--json"]):
        assert run_verb(dispatch, ["results", str(tmp_path), *more]) == 0
        assert says in capsys.readouterr().out
    broken, whole = find_runs([tmp_path])
    assert whole.state == "finished" and broken.state != "finished"


def test_runs_that_stopped_early(trained_run, tmp_path):
    path = shutil.copytree(trained_run, tmp_path / "run")
    (path / "summary.json").unlink()
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train/lo')  # a crash
    assert find_runs([path])[0].state == "step 3 of 3 steps"
    (path / "metrics.jsonl").unlink()
    (run,) = find_runs([path])
    assert (run.state, run.steps, run.scores) == ("step 0 of 3 steps", 0, {})
    assert "48x4/8" in results_text([run])


@pytest.mark.parametrize(
    ("folder", "says"), [("", "no runs in "), ("none", "no such folder: "), ("a.txt", "no such")]
)
def test_where_there_is_nothing(tmp_path, capsys, folder, says):
    (tmp_path / "a.txt").touch()
    assert run_verb(dispatch, ["results", str(tmp_path / folder)]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1


def test_converted_weights_are_no_run(trained_run, tmp_path):
    (tmp_path / "weights").mkdir()
    shutil.copy(trained_run / "config.json", tmp_path / "weights")
    shutil.copytree(trained_run, tmp_path / "run")
    assert [run.path for run in find_runs([tmp_path])] == [str(tmp_path / "run")]
