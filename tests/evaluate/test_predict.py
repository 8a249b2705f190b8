"""From image files to classes and features."""

import csv
import io
import json
import pathlib

import numpy as np
import pyarrow.parquet
import pytest

from tests.data.images import jpeg, photo, write
from vit_jax.cli import dispatch, run_verb
from vit_jax.data.augment import normalize
from vit_jax.data.crop import fit_for_evaluation
from vit_jax.errors import UsageError
from vit_jax.evaluate.predict import find_images, predict
from vit_jax.weights.load import load


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(5):
        write(folder / "some" / f"{seed}.jpg", jpeg(photo(seed=seed)))
    write(folder / "some" / "broken.jpg", b"no image")
    write(folder / "some" / "notes.txt", b"words")
    return folder


def test_images_are_found_by_name_folder_and_pattern(photos):
    some = photos / "some"
    assert find_images([str(some / "1.jpg")]) == [str(some / "1.jpg")]
    assert len(find_images([str(photos)])) == 6  # not the notes
    assert len(find_images([f"{some}/[0-9].jpg", str(some / "0.jpg")])) == 5  # none twice
    with pytest.raises(UsageError, match=r"no images at .*nothing"):
        find_images([str(photos / "nothing")])


def test_predictions_are_those_of_the_model(trained_run, photos):
    model = load(trained_run)
    images = find_images([str(photos)])
    found = list(predict(model, images, tuple("abcdefghij"), top=3, batch_size=4))
    assert [p.image for p in found] == images
    for prediction in found:
        if "broken" in prediction.image:
            assert prediction.classes == ()
            continue
        with open(prediction.image, "rb") as file:
            pixels = fit_for_evaluation(file.read(), (16, 16))
        logits = np.asarray(model(normalize(pixels[None])))[0]
        best = np.argsort(-logits)[:3]
        assert prediction.classes == tuple("abcdefghij"[k] for k in best)
        expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        np.testing.assert_allclose(prediction.probabilities, expected[best], atol=1e-5)


def test_the_predict_verb(trained_run, photos, tmp_path, capsys):
    command = ["predict", str(photos), f"--model={trained_run}", "--top=2"]
    assert dispatch(command) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["image", "class_1", "probability_1", "class_2", "probability_2"]
    assert len(rows) == 7 and rows[1][1] in "0123456789"
    assert dispatch([*command, f"--out={tmp_path / 'out.json'}"]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert len(written) == 6 and len(written[0]["classes"]) == 2
    assert run_verb(dispatch, [*command, "--out=out.txt"]) == 2
    assert "expected a file that ends in .csv or .json" in capsys.readouterr().err


def test_the_embed_verb(trained_run, photos, tmp_path, capsys):
    out = tmp_path / "features.npz"
    assert dispatch(["embed", str(photos), f"--model={trained_run}", f"--out={out}"]) == 0
    assert "48 features of 5 images" in capsys.readouterr().out
    readable = [image for image in find_images([str(photos)]) if "broken" not in image]
    contents = [pathlib.Path(image).read_bytes() for image in readable]
    pixels = np.stack([fit_for_evaluation(content, (16, 16)) for content in contents])
    expected = load(trained_run).features(normalize(pixels))
    with np.load(out) as stored:
        assert stored["images"].tolist() == readable
        np.testing.assert_allclose(stored["features"], expected, atol=1e-5)


def test_the_embed_verb_writes_parquet(trained_run, photos, tmp_path, capsys):
    command = ["embed", str(photos), f"--model={trained_run}"]
    for name in ("features.npz", "features.parquet"):
        assert dispatch([*command, f"--out={tmp_path / name}"]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "features.parquet")
    with np.load(tmp_path / "features.npz") as stored:
        assert table["image"].to_pylist() == stored["images"].tolist()
        np.testing.assert_array_equal(table["features"].to_pylist(), stored["features"])
    assert table.schema.field("features").type.value_type == pyarrow.float32()
    assert run_verb(dispatch, [*command, "--out=features.txt"]) == 2
    assert "expected a file that ends in .npz or .parquet" in capsys.readouterr().err


def test_a_model_without_a_head_cannot_predict(photos):
    model = load("Pico/8", num_classes=0, image_size=16)
    with pytest.raises(UsageError, match="has no head to predict with"):
        next(predict(model, find_images([str(photos)])))
