"""The same answers in transformers, both ways."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

import vit_jax
from tests_interop.compare import assert_identical, assert_same, noisy, ours, theirs
from vit_jax.cli import dispatch, run_verb


def convert(*arguments):
    assert run_verb(dispatch, ["convert", *map(str, arguments)]) == 0


def test_a_trained_model_answers_alike_in_transformers_and_comes_back_bit_by_bit(
    token_run, images, tmp_path
):
    convert(token_run, tmp_path / "hf", "--to=hf")
    model, info = transformers.ViTForImageClassification.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(theirs(model, images), ours(vit_jax.load(token_run), images), atol=1e-4)
    assert model.config.id2label == {number: str(number) for number in range(10)}
    convert(tmp_path / "hf", tmp_path / "back", "--to=run")
    convert(tmp_path / "hf", tmp_path / "back.npz", "--to=npz")
    assert_identical(tmp_path / "back", token_run)
    assert_identical(tmp_path / "back.npz", token_run)


def test_what_transformers_saves_again_is_the_same(token_run, tmp_path):
    convert(token_run, tmp_path / "hf", "--to=hf")
    model = transformers.ViTForImageClassification.from_pretrained(tmp_path / "hf")
    model.save_pretrained(tmp_path / "again")
    assert_identical(tmp_path / "again", token_run)


def test_the_processor_prepares_images_as_we_do(token_run, images, tmp_path):
    convert(token_run, tmp_path / "hf", "--to=hf")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf", backend="pil")
    pixels = processor(list(images), return_tensors="np")["pixel_values"]
    expected = images.astype(np.float32).transpose(0, 3, 1, 2) / 127.5 - 1
    np.testing.assert_allclose(pixels, expected, atol=1e-6)


@pytest.fixture(scope="module")
def torch_model():
    """Random, with transformers' own defaults: exact GELU, an epsilon of 1e-12."""
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=48, patch_size=8, num_labels=7, id2label={n: f"class {n}" for n in range(7)},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config)
    noisy(model.parameters())
    return model


def test_a_random_model_of_transformers_loads_here_and_agrees(torch_model, images, tmp_path):
    torch_model.save_pretrained(tmp_path / "saved")
    loaded = vit_jax.load_with_table(tmp_path / "saved")
    assert loaded.class_names[6] == "class 6"
    expected = theirs(torch_model, images)
    assert_same(ours(loaded.model, images), expected, atol=1e-4)
    # The comparison can tell the activations apart: with the other one it fails.
    other = vit_jax.load(tmp_path / "saved", activation="gelu_tanh")
    assert np.abs(ours(other, images) - expected).max() > 1e-4


def test_names_as_they_are_in_memory_are_read_too(torch_model, images, tmp_path):
    torch_model.config.save_pretrained(tmp_path)
    state = torch_model.state_dict()
    assert any("layers.0.attention.q_proj" in name for name in state)
    save_file(state, tmp_path / "model.safetensors")
    assert_same(ours(vit_jax.load(tmp_path), images), theirs(torch_model, images), atol=1e-4)


def test_a_model_without_a_head_is_its_pooler(torch_model, images, tmp_path):
    model = transformers.ViTModel(torch_model.config)
    noisy(model.parameters())
    model.save_pretrained(tmp_path / "saved")
    pixels = torch.from_numpy(images.astype(np.float32).transpose(0, 3, 1, 2) / 127.5 - 1)
    with torch.no_grad():
        expected = model.eval()(pixels).pooler_output.numpy()
    assert_same(ours(vit_jax.load(tmp_path / "saved"), images), expected, atol=1e-4)
    convert(tmp_path / "saved", tmp_path / "again", "--to=hf")
    again = transformers.ViTModel.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        assert_same(again(pixels).pooler_output.numpy(), expected, atol=1e-5)
