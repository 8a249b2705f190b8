"""Weights that other implementations wrote give the logits that they gave."""

import json
import pathlib

import numpy as np
import pytest

import vit_jax

# A few lie here; where the workshop's own collection is beside the project, all of it is used.
FOLDERS = [
    pathlib.Path(__file__).parent / "golden",
    pathlib.Path(__file__).parents[3] / "shared" / "golden",
]
# Float32 in another order of summation; a wrong epsilon moves logits by 4e-5.
TOLERANCE = 3e-5
CASES = {
    name: (folder, case)
    for folder in FOLDERS
    if (folder / "index.json").is_file()
    for name, case in json.loads((folder / "index.json").read_text()).items()
}


def load(name, **changes):
    folder, case = CASES[name]
    own_size = None if "pretrained" in case else case["size"]
    return vit_jax.load(
        folder / f"{case.get('pretrained', name)}.npz", file_image_size=own_size, **changes
    )


def inputs(name):
    with np.load(CASES[name][0] / f"{name}.io.npz") as file:
        return dict(file)


@pytest.mark.parametrize("name", [name for name, (_, c) in CASES.items() if "pretrained" not in c])
def test_logits_are_those_of_the_reference(name):
    expected = inputs(name)
    model = load(name)
    np.testing.assert_allclose(model(expected["images"]), expected["logits"], atol=TOLERANCE)
    if "pre_logits" in expected:
        features = model.features(expected["images"])
        np.testing.assert_allclose(features, expected["pre_logits"], atol=TOLERANCE)


@pytest.mark.parametrize("name", [name for name, (_, c) in CASES.items() if "pretrained" in c])
def test_logits_at_a_higher_resolution_are_those_of_the_reference(name):
    expected = inputs(name)
    model = load(name, image_size=CASES[name][1]["size"], num_classes=5, representation_size=0)
    assert not model.head.kernel[...].any()
    table = model.embedding.positions.table[...]
    np.testing.assert_allclose(table, expected["pos_embedding"], atol=1e-6)
    model.head.kernel[...] = expected["head_kernel"]
    model.head.bias[...] = expected["head_bias"]
    np.testing.assert_allclose(model(expected["images"]), expected["logits"], atol=TOLERANCE)


@pytest.mark.parametrize("name", [name for name, (_, c) in CASES.items() if "pretrained" not in c])
def test_the_architecture_is_read_off_the_file(name):
    case = CASES[name][1]
    config = load(name).config
    assert (config.width, config.depth, config.mlp_dim, config.heads) == (48, 2, 96, 3)
    assert config.num_classes == case["classes"]
    assert config.image_size == (case["size"], case["size"])
    pooling = {"tok": "token", None: case.get("classifier", "token")}
    assert config.pooling == pooling.get(case.get("pool_type"), case.get("pool_type"))
    has_pre_logits = bool(case.get("representation_size") or case.get("rep_size"))
    assert config.representation_size == (48 if has_pre_logits else 0)
    if "resnet" in case:
        assert config.stem_stages == tuple(case["resnet"]["num_layers"])
        assert config.patch_size == (1, 1) and config.stem_width == 32
    else:
        assert config.stem_stages is None and config.patch_size == (8, 8)
