"""Mistakes of a network that makes known ones."""

import numpy as np
import pytest

from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.insight import figures
from vit_jax.insight.mistakes import answers, mistakes
from vit_jax.models.network import create_model


@pytest.fixture(scope="module")
def digits():
    return open_source("digits", "test", 16)


@pytest.fixture
def always_three():
    """Says 3 of everything."""
    model = create_model("Pico/8", image_size=16, num_classes=10)
    model.head.bias[...] = model.head.bias[...].at[3].set(5.0)
    return model


def test_every_image_is_answered_once_in_order(always_three, digits):
    found = answers(always_three, digits, "resize")
    assert len(found.label) == len(digits) and set(found.answer) == {3}
    np.testing.assert_array_equal(found.label, [digits[k]["label"] for k in range(len(digits))])
    np.testing.assert_allclose(found.confidence, np.exp(5) / (np.exp(5) + 9), rtol=1e-5)


def test_confusion_worst_classes_and_gallery(always_three, digits, monkeypatch):
    drawn = {}
    for name in ("confusion", "bars", "grid"):
        monkeypatch.setattr(
            figures, name, lambda *arguments, name=name: drawn.setdefault(name, arguments) and b"x"
        )
    pictures = {picture.name: picture for picture in mistakes(always_three, digits)}
    matrix, names, images = drawn["confusion"]
    threes = matrix[3, 3]
    assert list(names) == list("0123456789") and matrix.sum() == len(digits)
    assert matrix[:, 3].sum() == len(digits) == images.sum()
    assert f"{len(digits) - threes} mistakes on {len(digits)} images" in pictures["confusion"].text
    (rows,) = drawn["bars"]
    assert len(rows) == 10 and rows[-1][0] == f"3 ({threes})" and rows[-1][1] == 1
    assert all(row[1:] == (0, "taken for 3") for row in rows[:-1])
    images, titles = drawn["grid"]
    assert images.shape[1:] == (16, 16, 3) and len(images) == len(titles) == 24
    assert titles[0].startswith("94% 3\nis ") and not titles[0].endswith("is 3")


def test_of_many_classes_those_with_most_mistakes_are_shown(always_three, digits, monkeypatch):
    drawn = []
    monkeypatch.setattr("vit_jax.insight.mistakes._MOST_CLASSES", 4)
    monkeypatch.setattr(figures, "confusion", lambda *arguments: drawn.append(arguments) or b"x")
    text = next(iter(mistakes(always_three, digits))).text
    ((matrix, names, images),) = drawn
    assert "Shown are the 4 of 10 classes" in text and "3" in names and matrix.shape == (4, 4)
    labels = [str(digits[k]["label"]) for k in range(len(digits))]
    assert list(images) == [labels.count(name) for name in names]


def test_large_test_sets_are_sampled(always_three, digits, monkeypatch):
    monkeypatch.setattr("vit_jax.insight.mistakes._MOST_IMAGES", 100)
    text = next(iter(mistakes(always_three, digits))).text
    assert f"on 100 of {len(digits)} images of digits" in text


def test_who_makes_none_has_no_gallery(digits, monkeypatch):
    model = create_model("Pico/8", image_size=16, num_classes=10)
    found = answers(model, digits, "resize")
    right = found._replace(answer=found.label)
    monkeypatch.setattr("vit_jax.insight.mistakes.answers", lambda *arguments: right)
    gallery = list(mistakes(model, digits))[-1]
    assert gallery.png is None and "every image was recognised" in gallery.text


@pytest.mark.parametrize(
    ("data", "classes", "says"),
    [("digits", 7, "knows 7 classes"), ("visual_atoms_multi", 21_000, "several labels")],
)
def test_labels_that_cannot_be_compared(data, classes, says):
    source = open_source(data, "test", 16)
    with pytest.raises(UsageError, match=says):
        next(mistakes(create_model("Pico/8", image_size=16, num_classes=classes), source))
