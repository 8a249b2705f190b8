"""Run folders, files and names into models."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.train.small_run import small_config
from vit_jax.errors import UsageError
from vit_jax.train.config import run_config
from vit_jax.train.loop import train
from vit_jax.weights.hugging_face import write_hugging_face
from vit_jax.weights.layouts import flat
from vit_jax.weights.load import find_weights, read_weights


def test_a_run_folder_becomes_the_model_it_trained(trained_run):
    model = vit_jax.load(trained_run)
    assert model.config.num_classes == 10
    assert np.abs(model.head.kernel[...]).max() > 0  # trained, not fresh
    larger = vit_jax.load(trained_run, image_size=32)
    assert larger(np.zeros((1, 32, 32, 3))).shape == (1, 10)
    np.testing.assert_array_equal(larger.head.kernel[...], model.head.kernel[...])


def test_a_name_becomes_a_fresh_model():
    model = vit_jax.load("Pico/8", image_size=16, num_classes=3)
    assert nnx.to_pure_dict(nnx.state(model))["head"]["kernel"].shape == (128, 3)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("./nowhere", "no such file or folder"),
        ("./nowhere.npz", "no such file or folder"),
        ("weights.npz", "no such file or folder"),
        ("BB/16", "no such file or folder, and unknown model 'BB/16'. Did you mean B/16?"),
        ("runs/mine", "no such file or folder: runs/mine; and not to be had from the Hugging Face"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(path, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # in the source tree there may be runs
    with pytest.raises(UsageError) as error:
        vit_jax.load(path)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is no run folder"):
        vit_jax.load(tmp_path)


def test_a_change_that_no_network_knows_is_refused(trained_run):
    with pytest.raises(UsageError, match=r"Did you mean num_classes\?"):
        vit_jax.load(trained_run, num_clases=3)


def test_fine_tuning_starts_from_an_npz(trained_run, tmp_path):
    vit_jax.save_npz(vit_jax.load(trained_run), tmp_path / "weights.npz")
    config = small_config(total="2 steps", image_size=32, init=str(tmp_path / "weights.npz"))
    train(run_config(config), tmp_path / "tuned")
    tuned, start = (vit_jax.load(path) for path in (tmp_path / "tuned", trained_run))
    assert tuned.config.grid == (4, 4)
    kernels = [model.encoder.blocks.mlp.up.kernel[...] for model in (tuned, start)]
    distance = np.abs(kernels[0] - kernels[1]).max()
    assert 0 < distance < 0.01  # two steps away, not a fresh start


def test_a_table_tells_what_became_of_each_parameter(trained_run):
    loaded = vit_jax.load_with_table(trained_run, image_size=32, num_classes=3)
    fates = {row.name: row.fate for row in loaded.table if row.shape}
    assert fates["embedding/positions/table"] == "resized" and fates["head/kernel"] == "new"
    assert fates["encoder/blocks/mlp/up/kernel"] == "loaded"
    assert fates.keys() == flat(nnx.to_pure_dict(nnx.state(loaded.model))).keys()
    lines = vit_jax.table_text(loaded.table).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "loaded", "loaded", "resized", "new", "left out",
    ]  # fmt: skip
    assert "(1, 5, 48) -> (1, 17, 48)  positions 2x2 -> 4x4" in lines[2]
    assert lines[3].split()[1:] == ["head", "2", "arrays,", "147", "numbers"]
    assert loaded.class_names == ()  # those of ten classes are not those of three
    assert len(vit_jax.load_with_table(trained_run).class_names) == 10


def test_the_table_of_a_name_says_that_all_is_random():
    loaded = vit_jax.load_with_table("Pico/8", image_size=16, depth=1)
    assert {(row.fate, row.note) for row in loaded.table} == {("new", "random")}


def test_fine_tuning_starts_from_a_folder_of_transformers_and_keeps_its_activation(
    trained_run, tmp_path
):
    stored = read_weights(trained_run)
    network = dataclasses.replace(stored.network, activation="gelu", norm_epsilon=1e-12)
    write_hugging_face(tmp_path / "hf", network, stored.params)
    config = small_config(total="1 steps", init=str(tmp_path / "hf"))
    train(run_config(config), tmp_path / "tuned")
    tuned = vit_jax.load(tmp_path / "tuned").config
    assert (tuned.activation, tuned.norm_epsilon) == ("gelu", 1e-12)
    version = find_weights(tmp_path / "hf").version
    assert version == f"{(tmp_path / 'hf' / 'model.safetensors').stat().st_size} bytes"


def test_one_file_of_a_folder_stands_for_it(trained_run, tmp_path):
    stored = read_weights(trained_run)
    write_hugging_face(tmp_path / "hf", stored.network, stored.params)
    assert vit_jax.load(tmp_path / "hf" / "model.safetensors").config.num_classes == 10
    (tmp_path / "hf" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"needs the config.json beside it"):
        vit_jax.load(tmp_path / "hf" / "model.safetensors")
