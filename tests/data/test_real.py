"""ReaL labels find their images, whatever the order, and a wrong file is named."""

import json

import numpy as np
import pytest

from vit_jax.data.real import RealLabels, read_real_labels
from vit_jax.data.source import PADDING_LABEL, Example, where
from vit_jax.errors import UsageError

# Image n (from 1) has n % 4 labels: n % 1000 and those after it.
LABELS = [[(n + k) % 1000 for k in range(n % 4)] for n in range(1, 50_001)]


class Validation:
    """Images in an order of their own; their pixel is their number."""

    name = "imagenet"
    class_names = tuple(map(str, range(1000)))
    num_classes = 1000

    def __init__(self, numbers, pattern="val/n0144/ILSVRC2012_val_{:08}.JPEG"):
        self._numbers = numbers
        self._pattern = pattern

    def __len__(self):
        return len(self._numbers)

    def __getitem__(self, index):
        image = np.full((1, 1, 3), self._numbers[index] % 256, np.uint8)
        return Example(image=image, label=np.array(999, np.int32))

    def where(self, index):
        return self._pattern.format(self._numbers[index])


class Stored(Validation):
    """As TFDS has it: the name of the file is not where the example is."""

    def where(self, index):
        return f"imagenet2012 validation[{index}]"

    def file_name(self, index):
        return f"ILSVRC2012_val_{self._numbers[index]:08}.JPEG"


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    path = tmp_path_factory.mktemp("real") / "real.json"
    path.write_text(json.dumps(LABELS))
    return read_real_labels(path)


def test_labels_are_padded(labels):
    assert labels.shape == (50_000, 3) and labels.dtype == np.int32
    for row, found in zip(labels, LABELS, strict=True):
        assert row.tolist() == found + [PADDING_LABEL] * (3 - len(found))


@pytest.mark.parametrize("kind", [Validation, Stored])
def test_each_image_gets_its_own(labels, kind):
    numbers = [50_000, 3, 1, 4, 27_182]
    source = RealLabels(kind(numbers), labels)
    assert len(source) == 5 and source.num_classes == 1000
    for index, number in enumerate(numbers):
        found = source[index]
        assert found["image"][0, 0, 0] == number % 256
        assert [x for x in found["label"].tolist() if x >= 0] == LABELS[number - 1]
        assert found["label"].shape == (3,) and found["label"].dtype == np.int32
    assert source[3]["label"].tolist() == [PADDING_LABEL] * 3


def test_where_is_that_of_the_images(labels):
    source = RealLabels(Validation([7]), labels)
    assert where(source, 0) == "val/n0144/ILSVRC2012_val_00000007.JPEG"


def test_labels_cannot_be_changed_by_who_gets_them(labels):
    source = RealLabels(Validation([1]), labels)
    source[0]["label"][:] = 5
    assert source[0]["label"].tolist() == [1, PADDING_LABEL, PADDING_LABEL]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Validation([1], "cat_{}.jpg"), "no ReaL labels for cat_1.jpg: .* found 'cat_1.jpg'"),
        (Validation([0]), "no ReaL labels for .*ILSVRC2012_val_00000000.JPEG"),
        (Validation([50_001]), "to ILSVRC2012_val_00050000"),
    ],
)
def test_images_without_a_number(labels, source, says):
    with pytest.raises(UsageError, match=says):
        RealLabels(source, labels)


def test_other_classes(labels):
    source = Validation([1])
    source.num_classes = 10
    with pytest.raises(UsageError, match="ImageNet's 1,000 classes, imagenet has 10"):
        RealLabels(source, labels)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2", "no JSON"),
        ('{"a": 1}', "expected a list of 50,000, .* found dict"),
        ("[[1], [2]]", "expected a list of 50,000, .* found a list of 2"),
        (json.dumps([*LABELS[:-1], 7]), "for image 50,000, found 7"),
        (json.dumps([*LABELS[:6], [1000], *LABELS[7:]]), r"for image 7, found \[1000\]"),
        (json.dumps([["cat"], *LABELS[1:]]), r"for image 1, found \['cat'\]"),
    ],
)
def test_wrong_files(tmp_path, text, says):
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(UsageError, match=f"real.json is not the real.json of .*{says}"):
        read_real_labels(tmp_path / "real.json")


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match=r"none.json: No such file .*reassessed-imagenet"):
        read_real_labels(tmp_path / "none.json")
