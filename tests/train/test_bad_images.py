"""One bad image kills no run; too many end it; none fills the memory."""

import pytest

from tests.data.images import broken_folder
from tests.train.small_run import small_config
from vit_jax.data.folder import shuffled
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.train.config import evaluator, run_config
from vit_jax.train.loop import train
from vit_jax.weights.paths import as_path
from vit_jax.weights.run_folder import RunFolder

BAD = ("cut.jpg", "empty.jpg", "words.jpg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return broken_folder(tmp_path_factory.mktemp("broken"))


def config_for(folder, **data):
    config = small_config(total="6 steps", log_every="1 steps", checkpoint_every="3 steps")
    config.model.depth = 1
    config.data.update(name=str(folder), bad_images_allowed=0.5, **data)
    return config


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_run_goes_on_and_names_each_bad_image_once(place, request, folder, tmp_path, capsys):
    config = config_for(folder)
    workdir = as_path(tmp_path if place == "disk" else request.getfixturevalue("bucket"))
    summary = train(run_config(config), workdir)
    names = (workdir / "bad_images.txt").read_text().splitlines()
    assert sorted(name.split("/")[-1] for name in names) == sorted(BAD)
    said = capsys.readouterr().err
    assert all(said.count(f"{name}, which cannot be read") == 1 for name in BAD)
    assert summary["metrics"]["train/bad_images"] == 3
    # 12000 x 9000 pixels were among them, 324 MB if decoded in full by each of many threads.
    records = RunFolder(workdir).metrics_records()
    assert records[-1]["train/host_memory_gb"] - records[0]["train/host_memory_gb"] < 0.7
    config.total = "7 steps"
    train(run_config(config), workdir)
    assert (workdir / "bad_images.txt").read_text().splitlines() == names  # resumed: not again


def test_a_run_stops_at_the_first_where_that_is_asked_for(folder, tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the image .*(cut|empty|words)\.jpg: "):
        train(run_config(config_for(folder, on_bad_image="raise")), tmp_path)


def test_too_many_bad_images_end_the_run(folder, tmp_path):
    config = config_for(folder)
    config.data.bad_images_allowed = 0.01
    config.total = "100 steps"
    says = r"\d+ of the \d+ images read so far are bad, more than data\.bad_images_allowed=0\.01"
    with pytest.raises(UsageError, match=says):
        train(run_config(config), tmp_path)
    assert (tmp_path / "bad_images.txt").is_file()


def test_no_image_is_so_important_that_it_must_be_there(folder, tmp_path):
    """Not even the first, which tells what labels look like."""
    path, rows = tmp_path / "list.csv", [f"{folder}/train/good/{n}.jpg,cat" for n in range(6)]
    # The order of a list is that of checksums.
    gone = min((f"{folder}/gone{number}.jpg" for number in range(10_000)), key=shuffled)
    lines = [f"{row},train" for row in (f"{gone},cat", *rows)]
    path.write_text("\n".join(["image,label,split", *lines]))
    assert open_source(str(path), "train", 16).where(0) == gone
    config = config_for(tmp_path / "list.csv")
    config.total = "2 steps"
    config.evaluators.same = evaluator(str(tmp_path / "list.csv"), split="train", every="100%")
    assert train(run_config(config), tmp_path / "run")["steps"] == 2
