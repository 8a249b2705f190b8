"""What is wrong with a data set is found and named, and nothing else."""

import pytest

from tests.data.images import broken_folder, jpeg, photo, write
from vit_jax.data.doctor import examine
from vit_jax.data.sources import open_splits


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return broken_folder(tmp_path_factory.mktemp("broken"))


def test_every_odd_image_is_named(broken):
    found = examine(open_splits(str(broken), 32)).splits["train"].findings
    named = {what: sorted(n.split("/")[-1] for n in names) for what, names in found.items()}
    assert named == {
        "unreadable": [
            "cut.jpg (the JPEG is cut off (Premature end of JPEG file))",
            "empty.jpg (the file is empty)",
            "words.jpg (it is no image of a known format)",
        ],
        "wrong extension": ["moving.jpg (it is a GIF)", "really.jpg (it is a PNG)"],
        "palette": ["moving.jpg"],
        "grey": ["grey.jpg"],
        "CMYK": ["printed.jpg"],
        "turned by its EXIF tag": ["turned.jpg"],
        "tiny": ["dot.png (1x1)"],
        "huge": ["vast.jpg (12000x9000)"],
    }


def test_counts_sizes_and_the_verdict(broken):
    diagnosis = examine(open_splits(str(broken), 32))
    split = diagnosis.splits["train"]
    assert split.per_class == {"good": 6, "odd": 10}
    assert split.heights == (1, 48, 9000)
    assert not diagnosis.is_healthy and "not healthy" in diagnosis.text()
    assert (
        "unreadable: 3" in diagnosis.text() and "height 1 to 9000 (median 48)" in diagnosis.text()
    )
    assert diagnosis.as_dict()["splits"]["train"]["examples"] == 16


def test_the_same_image_in_two_splits_is_told(tmp_path):
    for split, seeds in (("train", (0, 1, 2)), ("val", (3, 1))):
        for seed in seeds:
            write(tmp_path / split / "a" / f"{split}{seed}.jpg", jpeg(photo(seed=seed)))
    diagnosis = examine(open_splits(str(tmp_path), 32))
    (pair,) = diagnosis.shared["train and val"]
    assert pair.endswith("val1.jpg") and "train1.jpg = " in pair
    assert not diagnosis.is_healthy
    (tmp_path / "val" / "a" / "val1.jpg").unlink()
    assert examine(open_splits(str(tmp_path), 32)).is_healthy


def test_a_built_in_set_is_healthy():
    calls = []
    diagnosis = examine(open_splits("digits", 32), lambda done, total: calls.append((done, total)))
    assert diagnosis.is_healthy and diagnosis.splits["test"].per_class["3"] == 50
    assert calls[-1] == (1797, 1797)


def test_a_long_list_of_classes_shows_its_ends(tmp_path):
    for number in range(40):
        for copy in range(1 + number % 3):
            seed = 10 * number + copy
            write(tmp_path / "train" / f"class{number:02}" / f"{copy}.jpg", jpeg(photo(seed=seed)))
    assert "... 20 more ..." in examine(open_splits(str(tmp_path), 32)).text()
