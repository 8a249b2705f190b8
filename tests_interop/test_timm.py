"""The same answers in timm, both ways."""

import pytest
import torch

import vit_jax
from tests_interop.compare import (
    assert_identical,
    assert_same,
    noisy,
    ours,
    random_npz,
    theirs,
)
from tests_interop.torchvision_stand_in import import_timm
from vit_jax.cli import dispatch, run_verb

timm = import_timm()


def convert(*arguments):
    assert run_verb(dispatch, ["convert", *map(str, arguments)]) == 0


def from_folder(folder):
    return timm.create_model(f"local-dir:{folder}", pretrained=True)


@pytest.mark.parametrize("run", ["gap_run", "token_run"])
def test_a_trained_model_answers_alike_in_timm_and_comes_back_bit_by_bit(
    run, images, tmp_path, request
):
    run = request.getfixturevalue(run)
    convert(run, tmp_path / "timm", "--to=timm")
    expected = ours(vit_jax.load(run), images)
    assert_same(theirs(from_folder(tmp_path / "timm"), images), expected, atol=1e-4)
    convert(tmp_path / "timm", tmp_path / "back", "--to=run")
    assert_identical(tmp_path / "back", run)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("B/8", {"pooling": "map"}),
        ("B/16", {"pooling": "gap", "activation": "gelu"}),
        ("B/8", {"num_classes": 0}),
        ("R26+S/32", {"image_size": 64}),
        ("R+Ti/16", {"image_size": 64}),
        ("R50+B/16", {"image_size": 64}),
    ],
)
def test_all_that_fits_answers_alike(name, options, images, tmp_path):
    npz = random_npz(tmp_path / "model.npz", name, **options)
    convert(npz, tmp_path / "timm", "--to=timm")
    size = vit_jax.load(npz).config.image_size
    images = images.repeat(2, axis=1).repeat(2, axis=2)[:, : size[0], : size[1]]
    # Hybrids: timm standardises kernels with an epsilon elsewhere, 1e-5 of the answer.
    expected = ours(vit_jax.load(npz), images)
    assert_same(theirs(from_folder(tmp_path / "timm"), images), expected, atol=1e-4)
    assert_identical(tmp_path / "timm", npz)


def test_an_own_model_of_timm_loads_here_and_agrees(images, tmp_path):
    """Of which one wants ImageNet's mean and deviation, which patches take over."""
    for name in ("vit_tiny_patch16_224", "deit_tiny_patch16_224"):
        torch.manual_seed(0)
        model = timm.create_model(name, img_size=48, depth=2, num_classes=7)
        noisy(model.parameters(), scale=0.05)
        arguments = {"img_size": 48, "depth": 2}
        timm.models.save_for_hf(
            model, tmp_path / name, model_args=arguments, safe_serialization=True
        )
        trained = model.pretrained_cfg
        assert (trained["mean"][0] == 0.5) == (name == "vit_tiny_patch16_224")
        expected = theirs(model, images, trained["mean"], trained["std"])
        found = vit_jax.load(tmp_path / name)
        assert_same(ours(found, images), expected, atol=1e-4)
