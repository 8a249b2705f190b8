"""From a name to a data set, and what is said when there is none."""

import cv2
import numpy as np
import pytest

from vit_jax.data.folder import ImageFolder
from vit_jax.data.sources import BUILT_IN, open_source
from vit_jax.errors import UsageError


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_built_in_opens(name, split):
    source = open_source(name, split, 32)
    assert source.name == name
    assert source.num_classes == len(source.class_names)
    example = source[len(source) - 1]
    assert example["image"].shape == ((8, 8, 3) if name == "digits" else (32, 32, 3))
    assert example["label"].max() < source.num_classes


def test_opencv_keeps_to_the_thread_it_is_called_from():
    cv2.setNumThreads(2)
    open_source("digits", "train", 32)
    assert cv2.getNumThreads() == 1


def test_sizes_of_the_stand_ins():
    assert open_source("visual_atoms", "train", 32).num_classes == 21_000
    assert open_source("visual_atoms_1k", "train", 32).num_classes == 1_000
    assert len(open_source("visual_atoms_1k", "train", 32)) == 1_281_167
    assert open_source("visual_atoms_multi", "train", (32, 48))[0]["image"].shape == (32, 48, 3)


@pytest.mark.parametrize(
    ("name", "split", "says"),
    [
        ("glyps", "train", "unknown data set 'glyps'. Did you mean glyphs? Expected digits, "),
        ("qqq", "train", "unknown data set 'qqq'. Expected digits, glyphs, "),
        ("digits", "tset", "unknown split 'tset' of digits. Did you mean test? Expected one of tr"),
        ("digits", "val", "unknown split 'val' of digits. Expected one of train, test."),
        ("./nowhere", "train", "no such folder: ./nowhere. Expected digits, "),
        ("~/no/where", "train", "no such folder: ~/no/where. Expected digits, "),
    ],
)
def test_a_mistake_is_answered_in_one_line(name, split, says):
    with pytest.raises(UsageError) as error:
        open_source(name, split, 32)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_a_folder_named_without_a_slash_is_pointed_at(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"Did you mean \./photos\?"):
        open_source("photos", "train", 32)


def test_a_folder_of_class_folders(tmp_path):
    _write(tmp_path / "cat" / "red.png", red=200)
    _write(tmp_path / "dog" / "deeper" / "dark.jpg", red=10)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    sources = [open_source(str(tmp_path), split, 32) for split in _splits_with_images(tmp_path)]
    examples = [source[i] for source in sources for i in range(len(source))]
    assert sources[0].class_names == ("cat", "dog")
    assert sorted(int(example["label"]) for example in examples) == [0, 1]
    cat = next(example["image"] for example in examples if example["label"] == 0)
    assert cat.shape == (6, 9, 3)
    assert cat[0, 0].tolist() == [200, 0, 0]  # RGB, though OpenCV reads BGR


def test_a_tenth_of_an_unsplit_folder_is_held_out_for_good(tmp_path):
    for i in range(200):
        _write(tmp_path / "a" / f"{i}.png", red=i)
    train, test = (_reds(open_source(str(tmp_path), split, 32)) for split in ("train", "test"))
    assert not train & test
    assert len(train | test) == 200
    assert 10 <= len(test) <= 32
    for i in range(200, 256):
        _write(tmp_path / "a" / f"{i}.png", red=i)
    assert train <= _reds(open_source(str(tmp_path), "train", 32))


def test_split_folders_are_used_where_there_are_any(tmp_path):
    _write(tmp_path / "train" / "a" / "1.png", red=1)
    _write(tmp_path / "train" / "b" / "2.png", red=2)
    _write(tmp_path / "val" / "b" / "3.png", red=3)
    assert _reds(open_source(str(tmp_path), "train", 32)) == {1, 2}
    assert _reds(open_source(str(tmp_path), "val", 32)) == {3}
    test = open_source(str(tmp_path), "test", 32)  # falls back to val
    assert test.class_names == ("a", "b")
    assert test[0]["label"] == 1  # b is class 1 although val has no a


def test_train_may_be_the_name_of_a_class(tmp_path):
    for i in range(30):
        _write(tmp_path / "train" / f"{i}.png", red=i)
        _write(tmp_path / "tram" / f"{i}.png", red=100 + i)
    assert ImageFolder(tmp_path, "train").class_names == ("train", "tram")


def test_an_empty_folder_and_one_without_classes(tmp_path):
    with pytest.raises(UsageError, match=r"no images .* one folder per class"):
        open_source(str(tmp_path), "train", 32)
    _write(tmp_path / "loose.png", red=1)
    with pytest.raises(UsageError, match=r"no images .* one folder per class"):
        open_source(str(tmp_path), "train", 32)


def test_a_split_that_was_not_provided(tmp_path):
    _write(tmp_path / "train" / "a" / "1.png", red=1)
    with pytest.raises(UsageError, match=r"none for 'test': expected a folder .*test or .*val"):
        open_source(str(tmp_path), "test", 32)


@pytest.mark.parametrize("content", [b"", b"not a picture"])
def test_a_broken_image_is_named(tmp_path, content):
    broken = tmp_path / "train" / "a" / "broken.jpg"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(content)
    source = open_source(str(tmp_path), "train", 32)
    with pytest.raises(UsageError, match=r"broken\.jpg"):
        source[0]


def _write(path, red):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.zeros((6, 9, 3), np.uint8)
    image[..., 2] = red
    assert cv2.imwrite(str(path), image)


def _reds(source):
    return {int(source[i]["image"][0, 0, 0]) for i in range(len(source))}


def _splits_with_images(folder):
    """A tenth of two images may be none."""
    found = []
    for split in ("train", "test"):
        try:
            ImageFolder(folder, split)
        except UsageError:
            continue
        found.append(split)
    return found
