"""VTAB-1k from one command, on data that is made up, with a network of one thin block."""

import json
import shutil

import pytest

import vit_jax
from tests.data.fake_tfds import mocked_tfds, pretend_to_be_prepared
from tests.train.test_loop import record_batches
from vit_jax import vtab as verb
from vit_jax.cli import dispatch, run_verb
from vit_jax.data.vtab import TASKS
from vit_jax.evaluate.paper import TABLE_9_TASKS
from vit_jax.models.variants import model_config
from vit_jax.weights.run_folder import RunFolder, read_json

# The smallest that have 800 + 200 images to train on, and some to test on.
SIZES = {"train": 2000, "validation": 200, "test": 16}
PARTS_OF_TEST = {"smallnorb:2.*.*": {"train": 800, "test": 416}}

SMALL = [
    "--config.total=2 steps", "--config.optimizer.warmup=0 steps", "--config.batch_size=16",
    "--config.image_size=16", "--config.model.dtype=float32", "--config.checkpoint_every=100%",
]  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with all data sets of VTAB."""
    folder = tmp_path_factory.mktemp("tfds")
    for name in {task.builder for task in TASKS.values()}:
        pretend_to_be_prepared(name, folder, PARTS_OF_TEST.get(name, SIZES))
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """An npz of a network whose shape has no name."""
    path = tmp_path_factory.mktemp("weights") / "tiny.npz"
    shape = {"width": 16, "depth": 1, "mlp_dim": 32, "heads": 2}
    vit_jax.save_npz(vit_jax.create_model("Pico/8", image_size=16, num_classes=3, **shape), path)
    return path


def typed(weights, workdir, *more):
    return run_verb(dispatch, ["vtab", f"--model={weights}", f"--workdir={workdir}", *SMALL, *more])


THREE = ("pets", "svhn", "eurosat")


@pytest.fixture(scope="module")
def three_tasks(prepared, weights, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("three")
    with mocked_tfds(prepared):
        assert typed(weights, workdir, f"--tasks={','.join(THREE)}") == 0
    return workdir


@pytest.mark.slow
def test_all_nineteen_run_end_to_end(prepared, weights, three_tasks, tmp_path):
    workdir = shutil.copytree(three_tasks, tmp_path / "all")  # three less to wait for
    with mocked_tfds(prepared):
        assert typed(weights, workdir) == 0
    results = read_json(workdir / "vtab.json")
    assert list(results["accuracy"]) == list(TASKS) and not results["problems"]
    for task, accuracy in results["accuracy"].items():
        folder = RunFolder(workdir / task)
        (record,) = (r for r in folder.metrics_records() if "test/accuracy" in r)
        assert record["step"] == 2 and record["test/accuracy"] == accuracy
        config = read_json(folder.config)
        assert config["data"]["name"] == f"vtab:{task}"
        assert config["data"]["split"] == "train800val200" and config["init"] == str(weights)
        assert folder.network().num_classes == TASKS[task].num_classes
    values = list(results["accuracy"].values())
    assert results["vtab_mean"] == pytest.approx(sum(values) / 19)
    specialized = {"mean": pytest.approx(sum(values[7:11]) / 4), "tasks": 4}
    assert results["groups"]["specialized"] == specialized


def test_what_is_done_is_not_done_again(
    three_tasks, prepared, weights, tmp_path, monkeypatch, capsys
):
    """Interrupted in the second of three tasks, it goes on there."""
    shutil.copytree(three_tasks / "pets", tmp_path / "pets")
    before = (tmp_path / "pets" / "metrics.jsonl").stat()
    seen = record_batches(monkeypatch, stop_before=1)
    flags = (f"--tasks={','.join(THREE)}", "--config.checkpoint_every=1 steps")
    with mocked_tfds(prepared):
        assert typed(weights, tmp_path, *flags) == 1
        assert "Interrupted" in capsys.readouterr().err
        assert len(seen) == 1  # of svhn, and none of pets
        assert read_json(tmp_path / "vtab.json")["accuracy"].keys() == {"pets"}
        seen = record_batches(monkeypatch)
        assert typed(weights, tmp_path, *flags) == 0
    assert [step for step, _ in seen] == [1, 0, 1]  # the rest of svhn, all of eurosat
    assert (tmp_path / "pets" / "metrics.jsonl").stat() == before
    results = read_json(tmp_path / "vtab.json")
    uninterrupted = read_json(three_tasks / "vtab.json")
    assert tuple(results["accuracy"]) == THREE and results["vtab_mean"] is None
    assert results["accuracy"] == uninterrupted["accuracy"]


def test_a_task_without_data_is_named_and_costs_no_other(
    three_tasks, prepared, weights, tmp_path, capsys
):
    shutil.copytree(three_tasks / "pets", tmp_path / "pets")
    some = tmp_path / "some"
    shutil.copytree(prepared / "oxford_iiit_pet", some / "oxford_iiit_pet")
    with mocked_tfds(some):
        flags = ("--tasks=clevr_count,pets,clevr_distance", "--json")
        assert typed(weights, tmp_path, *flags) == 1
        printed = capsys.readouterr()
        assert typed(weights, tmp_path, *flags[:1]) == 1
    results = json.loads(printed.out)
    assert results["accuracy"].keys() == {"pets"} and results["vtab_mean"] is None
    assert results["groups"] == {"natural": {"mean": results["accuracy"]["pets"], "tasks": 1}}
    assert "cannot be read, left out: clevr_count, clevr_distance" in printed.err
    text = capsys.readouterr().out
    assert "= natural, 1 of 7" in text and "= mean of these, no VTAB score" in text
    last = text.splitlines()[-1]
    assert last.startswith("no result for clevr_count, clevr_distance: the TFDS data set clevr:3")
    assert "tfds build clevr:3.*.* --file_format=array_record" in last
    assert results["problems"].keys() == {"clevr_count", "clevr_distance"}


def test_the_data_of_a_finished_task_may_go(three_tasks, weights, tmp_path, capsys):
    workdir = shutil.copytree(three_tasks, tmp_path / "copy")
    with mocked_tfds(tmp_path / "nothing"):
        assert typed(weights, workdir, f"--tasks={','.join(THREE)}") == 0
    assert read_json(workdir / "vtab.json") == read_json(three_tasks / "vtab.json")
    *_, mean, changes = capsys.readouterr().out.splitlines()
    assert mean.startswith("= mean of these, no VTAB score")
    assert changes.startswith("not the paper's setting: --config.total=2 steps")


def test_a_task_that_diverges_is_named(prepared, weights, tmp_path, capsys):
    flags = (
        "--tasks=svhn",
        "--config.optimizer.learning_rate=1e38",
        "--config.bad_steps_allowed=1",
    )
    with mocked_tfds(prepared):
        assert typed(weights, tmp_path, *flags) == 1
    assert "no result for svhn" in capsys.readouterr().out
    assert "not finite" in read_json(tmp_path / "vtab.json")["problems"]["svhn"]


def test_a_folder_belongs_to_its_weights(three_tasks, weights, tmp_path, capsys):
    other = shutil.copy(weights, tmp_path / "other.npz")
    assert typed(other, three_tasks) == 2
    error = capsys.readouterr().err
    assert f"holds the tasks of {weights}" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tasks=cifar10"], "unknown VTAB task 'cifar10'. Did you mean cifar100?"),
        (["--config=configs/demo.py"], "--config=configs/demo.py: leave it out"),
        (["--config.data.name=digits"], "--config.data.name=digits: leave it out"),
        (["--config.optimizer.learning_rat=1"], "Did you mean learning_rate?"),
        (["--model=B/16"], "no such file or folder: B/16"),
        (["--workdir=s3://bucket/vtab"], "expected a path on disk, or in a bucket as in gs://"),
        (["--workdir=/dev/null/vtab"], "is no folder to write to"),
    ],
)
def test_mistakes(weights, tmp_path, capsys, flags, says):
    assert typed(weights, tmp_path, *flags) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_setting_is_that_of_the_paper():
    config = verb.task_config("l16.npz", model_config("L/16"), "dsprites_position", ())
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.learning_rate) == ("sgd", 0.9, 0.01)
    assert (optimizer.schedule, optimizer.clip_norm, optimizer.weight_decay) == ("cosine", 1, 0)
    assert (config.total, config.batch_size, config.image_size) == ("2500 steps", 512, 384)
    assert (config.data.split, config.evaluators["test"].split) == ("train800val200", "test")
    assert (config.model.name, config.init, config.data.flip) == ("", "l16.npz", False)


@pytest.mark.parametrize(
    ("name", "pixels"),
    [("H/14", 378), ("B/32", 384), ("R50+B/16", 384), ("R+Ti/16", 384), ("BiT-R50x1", 384)],
)
def test_images_are_of_the_nearest_size_that_fits(name, pixels):
    network = model_config(name, image_size=224)
    config = verb.task_config("x.npz", network, "pets", ())
    assert config.image_size == pixels
    changed = verb.task_config("x.npz", network, "pets", ["--config.image_size=448"])
    assert changed.image_size == 448


def test_the_table_puts_the_papers_columns_beside(capsys):
    """As if the paper's own L/16 had been measured: its column must come out twice."""
    column = verb.TABLE_9["L/16", "JFT-300M"]
    accuracy = {task: value / 100 for task, value in zip(TABLE_9_TASKS, column, strict=True)}
    lines = verb.Results("w", "step 1", "Mine", accuracy=accuracy).text().splitlines()
    assert lines[0].split("  ")[-3:] == ["H/14 JFT-300M", "L/16 JFT-300M", "L/16 ImageNet-21k"]
    assert len(lines) == 1 + 19 + 3 + 1
    for line in lines[1:]:
        ours, _, same, _ = line.split()[-4:]
        assert ours == same
    assert lines[-1].split() == ["=", "VTAB", "mean", "76.3", "77.6", "76.3", "72.7"]
    natural = next(line for line in lines if line.startswith("= natural "))
    assert natural.split()[3] == "86.7"  # Fig. 2
