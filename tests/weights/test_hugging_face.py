"""Folders of transformers: written as it reads them, read as it writes them. See tests_interop."""

import dataclasses
import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from tests.weights.test_npz import images_for, params_of, random_model
from vit_jax.errors import UsageError
from vit_jax.models.config import NOT_IN_WEIGHTS, differences
from vit_jax.weights.hugging_face import write_hugging_face

FITTING = ("token", "headless", "grey", "not_square")


def write(folder, which="token", class_names=()):
    model = random_model(which)
    write_hugging_face(folder, model.config, params_of(model), class_names)
    return model


def change(folder, name="config.json", **values):
    found = json.loads((folder / name).read_text()) | values
    (folder / name).write_text(json.dumps({k: v for k, v in found.items() if v is not None}))


def renamed(folder, rename):
    arrays = load_file(folder / "model.safetensors")
    save_file({rename(key): value for key, value in arrays.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("which", FITTING)
def test_what_was_written_is_read_again_bit_by_bit(which, tmp_path):
    model = write(tmp_path, which)
    again = vit_jax.load(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, params_of(again), params_of(model))
    assert not differences(again.config, model.config).keys() - NOT_IN_WEIGHTS


def test_names_and_shapes_are_those_on_disk(tmp_path):
    write(tmp_path)
    shapes = {k: v.shape for k, v in load_file(tmp_path / "model.safetensors").items()}
    block = "vit.encoder.layer.1"
    assert shapes["vit.embeddings.cls_token"] == (1, 1, 32)
    assert shapes["vit.embeddings.position_embeddings"] == (1, 17, 32)
    assert shapes["vit.embeddings.patch_embeddings.projection.weight"] == (32, 3, 8, 8)
    for name in ("query", "key", "value"):
        assert shapes[f"{block}.attention.attention.{name}.weight"] == (32, 32)
        assert shapes[f"{block}.attention.attention.{name}.bias"] == (32,)
    assert shapes[f"{block}.attention.output.dense.weight"] == (32, 32)
    assert shapes[f"{block}.intermediate.dense.weight"] == (64, 32)
    assert shapes[f"{block}.output.dense.weight"] == (32, 64)
    assert shapes[f"{block}.layernorm_before.weight"] == shapes["vit.layernorm.bias"] == (32,)
    assert shapes["classifier.weight"] == (5, 32)
    assert len(shapes) == 4 + 2 * 16 + 4


def test_the_json_files_say_what_was_trained(tmp_path):
    write(tmp_path, class_names=("ant", "bee", "cat", "dog", "eel"))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["layer_norm_eps"] == 1e-6 and config["hidden_act"] == "gelu_pytorch_tanh"
    assert config["id2label"]["2"] == "cat" and config["label2id"]["eel"] == 4
    assert config["architectures"] == ["ViTForImageClassification"] and config["image_size"] == 32
    processor = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == processor["image_std"] == [0.5, 0.5, 0.5]
    assert processor["size"] == {"height": 32, "width": 32} and processor["resample"] == 2
    assert vit_jax.load_with_table(tmp_path).class_names[0] == "ant"


def test_activation_and_epsilon_are_those_of_the_file_and_stay(tmp_path):
    write(tmp_path)
    change(tmp_path, hidden_act="gelu", layer_norm_eps=1e-12)
    model = vit_jax.load(tmp_path)
    assert (model.config.activation, model.config.norm_epsilon) == ("gelu", 1e-12)
    vit_jax.save_npz(model, tmp_path / "model.npz")  # whose arrays could not tell
    again = vit_jax.load(tmp_path / "model.npz")
    images = images_for(model)
    np.testing.assert_array_equal(again(images), model(images))
    tanh = vit_jax.load(tmp_path / "model.npz", activation="gelu_tanh")
    assert 1e-6 < np.abs(tanh(images) - model(images)).max() < 1e-2


def test_names_in_memory_of_transformers_5_are_read(tmp_path):
    model = write(tmp_path)
    new = {
        "encoder.layer": "layers", "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj", "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    }  # fmt: skip

    def in_memory(name):
        for old, now in new.items():
            name = name.replace(old, now)
        return name

    renamed(tmp_path, in_memory)
    names = load_file(tmp_path / "model.safetensors")
    assert "vit.layers.0.mlp.fc2.bias" in names and "vit.layers.1.attention.o_proj.bias" in names
    jax.tree.map(np.testing.assert_array_equal, params_of(vit_jax.load(tmp_path)), params_of(model))


def test_a_vit_model_with_its_pooler_is_a_network_with_pre_logits(tmp_path):
    model = random_model("pre_logits")
    with pytest.raises(UsageError, match="no tanh layer"):
        write_hugging_face(tmp_path, model.config, params_of(model))
    params = {key: value for key, value in params_of(model).items() if key != "head"}
    write_hugging_face(tmp_path, dataclasses.replace(model.config, num_classes=0), params)
    assert "pooler.dense.weight" in load_file(tmp_path / "model.safetensors")
    again = vit_jax.load(tmp_path)
    assert again.config.representation_size == 24
    images = images_for(model)
    np.testing.assert_allclose(again(images), model.features(images), atol=1e-6)


def test_other_means_and_deviations_are_taken_over_by_the_patches(tmp_path):
    model = write(tmp_path)
    mean, std = np.array([0.48, 0.46, 0.41]), np.array([0.23, 0.22, 0.24])
    values = {"image_mean": mean.tolist(), "image_std": std.tolist()}
    change(tmp_path, "preprocessor_config.json", **values)
    pixels = np.random.default_rng(0).uniform(0, 1, (2, 32, 32, 3))
    expected = model(np.float32((pixels - mean) / std))
    np.testing.assert_allclose(
        vit_jax.load(tmp_path)(np.float32(2 * pixels - 1)), expected, atol=1e-5
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": "deit"}, "'deit' of transformers: expected model_type 'vit'"),
        ({"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu' is not known here"),
        ({"qkv_bias": False}, "expected qkv_bias=true"),
        ({"hidden_size": None}, "config.json has no 'hidden_size'"),
        ({"num_hidden_layers": 3}, "vit.encoder.layer.2.layernorm_before.bias (32,) is missing"),
        ({"num_hidden_layers": 1}, "what networks here have no place for: vit."),
    ],
)
def test_what_is_no_vit_of_ours_is_refused_in_one_line(values, says, tmp_path):
    write(tmp_path)
    change(tmp_path, **values)
    with pytest.raises(UsageError) as error:
        vit_jax.load(tmp_path)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("gap", "pools by gap, ViTForImageClassification reads the class token only; --to=timm"),
        ("map", "pools by map"),
        ("hybrid", "transformers has no hybrids any more"),
        ("sincos", "its positions are sincos2d"),
        ("no_positions", "its positions are none"),
        ("two_d", "its positions are 2d"),
        ("relative", "its positions are relative"),
        ("axial", "its attention is axial"),
        ("bit", "it is a ResNet"),
    ],
)
def test_what_transformers_cannot_hold_is_refused_with_the_reason(which, says, tmp_path):
    with pytest.raises(UsageError) as error:
        write(tmp_path / "out", which)
    assert says in str(error.value) and not (tmp_path / "out").exists()


def test_broken_files_get_one_clear_line(tmp_path):
    write(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for broken, says in (
        (whole[:100], "no complete safetensors file"),
        (whole[:-10], "no complete safetensors file"),
        (b"", "no complete safetensors file"),
        (None, "pytorch_model.bin, which can run any code"),
    ):
        file.unlink() if broken is None else file.write_bytes(broken)
        with pytest.raises(UsageError) as error:
            vit_jax.load(tmp_path)
        assert says in str(error.value) and "\n" not in str(error.value)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    with pytest.raises(UsageError, match="expected files beside it"):
        vit_jax.load(tmp_path)


def test_bfloat16_is_read(tmp_path):
    model = write(tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    small = {key: value.astype(ml_dtypes.bfloat16) for key, value in arrays.items()}
    save_file(small, tmp_path / "model.safetensors")
    rounded = jax.tree.map(
        lambda leaf: np.asarray(leaf).astype(ml_dtypes.bfloat16).astype(np.float32),
        params_of(model),
    )
    jax.tree.map(np.testing.assert_array_equal, params_of(vit_jax.load(tmp_path)), rounded)
