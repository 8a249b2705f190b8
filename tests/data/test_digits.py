"""The handwritten digits: a fixed split, native size."""

import zlib

import numpy as np
import pytest

from vit_jax.data.digits import Digits


def test_a_digit_is_a_small_rgb_image_with_a_label():
    example = Digits("train")[0]
    assert example["image"].shape == (8, 8, 3)
    assert example["image"].dtype == np.uint8
    assert example["label"].shape == ()
    assert example["label"].dtype == np.int32
    assert (example["image"][..., 0] == example["image"][..., 2]).all()


def test_values_fill_the_range_of_uint8():
    images = np.stack([Digits("test")[i]["image"] for i in range(500)])
    assert images.min() == 0
    assert images.max() == 255


def test_the_split_is_fixed_and_stratified():
    train, test = Digits("train"), Digits("test")
    assert (len(train), len(test)) == (1297, 500)
    assert train.class_names == tuple("0123456789")
    labels = [int(test[i]["label"]) for i in range(len(test))]
    assert np.bincount(labels).tolist() == [50] * 10
    # Another sum means another split, and accuracies that cannot be compared with earlier ones.
    images = b"".join(test[i]["image"].tobytes() for i in range(len(test)))
    assert zlib.crc32(images) == 1905905051


def test_no_image_is_in_both_splits():
    train, test = Digits("train"), Digits("test")
    seen = {train[i]["image"].tobytes() for i in range(len(train))}
    assert len(seen) == len(train)
    assert not any(test[i]["image"].tobytes() in seen for i in range(len(test)))


def test_an_example_is_the_callers_to_change():
    source = Digits("train")
    example = source[3]
    example["image"][:] = 0
    example["label"][...] = 9
    assert source[3]["image"].any()
    assert source[3]["label"] == Digits("train")[3]["label"] != 9


@pytest.mark.parametrize("index", [-1, 500])
def test_there_is_nothing_beyond_the_ends(index):
    with pytest.raises(IndexError, match="500 examples"):
        Digits("test")[index]
