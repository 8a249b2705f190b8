"""ImageNet ReaL worked out by hand, and by what a user types."""

import json

import cv2
import numpy as np
import pytest
from flax import nnx

import vit_jax
from vit_jax.cli import dispatch
from vit_jax.data.augment import normalize

DARK, BRIGHT = 7, 3  # what the network answers to a black image, and to a white one

# Number of the image: its pixels, ImageNet's label, the labels of ReaL. The answer to it is
IMAGES = {
    41: (0, 5, [2, 7]),  # 7: right, one of two; wrong by the old label
    2: (255, 3, [3]),  # 3: right, by both
    50_000: (255, 3, [7]),  # 3: wrong; the old label was mistaken as well
    13: (0, 7, []),  # 7: no labels, left out; right by the old one
    7: (0, 0, [4, 9, 7]),  # 7: right, the last of three
}
REAL, OLD = 3 / 4, 3 / 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An npz of a network whose head was made by hand to tell black from white."""
    shape = {"width": 16, "depth": 1, "mlp_dim": 32, "heads": 2}
    model = vit_jax.create_model("Pico/8", image_size=16, num_classes=1000, **shape)
    pixels = np.array([0, 255], np.uint8).reshape(2, 1, 1, 1) * np.ones((1, 16, 16, 3), np.uint8)
    dark, bright = np.asarray(model.features(normalize(pixels)))
    towards, middle = dark - bright, (dark + bright) / 2
    kernel, bias = np.zeros((16, 1000), np.float32), np.full(1000, -100, np.float32)
    kernel[:, DARK], bias[DARK] = towards, -towards @ middle
    kernel[:, BRIGHT], bias[BRIGHT] = -towards, towards @ middle
    model.head.kernel, model.head.bias = nnx.Param(kernel), nnx.Param(bias)
    path = tmp_path_factory.mktemp("real") / "model.npz"
    vit_jax.save_npz(model, path)
    return path


@pytest.fixture(scope="module")
def validation(tmp_path_factory):
    """A list of the images; and of one for each class, so that there are a thousand."""
    folder = tmp_path_factory.mktemp("imagenet")
    rows = [f"none.png,{label},train" for label in range(1000)]
    for number, (grey, label, _) in IMAGES.items():
        name = f"ILSVRC2012_val_{number:08}.png"
        cv2.imwrite(str(folder / name), np.full((16, 16, 3), grey, np.uint8))
        rows.append(f"{name},{label},test")
    (folder / "list.csv").write_text("\n".join(["image,label,split", *rows]) + "\n")
    labels = [[] for _ in range(50_000)]
    for number, (_, _, real) in IMAGES.items():
        labels[number - 1] = real
    (folder / "real.json").write_text(json.dumps(labels))
    return folder


def measured(model, validation, capsys, *more):
    typed = ["eval", f"--model={model}", f"--data={validation / 'list.csv'}", "--json", *more]
    assert dispatch(typed) == 0
    return json.loads(capsys.readouterr().out)


def test_right_is_any_of_its_labels_and_none_is_left_out(model, validation, capsys):
    real = measured(model, validation, capsys, f"--real={validation / 'real.json'}")
    assert real["accuracy"] == pytest.approx(REAL) and real["examples"] == 4


def test_the_old_labels_say_something_else(model, validation, capsys):
    old = measured(model, validation, capsys)
    assert old["accuracy"] == pytest.approx(OLD) and old["examples"] == 5
