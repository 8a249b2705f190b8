"""prepare, doctor and inspect as a user types them."""

import json

import cv2
import pytest

from tests.data.images import broken_folder, jpeg, photo, write
from vit_jax.cli import dispatch, run_verb
from vit_jax.data.sources import open_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for split, count in (("train", 12), ("val", 4)):
        for seed in range(count):
            name = f"class{seed % 2}/{split}{seed}.jpg"
            write(root / split / name, jpeg(photo(seed=seed + 100 * (split == "val"))))
    return root


def test_prepare_writes_every_split_and_training_reads_it(folder, tmp_path, capsys):
    assert dispatch(["prepare", str(folder), str(tmp_path / "out"), "--workers=1"]) == 0
    printed = capsys.readouterr().out
    assert "train: 12 images in 1 files" in printed and "val: 4 images" in printed
    written = open_source(str(tmp_path / "out"), "train", 32)
    source = open_source(str(folder), "train", 32)
    assert {written[i]["image"] for i in range(12)} == {source[i]["image"] for i in range(12)}
    assert written.class_names == source.class_names
    assert len(open_source(str(tmp_path / "out"), "train[:50%]", 32)) == 6


def test_prepare_makes_a_synthetic_corpus_of_any_size(tmp_path, capsys):
    out = str(tmp_path / "atoms")
    command = ["prepare", out, "--synthetic=20", "--image-size=32", "--shard-size=8", "--workers=1"]
    assert dispatch([*command, "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["splits"]["train"]["count"] == 20
    source = open_source(out, "train", 32)
    assert source.num_classes == 21_000 and source[0]["label"].shape == (4,)


def test_prepare_asked_for_too_little(capsys):
    assert run_verb(dispatch, ["prepare", "out"]) == 2
    assert "expected vit-jax prepare IN OUT" in capsys.readouterr().err


def test_doctor_of_a_data_set(folder, tmp_path, capsys):
    assert dispatch(["doctor", f"--data={folder}"]) == 0
    assert "healthy" in capsys.readouterr().out
    assert dispatch(["doctor", f"--data={broken_folder(tmp_path)}", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found["splits"]["train"]["findings"]["unreadable"]) == 3


def test_doctor_of_the_machine(capsys):
    assert dispatch(["doctor", "--json"]) in (0, 1)  # 1 where the tree is not installed
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["jax"] and len(found["devices"]) == 8
    assert set(found["problems"]) <= {"vit_jax is not installed"}
    dispatch(["doctor"])
    assert "GB of disk free here" in capsys.readouterr().out


def test_inspect_draws_a_batch_as_the_network_sees_it(folder, tmp_path, capsys):
    picture = tmp_path / "plots" / "batch.png"
    command = ["inspect", "--batch", f"--data={folder}", f"--out={picture}"]
    augment = ["--config.augment.mixup=0.5", "--config.augment.randaugment_layers=1"]
    sizes = ["--config=configs/demo.py", "--config.batch_size=8", "--config.image_size=32"]
    assert dispatch([*command, *sizes, *augment]) == 0
    assert str(picture) in capsys.readouterr().out
    image = cv2.imread(str(picture))
    assert image.std() > 10 and min(image.shape[:2]) > 50


def test_prepare_notices_what_changed_since(tmp_path, capsys):
    for seed in range(4):
        write(tmp_path / "in" / f"{seed}.jpg", jpeg(photo(seed=seed)) if seed else b"")
    lines = [f"{seed}.jpg,{'cat' if seed % 2 else 'dog'},train" for seed in range(4)]
    (tmp_path / "in" / "list.csv").write_text("\n".join(["image,label,split", *lines]))
    command = ["prepare", str(tmp_path / "in" / "list.csv"), str(tmp_path / "out"), "--workers=1"]
    assert run_verb(dispatch, [*command, "--on-bad-image=raise"]) == 2
    assert "0.jpg" in capsys.readouterr().err
    assert run_verb(dispatch, command) == 0
    assert "3 images in 1 files, 1 bad ones left out" in capsys.readouterr().out
    write(tmp_path / "in" / "0.jpg", jpeg(photo(seed=0)))  # repaired
    assert run_verb(dispatch, command) == 0
    assert "4 images in 1 files\n" in capsys.readouterr().out
    swapped = [line.replace("cat", "x").replace("dog", "cat").replace("x", "dog") for line in lines]
    (tmp_path / "in" / "list.csv").write_text("\n".join(["image,label,split", *swapped]))
    assert run_verb(dispatch, command) == 2
    assert "begun with other inputs: labels or files of train" in capsys.readouterr().err
