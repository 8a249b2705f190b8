"""The pictures of every kind of network, and the verb that makes them."""

import io
import struct

import numpy as np
import PIL.Image
import pytest
from tensorboardX.proto.event_pb2 import Event

from tests.data.images import jpeg, photo, write
from vit_jax.cli import dispatch, run_verb
from vit_jax.insight.inspection import inspect
from vit_jax.models.network import create_model

TINY = {"width": 64, "heads": 2, "depth": 2, "mlp_dim": 32, "num_classes": 0}
WEIGHTS = {"filters", "position_similarity"}
IMAGES = {"attention_rollout", "last_layer_heads", "patch_features"}


def pictures(name, size, **options):
    model = create_model(name, image_size=size, **options)
    images = np.random.default_rng(0).integers(0, 256, (3, *model.config.image_size, 3), np.uint8)
    found = {picture.name: picture for picture in inspect(model, images)}
    for picture in found.values():
        if picture.png:
            with PIL.Image.open(io.BytesIO(picture.png)) as image:
                image.load()
                colours = np.asarray(image.convert("RGB"))
            assert image.format == "PNG" and colours.std() > 5
    return found


ALL = WEIGHTS | IMAGES | {"attention_distance"}
AXIAL_RESNET = {"stages": (1, 1), "width": 32, "heads": 2, "num_classes": 0}


@pytest.mark.parametrize(
    ("name", "size", "options", "expected"),
    [
        ("B/8", (16, 24), TINY, ALL),
        ("Axial-B/8", (16, 24), TINY, ALL | {"axial_attention"}),
        ("R+Ti/16", (64, 96), {**TINY, "stem_width": 32}, ALL),
        ("AxialResNet26", (16, 24), AXIAL_RESNET,
         {"filters", "attention_distance", "axial_attention"}),
    ],
)  # fmt: skip
def test_every_network_has_its_pictures(name, size, options, expected):
    found = pictures(name, size, **options)
    assert {name for name, picture in found.items() if picture.png} == expected
    assert all(picture.text.endswith(".") for picture in found.values())


def test_a_network_without_attention_says_so_in_one_line():
    found = pictures("BiT-R50x1", 32, width=32, stages=(1, 1), num_classes=0)
    assert [name for name, picture in found.items() if picture.png] == ["filters"]
    said = found["attention_distance"].text
    assert said.endswith("has no attention to look at: it is a ResNet of convolutions.")
    assert "\n" not in said


def events(folder):
    """What tensorboardX wrote: records of length, checksum, bytes, checksum."""
    for file in folder.iterdir():
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def test_inspect_fills_the_plots_of_a_run(run, capsys):
    assert run_verb(dispatch, ["inspect", f"--model={run}"]) == 0
    paths = capsys.readouterr().out.split()
    assert {f"{run}/plots/{name}.png" for name in WEIGHTS | IMAGES} < set(paths)
    assert all(path.startswith(f"{run}/plots/") for path in paths)
    shown = {
        value.tag: value.image.encoded_image_string
        for event in events(run / "tensorboard" / "pictures")
        for value in event.summary.value
    }
    assert shown["filters"] == (run / "plots" / "filters.png").read_bytes()


def test_inspect_looks_at_images_of_ones_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        write(tmp_path / "mine" / f"{seed}.jpg", jpeg(photo(seed=seed)))
    arguments = ["inspect", "--model=Pico/8", "--image-size=16x24", "--images", "mine"]
    assert run_verb(dispatch, arguments) == 0
    assert "plots/attention_rollout.png" in capsys.readouterr().out
    with PIL.Image.open(tmp_path / "plots" / "attention_rollout.png") as image:
        assert image.width > 300  # three images beside each other


def test_inspect_without_images_shows_what_is_in_the_weights(tmp_path, capsys):
    out = tmp_path / "elsewhere"
    assert run_verb(dispatch, ["inspect", "--model=Pico/8", f"--out={out}"]) == 0
    assert {path.stem for path in out.glob("*.png")} == WEIGHTS
    assert "--data or --images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model=./none"], "no such file or folder"),
        (["--model=Pico/8", "--data=digit"], "Did you mean digits?"),
        (["--model=Pico/8", "--config.seed=1"], "--config.seed=1 is for --batch"),
        (["--model=Pico/8", "--images", "nowhere/*.jpg"], "no images at nowhere/*.jpg"),
    ],
)
def test_mistakes_get_one_line(arguments, says, capsys):
    assert run_verb(dispatch, ["inspect", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
