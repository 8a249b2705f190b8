"""The cache of features: what is found again, what is not, and that it never gets in the way."""

import json
import logging
import os

import jax
import numpy as np
import pytest
from flax import nnx

from tests.data.images import jpeg, photo, write
from vit_jax.cli import dispatch
from vit_jax.data.compose import Subset
from vit_jax.data.sources import open_source
from vit_jax.evaluate import features
from vit_jax.evaluate.feature_cache import FeatureCache, Known, default_cache, entry_key
from vit_jax.evaluate.features import OnFeatures
from vit_jax.models.network import create_model


@pytest.fixture(scope="module")
def model():
    return create_model("Pico/8", image_size=16, depth=1)


@pytest.fixture
def ran(monkeypatch):
    """How many images went through the network, call by call."""
    counts = []
    real = features.extract_features
    monkeypatch.setattr(
        features,
        "extract_features",
        lambda model, source, *rest: counts.append(len(source)) or real(model, source, *rest),
    )
    return counts


def digits(split="test", examples=range(40)):
    return Subset(open_source("digits", split, 16), examples)


def on_features(folder, **options):
    source = digits()
    return OnFeatures(source, source, cache=FeatureCache(folder), **options)


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_image_goes_through_the_network_once(model, tmp_path, ran, caplog):
    caplog.set_level(logging.INFO, "vit_jax")
    data = on_features(tmp_path)
    whole = OnFeatures(digits(), digits()).features(model, digits())
    ran.clear()
    first = data.features(model, digits(examples=[3, 30, 7]))
    same(first, [part[[3, 30, 7]] for part in whole])
    for found, expected in zip(data.features(model, digits()), whole, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    data.features(model, digits(examples=range(39, 10, -1)))  # in any order
    assert ran == [3, 37]
    assert "digits: features of 29 of 29 images are in the cache" in caplog.messages[-1]


def test_other_weights_crops_sizes_and_data_have_entries_of_their_own(model):
    key = entry_key(model, "digits", "resize")
    graphdef, state = nnx.split(model)
    assert key == entry_key(nnx.merge(graphdef, state), "digits", "resize")
    assert key != entry_key(model, "digits", "centre")
    assert key != entry_key(model, "glyphs", "resize")
    leaves, structure = jax.tree.flatten(state)
    for number in (0, len(leaves) - 1):
        nudged = [leaf + 1e-6 * (place == number) for place, leaf in enumerate(leaves)]
        changed = nnx.merge(graphdef, jax.tree.unflatten(structure, nudged))
        assert key != entry_key(changed, "digits", "resize")
    larger = create_model("Pico/8", image_size=24, depth=1)
    assert key != entry_key(larger, "digits", "resize")


def test_a_changed_image_is_computed_again(model, tmp_path, ran):
    folder = tmp_path / "images"
    for seed in range(6):
        write(folder / "train" / "cat" / f"{seed}.jpg", jpeg(photo(seed=seed)))
    data = on_features(tmp_path / "cache", on_bad_image="skip")
    data.features(model, open_source(str(folder), "train", 16))
    write(folder / "train" / "cat" / "3.jpg", jpeg(photo(seed=100)))
    (folder / "train" / "cat").rename(folder / "train" / "dog")
    source = open_source(str(folder), "train", 16)
    second, _, _ = data.features(model, source)
    assert ran == [6, 1] and len(second) == 6
    write(folder / "train" / "dog" / "4.jpg", b"no image")
    for _ in range(2):  # what cannot be read is never known
        _, _, readable = data.features(model, source)
        assert [path.endswith("4.jpg") for path in source.paths] == list(~readable)
    assert ran == [6, 1, 1, 1]


@pytest.mark.parametrize("damage", ["cut", "flipped", "replaced", "pickled"])
def test_a_damaged_entry_is_computed_again(model, tmp_path, ran, caplog, damage):
    data = on_features(tmp_path)
    expected = data.features(model, digits())
    (entry,) = tmp_path.glob("*.npz")
    stored = bytearray(entry.read_bytes())
    if damage == "cut":
        entry.write_bytes(stored[: len(stored) // 2])
    elif damage == "flipped":
        stored[len(stored) // 2] ^= 1
        entry.write_bytes(stored)
    elif damage == "replaced":
        entry.write_bytes(b"words")
    else:
        objects = np.array([{}], object)
        np.savez(entry, digests=objects, features=objects)
    same(data.features(model, digits()), expected)
    assert "cannot be read, its features are computed again" in caplog.text
    same(data.features(model, digits()), expected)
    assert ran == [40, 40]


def test_entries_used_longest_ago_go_first(tmp_path):
    known = Known([bytes(range(16))] * 10, np.ones((10, 1000), np.float32))
    cache = FeatureCache(tmp_path, most_bytes=100_000)  # two of them
    for age, key in ((30, "first"), (20, "second")):
        cache.write(key, known)
        os.utime(tmp_path / f"{key}.npz", ns=(0, 10**18 - age))
    assert cache.read("first").digests == known.digests  # so it is the second that goes
    cache.write("third", known)
    assert {path.name for path in tmp_path.iterdir()} == {"first.npz", "third.npz"}


def test_a_folder_that_cannot_be_written_to_is_no_error(model, tmp_path, ran, caplog):
    (tmp_path / "file").write_text("")
    on_features(tmp_path / "file").features(model, digits())
    assert ran == [40] and "features are not kept for another time" in caplog.text


def test_the_folder_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path))
    assert default_cache().folder == tmp_path / "features"
    monkeypatch.delenv("VIT_JAX_CACHE")
    assert default_cache().folder.parts[-3:] == (".cache", "vit_jax", "features")


def test_verbs_share_what_was_computed(trained_run, tmp_path, monkeypatch, capsys, ran):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path))
    data = [f"--model={trained_run}", "--data=digits", "--split=test[:50]", "--json"]
    fewshot = ["fewshot", *data, "--train-split=train[:400]", "--seeds=2"]
    assert dispatch([*fewshot, "--shots=1,5"]) == 0
    shots, test = ran
    assert shots <= 2 * 5 * 10 and test == 50
    ran.clear()
    assert dispatch([*fewshot, "--shots=1,2,3"]) == 0
    assert not ran
    capsys.readouterr()
    assert dispatch(["probe", *data, "--train-split=train[:400]"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert ran == [400 - shots]
    assert dispatch(["probe", *data, "--train-split=train[:400]", "--no-cache"]) == 0
    assert ran == [400 - shots, 400, 50]
    assert json.loads(capsys.readouterr().out) == first


def test_long_work_is_reported_batch_by_batch(model):
    seen = []
    data = OnFeatures(
        digits(), digits(), batch_size=16, report=lambda done, total: seen.append((done, total))
    )
    data.features(model, digits())
    assert seen == [(16, 40), (32, 40), (40, 40)]
