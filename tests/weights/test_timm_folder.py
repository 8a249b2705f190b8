"""Folders of timm: written as it reads them, read as it writes them. See tests_interop."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from tests.weights.test_npz import SMALL, images_for, params_of, random_model
from vit_jax.errors import UsageError
from vit_jax.models.config import NOT_IN_WEIGHTS, differences
from vit_jax.models.network import abstract_params, create_from_config
from vit_jax.models.variants import model_config
from vit_jax.weights.refusals import check_fits
from vit_jax.weights.timm_folder import write_timm

HYBRID = ("R50+B/16", SMALL | {"image_size": 64})


def write(folder, which="token", class_names=()):
    model = random_model(which)
    write_timm(folder, model.config, params_of(model), class_names)
    return model


def change(folder, arguments=None, **values):
    found = json.loads((folder / "config.json").read_text()) | values
    for key, value in (arguments or {}).items():
        found["model_args"][key] = value
        if value is None:
            del found["model_args"][key]
    (folder / "config.json").write_text(json.dumps(found))


def add(folder, **arrays):
    stored = load_file(folder / "model.safetensors")
    save_file(stored | {k: np.float32(v) for k, v in arrays.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("which", ["token", "gap", "map", "headless", "grey", "not_square"])
def test_what_was_written_is_read_again_bit_by_bit(which, tmp_path):
    model = write(tmp_path, which)
    again = vit_jax.load(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, params_of(again), params_of(model))
    assert not differences(again.config, model.config).keys() - NOT_IN_WEIGHTS


@pytest.mark.parametrize("name", ["R50+B/16", "R26+S/32", "R50+L/32", "R+Ti/16"])
def test_hybrids_that_timm_has_are_written_and_read(name, tmp_path):
    model = create_from_config(model_config(name, **HYBRID[1]))
    write_timm(tmp_path, model.config, params_of(model))
    again = vit_jax.load(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, params_of(again), params_of(model))
    assert again.config.stem_stages == model.config.stem_stages


def test_names_shapes_and_config_are_timms(tmp_path):
    write(tmp_path, "map", ("a", "b", "c", "d", "e"))
    shapes = {k: v.shape for k, v in load_file(tmp_path / "model.safetensors").items()}
    assert shapes["blocks.1.attn.qkv.weight"] == (96, 32)
    assert shapes["blocks.1.attn.qkv.bias"] == (96,)
    assert shapes["attn_pool.kv.weight"] == (64, 32) and shapes["attn_pool.latent"] == (1, 1, 32)
    assert shapes["patch_embed.proj.weight"] == (32, 3, 8, 8) and shapes["head.weight"] == (5, 32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architecture"] == "vit_base_patch16_224" and config["num_classes"] == 5
    assert config["pretrained_cfg"]["input_size"] == [3, 32, 32]
    assert config["pretrained_cfg"]["mean"] == config["pretrained_cfg"]["std"] == [0.5, 0.5, 0.5]
    assert config["model_args"]["act_layer"] == "gelu_tanh"
    assert config["model_args"]["mlp_ratio"] == 2.0
    assert config["label_names"] == ["a", "b", "c", "d", "e"]


def test_a_network_of_timm_keeps_its_name(tmp_path):
    network = model_config("S/32", image_size=64, depth=12)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_params(network))
    write_timm(tmp_path, network, zeros)
    assert '"architecture": "vit_small_patch32_224"' in (tmp_path / "config.json").read_text()
    change(tmp_path, {"num_heads": None})  # the name tells
    assert vit_jax.load(tmp_path).config.heads == 6


def test_a_class_token_without_a_position_gets_one_of_zeros(tmp_path):
    model = write(tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    add(tmp_path, pos_embed=arrays["pos_embed"][:, 1:])
    change(tmp_path, {"no_embed_class": True})
    found = params_of(vit_jax.load(tmp_path))["embedding"]["positions"]["table"]
    assert not np.asarray(found)[:, 0].any()
    expected = params_of(model)["embedding"]["positions"]["table"][:, 1:]
    np.testing.assert_array_equal(found[:, 1:], expected)


def test_gelu_is_exact_unless_it_is_said(tmp_path):
    model = write(tmp_path)
    change(tmp_path, {"act_layer": None})
    exact = vit_jax.load(tmp_path)
    assert exact.config.activation == "gelu"
    change(tmp_path, architecture="vit_so400m_patch16_siglip_256")
    tanh = vit_jax.load(tmp_path)
    images = images_for(model)
    np.testing.assert_array_equal(tanh(images), model(images))
    assert np.abs(exact(images) - model(images)).max() > 1e-6


@pytest.mark.parametrize(
    ("arguments", "arrays", "says"),
    [
        ({"act_layer": "quick_gelu"}, {}, "act_layer='quick_gelu' is not known here"),
        ({"global_pool": "avg"}, {}, "pools by 'avg' with a class token"),
        ({"num_heads": None}, {}, "its number of heads is said nowhere"),
        ({}, {"fc_norm.weight": np.ones(32)}, "normalises after its mean (fc_norm)"),
        ({}, {"blocks.0.ls1.gamma": np.ones(32)}, "no place for: blocks.0.ls1.gamma"),
        ({}, {"reg_token": np.ones((1, 4, 32))}, "no place for: reg_token"),
        ({}, {"pos_embed": np.ones((1, 8, 32))}, "positions for 7 patches"),
    ],
)
def test_what_is_no_vit_of_ours_is_refused_in_one_line(arguments, arrays, says, tmp_path):
    write(tmp_path)
    change(tmp_path, arguments)
    add(tmp_path, **arrays)
    with pytest.raises(UsageError) as error:
        vit_jax.load(tmp_path)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("B/8", {"representation_size": 24}, "it has no tanh layer"),
        ("B/8", {"norm_epsilon": 1e-12}, "norms have an epsilon of 1e-12"),
        ("R50x2+B/16", {"image_size": 64}, "no ResNet stem of stages (3, 4, 9) and width 128"),
        ("R101+B/32", {"image_size": 64}, "no ResNet stem of stages (3, 4, 23, 3)"),
        ("B/8", {"registers": 2}, "it has registers"),
        ("B/8", {"layer_scale": 0.1}, "layer_scale"),
        ("B/8", {"qk_norm": True}, "qk_norm"),
        ("B/8", {"patch_outputs": 8}, "it predicts patches: fine-tune it first"),
        ("B/8", {"positions_at": "every_layer"}, "positions are added at every_layer"),
    ],
)
def test_what_timm_cannot_hold_is_refused_with_the_reason(name, options, says):
    with pytest.raises(UsageError) as error:
        check_fits(model_config(name, **SMALL | options), "timm")
    assert says in str(error.value) and "--to=npz" in str(error.value)
