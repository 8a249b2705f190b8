"""From a name to a data set, and what is said when there is none."""

import json
import os
import subprocess
import sys

import cv2
import fsspec
import numpy as np
import pytest

from vit_jax.data.decode import BadImage, pixels
from vit_jax.data.folder import image_folder
from vit_jax.data.sources import BUILT_IN, open_source, open_splits
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
    script = "import vit_jax.data.crop, cv2; print(cv2.getNumThreads())"  # as in a worker process
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "1\n"


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
    cat = next(pixels(example["image"]) for example in examples if example["label"] == 0)
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
    assert image_folder(str(tmp_path), "train").class_names == ("train", "tram")


def test_an_empty_folder_and_one_without_classes(tmp_path):
    with pytest.raises(UsageError, match=r"no images .* one folder per class"):
        open_source(str(tmp_path), "train", 32)
    _write(tmp_path / "loose.png", red=1)
    with pytest.raises(UsageError, match=r"no images .* one folder per class"):
        open_source(str(tmp_path), "train", 32)


@pytest.mark.parametrize("split", ["", "train/", "val/"])
def test_an_empty_class_folder_is_named(tmp_path, split):
    for folder in ("train/", "val/") if split else ("",):
        for i in range(30):
            _write(tmp_path / folder / "cat" / f"{i}.png", red=1)
    (tmp_path / split / "dog").mkdir()
    (tmp_path / split / "dog" / "notes.txt").write_text("no image")
    with pytest.raises(UsageError, match=rf"class folder .*{split}dog holds no images: add some"):
        open_source(str(tmp_path), "train", 32)
    _write(tmp_path / split / "dog" / "1.png", red=1)
    assert open_source(str(tmp_path), "train", 32).class_names == ("cat", "dog")


def test_a_split_that_was_not_provided(tmp_path):
    _write(tmp_path / "train" / "a" / "1.png", red=1)
    with pytest.raises(UsageError, match=r"none for 'test': expected a folder .*test or .*val"):
        open_source(str(tmp_path), "test", 32)


def _write(path, red):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.zeros((6, 9, 3), np.uint8)
    image[..., 2] = red
    assert cv2.imwrite(str(path), image)


def _reds(source):
    return {int(pixels(source[i]["image"])[0, 0, 0]) for i in range(len(source))}


def _splits_with_images(folder):
    """A tenth of two images may be none."""
    found = []
    for split in ("train", "test"):
        try:
            image_folder(str(folder), split)
        except UsageError:
            continue
        found.append(split)
    return found


def test_files_in_a_bucket_are_read_like_files_on_disk(tmp_path):
    memory = fsspec.filesystem("memory")
    for name, red in (("train/a/1.png", 1), ("train/b/2.png", 2), ("val/b/3.png", 3)):
        _write(tmp_path / name, red)
        memory.pipe_file(f"/bucket/photos/{name}", (tmp_path / name).read_bytes())
    here = open_source(str(tmp_path), "train", 32)
    there = open_source("memory://bucket/photos", "train", 32)
    assert there.class_names == here.class_names and _reds(there) == _reds(here) == {1, 2}
    assert there.where(0).startswith("memory://bucket/photos/train/")
    with pytest.raises(UsageError, match=r"no such folder: memory://bucket/nothing"):
        open_source("memory://bucket/nothing", "train", 32)
    with pytest.raises(UsageError, match=r"cannot open nosuch://x"):
        open_source("nosuch://x/y", "train", 32)


def test_a_csv_of_images(tmp_path):
    for red in range(3):
        _write(tmp_path / "images" / f"{red}.png", red)
    rows = ["image,label,split", "images/0.png,cat,train", "images/1.png,dog,val"]
    (tmp_path / "list.csv").write_text("\n".join([*rows, f"{tmp_path}/images/2.png,ant,train\n"]))
    source = open_source(str(tmp_path / "list.csv"), "train", 32)
    assert source.class_names == ("ant", "cat", "dog")
    examples = [source[0], source[1]]
    labels = {int(pixels(e["image"])[0, 0, 0]): int(e["label"]) for e in examples}
    assert labels == {0: 1, 2: 0}
    test = open_source(str(tmp_path / "list.csv"), "test", 32)  # falls back to val
    assert len(test) == 1 and test[0]["label"] == 2


def test_a_jsonl_with_several_labels_per_image(tmp_path):
    for red in range(3):
        _write(tmp_path / f"{red}.png", red)
    rows = [
        {"image": "0.png", "label": ["sofa", "cat"], "split": "train"},
        {"image": "1.png", "label": [], "split": "train"},
        {"image": "2.png", "label": "cat", "split": "train"},
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = open_source(str(tmp_path / "list.jsonl"), "train", 32)
    found = {source.where(i)[-5:]: source[i]["label"].tolist() for i in range(3)}
    assert found == {"0.png": [1, 0], "1.png": [-1, -1], "2.png": [0, -1]}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "file,label\nx.png,cat\n", r"a\.csv line 2: expected image and label"),
        ("a.csv", "", "lists nothing"),
        ("a.csv", "image,label\nx.png\n", r"a\.csv line 2: expected image and label"),
        ("a.csv", "image,label\nx.png,\n", r"a\.csv line 2: expected image and label"),
        ("a.csv", "image,label\n ,cat\n", r"a\.csv line 2: expected image and label"),
        ("a.csv", "image,label,split\nx.png,cat,trian\n", "unknown split 'trian'. Did you mean tr"),
        ("a.csv", "image,label,split\nx,cat,train\ny,cat,\n", r"line 3 has no split, others have"),
        ("a.jsonl", '{"image": 3, "label": "cat"}', r"a\.jsonl line 1: expected image and label"),
        ("a.jsonl", '{"image": "x", "label": null}', r"a\.jsonl line 1: expected image and label"),
        ("a.csv", "image,label,split\nx.png,cat,test\n", "lists no images for the split 'train'"),
        ("a.jsonl", '{"image": "x.png", "label": "cat"}\n{oops\n', r"a\.jsonl line 2 is no JSON"),
        ("a.jsonl", "3\n", r"a\.jsonl line 1: expected image and label"),
    ],
)
def test_a_list_with_a_mistake_says_where(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=says):
        open_source(str(tmp_path / name), "train", 32)


def test_a_list_that_is_not_there():
    with pytest.raises(UsageError, match=r"no such list of images: nowhere\.csv"):
        open_source("nowhere.csv", "train", 32)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[:98%]", range(0, 1271)),
        ("train[98%:]", range(1271, 1297)),
        ("train[10:20]", range(10, 20)),
        ("train[-7:]", range(1290, 1297)),
        ("train[1_000:]", range(1000, 1297)),
    ],
)
def test_a_split_can_be_sliced(split, expected):
    part, whole = open_source("digits", split, 32), open_source("digits", "train", 32)
    assert len(part) == len(expected) and part.num_classes == 10
    for index in (0, len(part) - 1):
        np.testing.assert_array_equal(part[index]["image"], whole[expected[index]]["image"])
    with pytest.raises(IndexError):
        part[len(part)]


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ("train[5:5]", "is empty: it has 1297 examples"),
        ("train[::2]", "expected \\[FROM:TO\\]"),
        ("train[", "expected as in train"),
        ("tset[:5]", "unknown split 'tset' of digits"),
    ],
)
def test_a_slice_with_a_mistake_is_refused(split, says):
    with pytest.raises(UsageError, match=says):
        open_source("digits", split, 32)


def test_a_slice_of_a_folder_is_a_fair_sample_of_its_classes(tmp_path):
    for i in range(100):
        _write(tmp_path / "train" / "a" / f"{i}.png", red=i)
        _write(tmp_path / "train" / "b" / f"{i}.png", red=i)
    part = open_source(str(tmp_path), "train[:50%]", 32)
    assert 35 < sum(int(part[i]["label"]) for i in range(100)) < 65


def test_a_mixture_keeps_its_weights_and_every_example():
    mixed = open_source("digits*3+glyphs*1", "test", 16)
    digits, glyphs = (open_source(name, "test", 16) for name in ("digits", "glyphs"))
    assert mixed.num_classes == 10 + glyphs.num_classes
    assert mixed.class_names[:10] == digits.class_names
    block = [int(mixed[i]["label"]) for i in range(1000)]
    assert sum(label < 10 for label in block) == 750
    assert len(mixed) >= len(glyphs) * 4
    example = mixed[1750]  # the first glyph of the second block is its 250th
    np.testing.assert_array_equal(example["image"], glyphs[250]["image"])
    assert mixed.class_names[example["label"]] == glyphs.class_names[glyphs[250]["label"]]
    assert {int(mixed[i]["label"]) for i in range(0, 500)} == set(range(10))


def test_a_mixture_of_unlike_labels_is_refused():
    with pytest.raises(UsageError, match="another number of labels per image"):
        open_source("digits*1+visual_atoms_multi*1", "test", 16)


def test_a_list_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes("image,label\nx.png,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(UsageError, match="no text in UTF-8"):
        open_source(str(tmp_path / "a.csv"), "train", 32)


def test_numbers_are_classes_in_their_order(tmp_path):
    rows = "".join(f"{n}.png,{n}\n" for n in range(12))
    (tmp_path / "a.CSV").write_text("image,label\n" + rows)
    source = open_source(str(tmp_path / "a.CSV"), "train", 32)
    assert source.class_names == tuple(map(str, range(12)))


def test_a_file_that_is_gone_is_a_bad_image(tmp_path):
    (tmp_path / "a.csv").write_text("image,label,split\ngone.png,cat,train\n.,cat,train\n")
    source = open_source(str(tmp_path / "a.csv"), "train", 32)
    for index in range(2):
        with pytest.raises(BadImage, match=r"No such file|Is a directory"):
            source[index]


def test_splits_go_by_their_usual_names(tmp_path):
    _write(tmp_path / "Train" / "a" / "1.png", red=1)
    _write(tmp_path / "validation" / "a" / "2.png", red=2)
    assert list(open_splits(str(tmp_path), 32)) == ["train", "val"]
    assert _reds(open_source(str(tmp_path), "test", 32)) == {2}
    _write(tmp_path / "other" / "3.png", red=3)
    with pytest.raises(UsageError, match=r"splits \(Train, validation\) beside others \(other\)"):
        open_source(str(tmp_path), "train", 32)


def test_a_link_that_goes_round_is_gone_once(tmp_path):
    _write(tmp_path / "train" / "a" / "1.png", red=1)
    _write(tmp_path / "train" / "b" / "2.png", red=2)
    os.symlink(tmp_path / "train", tmp_path / "train" / "a" / "round")
    source = open_source(str(tmp_path), "train", 32)
    assert source.class_names == ("a", "b") and len(source) == 2


@pytest.mark.parametrize("name", ["digits*0+glyphs*0", "digits*1+glyphs*0.0001"])
def test_a_weight_of_nearly_nothing_is_refused(name):
    with pytest.raises(UsageError, match="expected each to be at least a thousandth"):
        open_source(name, "test", 16)


def test_weights_may_be_spaced_out():
    assert open_source("digits * 0.5 + glyphs * 5e-1", "test", 16).num_classes > 200
