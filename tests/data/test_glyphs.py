"""Letters: which ones, and that every image follows from its number alone."""

import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vit_jax.data.glyphs import Glyphs, distance_field, faces_with, letters
from vit_jax.errors import UsageError


def test_a_glyph_is_a_grey_image_and_its_label_names_a_letter():
    source = Glyphs("train", 32)
    example = source[24]
    assert example["image"].shape == (32, 32, 3)
    assert example["image"].dtype == np.uint8
    assert (example["image"][..., 0] == example["image"][..., 1]).all()
    assert example["label"].dtype == np.int32
    assert source.class_names[example["label"]] == "Y"


def test_sizes_and_lengths():
    source = Glyphs("train", (24, 40), classes=50)
    assert source[7]["image"].shape == (24, 40, 3)
    assert source.num_classes == len(source.class_names) == 50
    assert len(source) == 50 * 10_000
    assert len(Glyphs("test", 32, classes=50)) == 50 * 20
    with pytest.raises(IndexError):
        source[len(source)]


def test_an_image_is_a_pure_function_of_its_index_in_any_thread():
    numbers = list(range(0, 2_000, 7))
    alone = [Glyphs("train", 32)[i]["image"] for i in numbers]
    shared = Glyphs("train", 32)
    distance_field.cache_clear()  # threads race to draw the letters, too
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda i: shared[i]["image"], numbers))
    np.testing.assert_array_equal(alone, together)


def test_no_two_images_are_alike_within_or_across_splits():
    train, test = Glyphs("train", 32), Glyphs("test", 32)
    images = [source[i]["image"].tobytes() for source in (train, test) for i in range(1_000)]
    assert len(set(images)) == len(images)


def test_every_label_comes_up_equally_often():
    source = Glyphs("test", 16, classes=30)
    labels = [int(source[i]["label"]) for i in range(len(source))]
    assert np.bincount(labels).tolist() == [20] * 30


def test_classes_are_letters_and_never_digits():
    every = letters(1_500)
    assert {unicodedata.category(letter) for letter in every} <= {"Lu", "Ll", "Lo"}
    assert not any(unicodedata.numeric(letter, None) is not None for letter in every)
    assert not set(every) & set("0123456789")
    assert "З" not in every  # Cyrillic ze, a 3 to any eye


def test_no_class_is_drawn_like_a_digit():
    digits = [distance_field(digit, "DejaVuSans") > 128 for digit in "0123456789"]
    for letter in letters(230):
        shape = distance_field(letter, "DejaVuSans") > 128
        assert max(_overlap(shape, digit) for digit in digits) < 0.8, letter


def test_letters_of_one_shape_are_one_class():
    chosen = letters(230)
    for copies in ("AΑА", "zZ", "PΡР", "lI"):
        assert sum(copy in chosen for copy in copies) == 1, copies
    shapes = [distance_field(letter, "DejaVuSans") > 128 for letter in chosen]
    for i, shape in enumerate(shapes):
        assert all(_overlap(shape, other) < 0.95 for other in shapes[:i]), chosen[i]


def test_fewer_classes_are_the_first_of_more():
    assert letters(500)[:230] == letters(230)
    assert letters(500)[:5] == tuple("ABCDE")
    scripts = {unicodedata.name(letter).split()[0] for letter in letters(230)}
    assert {"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC"} == scripts


def test_too_many_classes_are_refused_with_the_number_there_is():
    with pytest.raises(UsageError, match=r"at most \d{4} classes, not 100000: ask for") as error:
        Glyphs("train", 32, classes=100_000)
    assert "\n" not in str(error.value)


def test_faces_draw_what_they_claim():
    assert len(faces_with("A")) > 15
    assert not any("Ita" in face for face in faces_with("т"))  # an m in cursive
    assert all(face.startswith("DejaVu") for face in faces_with("ა"))


def test_letters_can_be_told_apart_by_what_is_on_the_image():
    source = Glyphs("train", 16, classes=8)
    images = np.stack([source[i]["image"][..., 0].ravel() for i in range(1_200)]) / 255
    images -= images.mean(axis=1, keepdims=True)
    labels = np.array([source[i]["label"] for i in range(1_200)])
    seen, wanted = images[:1_000], np.eye(8)[labels[:1_000]]
    weights = np.linalg.solve(seen.T @ seen + 100 * np.eye(256), seen.T @ wanted)  # least squares
    guesses = np.argmax(images[1_000:] @ weights, axis=1)
    assert np.mean(guesses == labels[1_000:]) > 0.4  # by chance 0.125


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    return (one & other).sum() / (one | other).sum()
