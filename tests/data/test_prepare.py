"""Sources into shards and back: nothing lost, whatever happens on the way."""

import concurrent.futures
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import cv2
import numpy as np
import pytest
import simplejpeg

from vit_jax.data import prepare as prepare_module
from vit_jax.data.decode import BadImage, decode
from vit_jax.data.prepare import permuted, prepare, verify
from vit_jax.data.records import Records
from vit_jax.data.source import where
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError

IMAGES = 30  # of each of two classes


class First:
    """The first examples of a source, each of them slow to come."""

    def __init__(self, source, length, seconds=0.0):
        self.name, self.class_names = source.name, source.class_names
        self.num_classes = source.num_classes
        self._source, self._length, self._seconds = source, length, seconds

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        time.sleep(self._seconds)
        return self._source[index]

    def where(self, index):
        return where(self._source, index)


class Failing(First):
    """Stops with an error of no kind that is expected."""

    def __getitem__(self, index):
        if index == self._length // 2:
            raise RuntimeError("the disk is gone")
        return self._source[index]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """JPEGs of many sizes, and PNGs; not to be changed."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(2 * IMAGES):
        height, width = rng.integers(8, 64, 2)
        pixels = cv2.resize(rng.integers(0, 256, (4, 4, 3), np.uint8), (int(width), int(height)))
        file = folder / "train" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        if number % 5:
            file.write_bytes(simplejpeg.encode_jpeg(pixels, quality=90))
        else:
            cv2.imwrite(str(file.with_suffix(".png")), pixels)
    return folder


@pytest.fixture
def train(images):
    return {"train": folder(images)}


@pytest.fixture
def prepared(train, tmp_path):
    """The images in eight shards, the last one shorter."""
    prepare(train, tmp_path / "prepared", shard_size=8, workers=1)
    return tmp_path / "prepared"


def folder(path):
    return open_source(str(path), "train", 32)


def files(out):
    """What a reader sees; the journal's lines come as the workers finish."""
    return {file.name: file.read_bytes() for file in out.iterdir() if file.suffix != ".jsonl"}


def test_a_folder_comes_back_bit_by_bit(train, tmp_path):
    source = train["train"]
    manifest = prepare(train, tmp_path / "out", shard_size=8, workers=2)
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    records = Records(tmp_path / "out", "train")
    assert (records.class_names, records.num_classes) == (("cat", "dog"), 2)
    assert len(records) == len(source) == 2 * IMAGES
    order = permuted(np.arange(len(source)), len(source))
    for position, index in enumerate(order.tolist()):
        found, expected = records[position], source[index]
        assert found["image"] == expected["image"]
        assert found["label"] == expected["label"]
        assert found["label"].dtype == np.int32 and found["label"].shape == ()
        assert records.where(position) == where(source, index)
    for outside in (-1, len(records)):
        with pytest.raises(IndexError, match="has 60 examples"):
            records[outside]


def test_the_manifest_describes_the_images(train, prepared):
    source = train["train"]
    split = json.loads((prepared / "manifest.json").read_text())["splits"]["train"]
    heights = sorted(decode(source[i]["image"]).shape[0] for i in range(len(source)))
    assert (split["height"]["min"], split["height"]["max"]) == (heights[0], heights[-1])
    assert split["height"]["median"] == heights[len(heights) // 2 - 1]
    assert (split["examples"], split["count"], split["bad_images"]) == (60, 60, [])
    assert [shard["count"] for shard in split["shards"]] == [8] * 7 + [4]
    assert split["shards"][0]["file"] == "train-00000-of-00008.array_record"
    assert split["shards"][0]["bytes"] == (prepared / split["shards"][0]["file"]).stat().st_size


def test_drawn_images_of_several_labels(tmp_path):
    sources = {
        split: First(open_source("visual_atoms_multi", split, 32), length)
        for split, length in (("train", 50), ("test", 3))
    }
    manifest = prepare(sources, tmp_path / "out", shard_size=20, workers=1)
    assert manifest["label_shape"] == [4]
    labels = manifest["splits"]["train"]["labels_per_image"]
    assert labels["min"] == 1 and 1 < labels["mean"] < labels["max"] <= 4
    for split, source in sources.items():
        records = Records(str(tmp_path / "out"), split)
        for position, index in enumerate(permuted(np.arange(len(source)), len(source)).tolist()):
            np.testing.assert_array_equal(
                decode(records[position]["image"]), source[index]["image"]
            )
            np.testing.assert_array_equal(records[position]["label"], source[index]["label"])
            assert records.where(position) == f"visual_atoms_multi[{index}]"


@pytest.mark.parametrize("length", [*range(1, 70), 1000, 4096, 4097])
def test_the_order_is_a_permutation(length):
    assert sorted(permuted(np.arange(length), length)) == list(range(length))


def test_a_slice_of_the_order_is_a_fair_sample():
    length = 300_000_000
    start = permuted(np.arange(10_000), length)
    counts = np.histogram(start, bins=10, range=(0, length))[0]
    np.testing.assert_allclose(counts, 1000, atol=5 * np.sqrt(1000))
    np.testing.assert_allclose(np.mean(start % 2), 0.5, atol=0.03)
    assert abs(np.corrcoef(start[:-1], start[1:])[0, 1]) < 0.05
    np.testing.assert_array_equal(permuted(np.arange(5000, 5010), length), start[5000:5010])


def test_killed_and_started_again(images, prepared, tmp_path):
    out = tmp_path / "killed"
    script = (
        "import sys; from tests.data.test_prepare import *\n"
        "if __name__ == '__main__':\n"
        "    source = First(folder(sys.argv[1]), 60, seconds=0.1)\n"
        "    prepare({'train': source}, sys.argv[2], shard_size=8, workers=2)\n"
    )
    (tmp_path / "script.py").write_text(script)
    root = str(Path(__file__).parents[2])
    killed = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(images), str(out)],
        env={**os.environ, "PYTHONPATH": root},
        stderr=subprocess.DEVNULL,  # of Python's resource tracker, on what the killed left behind
        start_new_session=True,
    )
    try:
        wait_until(lambda: lines(out / "prepare.jsonl") >= 3 or killed.poll() is not None)
        killed.kill()
        killed.wait()
        wait_until(lambda: not group_is_alive(killed.pid))  # its workers end with it
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)
    written = lines(out / "prepare.jsonl") - 1
    assert 2 <= written < 8
    with pytest.raises(UsageError, match="incomplete: run vit-jax prepare again to finish it"):
        Records(out, "train")
    with (out / "prepare.jsonl").open("a") as journal:
        journal.write('{"file": "train-0000')  # as if killed while writing
    reports = []
    prepare(
        {"train": folder(images)},
        out,
        shard_size=8,
        workers=1,
        report=lambda done, total: reports.append((done, total)),
    )
    assert reports[0][0] in range(8 * written - 4, 8 * written + 1)
    assert len(reports) == 1 + 8 - written and reports[-1] == (60, 60)
    assert files(out) == files(prepared)


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def lines(file):
    return file.read_text().count("\n") if file.is_file() else 0


def group_is_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_that_fails_half_way(train, prepared, tmp_path, workers):
    out, source = tmp_path / "failed", train["train"]
    failing = Failing(source, len(source))
    with pytest.raises(RuntimeError, match="the disk is gone"):
        prepare({"train": failing}, out, shard_size=8, workers=workers)
    assert not (out / "manifest.json").exists()
    prepare(train, out, shard_size=8, workers=1)
    assert files(out) == files(prepared)


def test_a_worker_that_dies_is_noticed(train, tmp_path):
    class Deadly(First):
        def __getitem__(self, index):
            os._exit(9)

    source = Deadly(train["train"], 4)
    with pytest.raises(UsageError, match=r"a worker process died.*run prepare again with fewer"):
        prepare({"train": source}, tmp_path / "out", shard_size=1, workers=2)


def test_a_full_disk_is_told_in_one_line(train, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))  # Python ignores its signal
    try:
        with pytest.raises(
            UsageError, match=r"cannot write .*train-00000-of-00001.*write\(\) failed"
        ):
            prepare(train, tmp_path / "out", workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_only_what_is_missing_is_written(train, prepared):
    before = files(prepared)
    lost, *others = sorted(prepared.glob("*.array_record"))
    times = {file: file.stat().st_mtime_ns for file in others}
    lost.unlink()
    prepare(train, prepared, shard_size=8, workers=1)
    assert files(prepared) == before
    assert times == {file: file.stat().st_mtime_ns for file in others}


def test_two_at_once_are_refused(train, prepared):
    with (
        prepare_module._alone_in(prepared),
        pytest.raises(UsageError, match="another prepare is writing to"),
    ):
        prepare(train, prepared, shard_size=8, workers=1)


def test_bad_images_are_named_or_end_it(images, tmp_path):
    shutil.copytree(images / "train", tmp_path / "images" / "train")
    dogs = tmp_path / "images" / "train" / "dog"
    whole = (dogs / "1.jpg").read_bytes()
    (dogs / "empty.jpg").write_bytes(b"")
    (dogs / "text.jpg").write_text("not an image")
    (dogs / "cut.jpg").write_bytes(whole[: len(whole) * 2 // 3])
    source = folder(tmp_path / "images")
    names = {where(source, i) for i in range(len(source))}
    with pytest.raises(BadImage, match="cannot read the image"):
        prepare({"train": source}, tmp_path / "out", workers=1, on_bad_image="raise")
    manifest = prepare({"train": source}, tmp_path / "out", workers=1)
    bad = manifest["splits"]["train"]["bad_images"]
    assert len(bad) == 3
    assert any("empty" in image["error"] for image in bad)
    assert any("cut off" in image["error"] for image in bad)
    records = Records(tmp_path / "out", "train")
    kept = {records.where(i) for i in range(len(records))}
    assert kept == names - {image["name"] for image in bad} and len(kept) == 60
    with pytest.raises(BadImage, match="cannot read the image"):  # also of a finished one
        prepare({"train": source}, tmp_path / "out", workers=1, on_bad_image="raise")


def test_a_split_without_a_good_image(tmp_path):
    (tmp_path / "images" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "train" / "cat" / "1.jpg").write_bytes(b"")
    source = folder(tmp_path / "images")
    with pytest.raises(UsageError, match="none of the 1 images of train can be read"):
        prepare({"train": source}, tmp_path / "out", workers=1)


def test_other_inputs_are_refused(images, train, prepared, tmp_path):
    fewer = First(train["train"], 59)
    with pytest.raises(UsageError, match="examples of train 60, now 59"):
        prepare({"train": fewer}, prepared, shard_size=8)
    with pytest.raises(UsageError, match="shard_size 8, now 9"):
        prepare(train, prepared, shard_size=9)
    with pytest.raises(UsageError, match="splits train, now train, test"):
        prepare({**train, "test": train["train"]}, prepared, shard_size=8)
    shutil.copytree(images / "train", tmp_path / "other" / "train")
    with pytest.raises(UsageError, match=r"an image of train .*, now .*other"):
        prepare({"train": folder(tmp_path / "other")}, prepared, shard_size=8)
    (tmp_path / "other" / "train" / "dog").rename(tmp_path / "other" / "train" / "wolf")
    with pytest.raises(UsageError, match="class dog, now wolf"):
        prepare({"train": folder(tmp_path / "other")}, prepared, shard_size=8)
    with pytest.raises(UsageError, match="holds other files"):
        prepare(train, images)


def test_damage_is_found(prepared):
    assert verify(prepared) == {}
    image = Records(prepared, "train")[2 * 8]["image"]
    shards = sorted(prepared.glob("*.array_record"))
    data = bytearray(shards[2].read_bytes())
    data[data.index(image) + len(image) // 2] ^= 1
    shards[2].write_bytes(data)
    assert verify(prepared) == {shards[2].name: "its checksum differs"}
    records = Records(prepared, "train")  # which looks at sizes only
    with pytest.raises(UsageError, match=r"of the shard .*train-00002-of-00008.* is damaged"):
        records[2 * 8]

    shards[3].write_bytes(shards[3].read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"00003-of-00008.* has 0 records, expected 8 \(Corrupt"):
        Records(prepared, "train")
    shutil.copy(shards[7], shards[3])
    with pytest.raises(UsageError, match=r"train-00003-of-00008.* has 4 records, expected 8"):
        Records(prepared, "train")[3 * 8]  # as large as before: files come in blocks of 64 KB
    shards[3].unlink()
    with pytest.raises(UsageError, match=r"train-00003-of-00008.* is missing: expected 8 records"):
        Records(prepared, "train")
    assert list(verify(prepared)) == [shards[2].name, shards[3].name]


def test_a_shard_that_shrinks_after_opening(prepared):
    records = Records(prepared, "train")
    shards = sorted(prepared.glob("*.array_record"))
    shutil.copy(shards[7], shards[0])
    with pytest.raises(UsageError, match=r"train-00000-of-00008.* has 4 records, expected 8"):
        records[0]


def test_through_cloudpickle_and_from_many_threads(prepared):
    records = Records(prepared, "train")
    expected = [records[i]["image"] for i in range(len(records))]
    copy = cloudpickle.loads(cloudpickle.dumps(records))
    assert copy.class_names == records.class_names
    order = np.random.default_rng(0).integers(len(records), size=2000)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: copy[i]["image"], order))
    assert found == [expected[i] for i in order]


def test_more_shards_than_may_be_open(prepared, monkeypatch):
    monkeypatch.setattr("vit_jax.data.records._OPEN_SHARDS", 2)
    records = Records(prepared, "train")
    before = len(os.listdir("/proc/self/fd"))
    names = {records.where(i) for i in range(len(records))}
    assert len(names) == 60
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_what_is_no_prepared_data(prepared, tmp_path):
    with pytest.raises(UsageError, match=r"unknown split 'trian'.* Did you mean train"):
        Records(prepared, "trian")
    with pytest.raises(UsageError, match="array_record reads local files: mount the bucket"):
        Records("gs://bucket/data", "train")
    with pytest.raises(UsageError, match=r"is no prepared data set: it has no manifest\.json"):
        Records(tmp_path, "train")
    manifest = prepared / "manifest.json"
    for text, says in (
        ('{"name": "something else"}', "is not a manifest that vit-jax prepare wrote"),
        ("[]", "is not a manifest that vit-jax prepare wrote"),
        ("{", "is damaged, it is no JSON"),
        ('{"format": "vit_jax records", "version": 9}', "is of version 9, this vit_jax reads 1"),
    ):
        manifest.write_text(text)
        with pytest.raises(UsageError, match=says):
            Records(prepared, "train")
