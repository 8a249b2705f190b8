"""Visual atoms: 300 million images of 21,000 classes, none of them stored."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vit_jax.data.source import PADDING_LABEL
from vit_jax.data.visual_atoms import VisualAtoms, atom


def test_any_of_300_million_images_can_be_had_at_once():
    source = VisualAtoms("train", 32)
    assert len(source) == 300_000_000
    example = source[299_999_999]
    assert example["image"].shape == (32, 32, 3)
    assert example["image"].dtype == np.uint8
    assert example["label"].dtype == np.int32
    assert example["label"] == 299_999_999 % 21_000
    with pytest.raises(IndexError):
        source[300_000_000]


def test_there_are_21_000_classes_and_all_differ():
    source = VisualAtoms("train", 32)
    assert source.num_classes == len(source.class_names) == 21_000
    atoms = {atom(label) for label in range(0, 21_000, 10)}
    assert len(atoms) == 2_100
    assert len({a.frequencies for a in atoms}) > 350  # of 21 * 20


def test_an_image_is_a_pure_function_of_its_index_in_any_thread():
    numbers = list(range(0, 30_000_000, 150_000))
    alone = [VisualAtoms("train", 32)[i]["image"] for i in numbers]
    shared = VisualAtoms("train", 32)
    atom.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda i: shared[i]["image"], numbers))
    np.testing.assert_array_equal(alone, together)


def test_images_of_a_class_share_the_atom_and_nothing_else():
    source = VisualAtoms("train", 64)
    views = [source[7 + 21_000 * i] for i in range(50)]
    assert {int(view["label"]) for view in views} == {7}
    assert len({view["image"].tobytes() for view in views}) == 50


def test_an_atom_depends_on_its_class_only():
    few, many = VisualAtoms("train", 32, classes=10), VisualAtoms("train", 32, classes=1_000)
    np.testing.assert_array_equal(few[3]["image"], many[3]["image"])
    assert dataclasses.asdict(atom(3)) == dataclasses.asdict(atom.__wrapped__(3))


def test_splits_show_the_same_classes_in_other_images():
    train, test = VisualAtoms("train", 32), VisualAtoms("test", 32)
    assert len(test) == 42_000
    for i in range(100):
        assert train[i]["label"] == test[i]["label"]
        assert (train[i]["image"] != test[i]["image"]).any()


def test_classes_can_be_told_apart_by_what_is_on_the_image():
    source = VisualAtoms("train", 96, classes=10, images=1_000)
    features = np.stack([_outline_spectrum(source[i]["image"]) for i in range(300)])
    labels = np.array([source[i]["label"] for i in range(300)])
    nearest = np.argmax(features[200:] @ features[:200].T, axis=1)
    assert np.mean(labels[:200][nearest] == labels[200:]) > 0.5  # by chance 0.1


@pytest.mark.parametrize("size", [(32, 48), (48, 32), (30, 33), (224, 224)])
def test_any_size_can_be_drawn(size):
    image = VisualAtoms("train", size)[5]["image"]
    assert image.shape == (*size, 3)
    assert image.std() > 5


def test_lines_grow_with_the_image():
    """An atom covers about the same part of a small and of a large image."""
    small, large = (
        np.mean([_ink(VisualAtoms("train", size)[i]["image"]).mean() for i in range(60)])
        for size in (56, 224)
    )
    assert 0.6 < large / small < 1.2


def test_several_labels_per_image_as_in_jft():
    source = VisualAtoms("train", 16, multi_label=True)
    labels = np.stack([source[i]["label"] for i in range(3_000)])
    assert labels.dtype == np.int32
    assert labels.shape == (3_000, 4)
    counts = (labels != PADDING_LABEL).sum(1)
    assert set(counts.tolist()) == {1, 2, 3, 4}
    assert counts.mean() == pytest.approx(1.26, abs=0.05)
    for row, count in zip(labels, counts, strict=True):
        assert len(set(row[:count].tolist())) == count  # no class twice
        assert (row[:count] >= 0).all() and (row[:count] < 21_000).all()
        assert (row[count:] == PADDING_LABEL).all()


def test_several_labels_of_few_classes():
    source = VisualAtoms("train", 16, classes=2, multi_label=True)
    labels = {tuple(source[i]["label"].tolist()) for i in range(300)}
    assert labels == {(0, -1, -1, -1), (1, -1, -1, -1), (0, 1, -1, -1), (1, 0, -1, -1)}


def _ink(image: np.ndarray) -> np.ndarray:
    """Where an image differs from its ground by more than noise does."""
    ground = np.median(image.reshape(-1, 3), axis=0)
    return np.abs(image - ground).max(axis=-1) > 33


def _outline_spectrum(image: np.ndarray) -> np.ndarray:
    """How often the outline waves around the centre, whichever way it is turned."""
    y, x = np.nonzero(_ink(image))
    points = (x - x.mean()) + 1j * (y - y.mean())
    outline = np.zeros(48)
    bins = ((np.angle(points) / (2 * np.pi) + 0.5) * 47.999).astype(int)
    np.maximum.at(outline, bins, np.abs(points))
    spectrum = np.abs(np.fft.rfft(outline / outline.max()))[1:]
    return spectrum / np.linalg.norm(spectrum)
