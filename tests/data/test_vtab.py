"""The nineteen tasks: which images they take, and what they call them."""

import pickle
import sys

import cloudpickle
import numpy as np
import pytest

from tests.data.fake_tfds import mocked_tfds, pretend_to_be_prepared, read_stamp
from vit_jax.data.decode import pixels
from vit_jax.data.source import where
from vit_jax.data.vtab import SPLITS, TASKS, open_vtab
from vit_jax.errors import UsageError

tfds = pytest.importorskip("tensorflow_datasets")

# Task: classes; then split and number of the first example to validate on, and of the first and
# the number of examples to test on.
FIRST_AND_COUNT = {
    "caltech101": (102, ("train", 2753), ("test", 0, 6085)),
    "cifar100": (100, ("train", 45_000), ("test", 0, 10_000)),
    "dtd": (47, ("validation", 0), ("test", 0, 1880)),
    "flowers102": (102, ("validation", 0), ("test", 0, 6149)),
    "pets": (37, ("train", 2944), ("test", 0, 3669)),
    "sun397": (397, ("validation", 0), ("test", 0, 21_750)),
    "svhn": (10, ("train", 65_931), ("test", 0, 26_032)),
    "camelyon": (2, ("validation", 0), ("test", 0, 32_768)),
    "eurosat": (10, ("train", 16_200), ("train", 21_600, 5400)),
    "resisc45": (45, ("train", 18_900), ("train", 25_200, 6300)),
    "retinopathy": (5, ("validation", 0), ("test", 0, 42_670)),
    "clevr_count": (8, ("train", 63_000), ("validation", 0, 15_000)),
    "clevr_distance": (6, ("train", 63_000), ("validation", 0, 15_000)),
    "dmlab": (6, ("validation", 0), ("test", 0, 22_735)),
    "dsprites_position": (16, ("train", 589_824), ("train", 663_552, 73_728)),
    "dsprites_orientation": (16, ("train", 589_824), ("train", 663_552, 73_728)),
    "kitti_distance": (4, ("validation", 0), ("test", 0, 711)),
    "smallnorb_azimuth": (18, ("test", 0), ("test", 12_150, 12_150)),
    "smallnorb_elevation": (9, ("test", 0), ("test", 12_150, 12_150)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vtab")
    for name in {task.builder for task in TASKS.values()}:
        pretend_to_be_prepared(name, folder)
    return folder


@pytest.fixture
def vtab(folder):
    """All data sets as if they were prepared: their real features and sizes, made up examples."""

    with mocked_tfds(folder):
        yield


def some(source):
    """Its ends and a handful between."""
    return sorted({0, 1, len(source) - 1, *range(0, len(source), max(1, len(source) // 60))})


def test_there_are_nineteen():
    assert list(TASKS) == list(FIRST_AND_COUNT)
    groups = [task.group for task in TASKS.values()]
    assert groups == ["natural"] * 7 + ["specialized"] * 4 + ["structured"] * 8


@pytest.mark.parametrize("task", TASKS)
def test_splits(vtab, task):
    _, (val, val_first), (test, test_first, test_count) = FIRST_AND_COUNT[task]
    sources = {split: open_vtab(task, split) for split in SPLITS}
    found = {
        split: [read_stamp(source[i]["image"]) for i in some(source)]
        for split, source in sources.items()
    }
    train800 = [("train", n) for n in range(800)]
    val200 = [(val, val_first + n) for n in range(200)]
    expected = {
        "train800": train800,
        "val200": val200,
        "train800val200": train800 + val200,
        "test": [(test, test_first + n) for n in range(test_count)],
    }
    for split, source in sources.items():
        assert len(source) == len(expected[split])
        assert found[split] == [expected[split][i] for i in some(source)]
    # What is trained on is not tested on.
    assert not set(expected["train800val200"]) & set(expected["test"])
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("task", TASKS)
def test_labels_and_images(vtab, task):
    classes = FIRST_AND_COUNT[task][0]
    source = open_vtab(task, "train800")
    assert source.name == f"vtab:{task}"
    assert source.num_classes == TASKS[task].num_classes == classes
    examples = [source[i] for i in range(200)]
    labels = np.array([example["label"] for example in examples])
    assert labels.dtype == np.int32 and labels.ndim == 1
    assert labels.min() >= 0 and labels.max() < classes
    # A function that always says the same would be in range, too. Depths of scattered objects are
    # mostly small, so not all bins of distance are seen.
    assert len(set(labels)) >= (2 if "distance" in task else min(classes, 40))
    for example in examples[1:4]:
        image = pixels(example["image"])
        assert image.dtype == np.uint8 and image.shape == (1, 32, 3)
        assert image.max() == (255 if "dsprites" in task else 1)


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
@pytest.mark.parametrize("task", TASKS)
def test_label_functions_can_be_sent_to_workers(task, pickler):
    assert pickle.loads(pickler.dumps(TASKS[task])) == TASKS[task]


def objects(**columns):
    return {"objects": columns}


@pytest.mark.parametrize(("count", "label"), [(3, 0), (7, 4), (10, 7)])
def test_clevr_counts_from_three(count, label):
    assert TASKS["clevr_count"].label_of(objects(size=[0] * count)) == label


@pytest.mark.parametrize(
    ("nearest", "label"),
    [(3, 0), (8, 0), (8.1, 1), (8.5, 1), (8.6, 2), (9.25, 3), (9.75, 4), (10, 4), (10.5, 5)],
)
def test_clevr_distance_is_that_of_the_nearest(nearest, label):
    places = [np.array([300, 1, depth], np.float32) for depth in (14, nearest, 12)]
    assert TASKS["clevr_distance"].label_of(objects(pixel_coords=places)) == label


@pytest.mark.parametrize(
    ("vehicles", "label"),
    [([], 3), ([(0, 5)], 0), ([(2, 8)], 0), ([(1, 8.5), (0, 30)], 1), ([(1, 20.5)], 2)],
)
def test_kitti_distance_is_that_of_the_nearest_vehicle(vehicles, label):
    seen = [(3, 1.5), *vehicles, (7, 2)]  # a pedestrian and something else are nearer
    types = [kind for kind, _ in seen]
    places = [np.array([0, 0, depth], np.float32) for _, depth in seen]
    assert TASKS["kitti_distance"].label_of(objects(type=types, location=places)) == label


def test_dsprites_bins():
    position, orientation = TASKS["dsprites_position"], TASKS["dsprites_orientation"]
    positions = [position.label_of({"label_x_position": x}) for x in range(32)]
    assert positions == [x for x in range(16) for _ in range(2)]
    turned = [orientation.label_of({"label_orientation": x}) for x in range(40)]
    assert turned == [int(np.floor(x / 2.5)) for x in range(40)]


def test_smallnorb_labels_are_stored():
    features = {"label_azimuth": 17, "label_elevation": 3}
    assert TASKS["smallnorb_azimuth"].label_of(features) == 17
    assert TASKS["smallnorb_elevation"].label_of(features) == 3


def test_what_spoils_a_label():
    spoiled = {
        kind: {name for name, task in TASKS.items() if kind in task.spoiled_by}
        for kind in ("flip", "crop")
    }
    both = {"dsprites_position", "dsprites_orientation", "smallnorb_azimuth"}
    assert spoiled["flip"] == both | {"svhn"}
    assert spoiled["crop"] == {n for n, task in TASKS.items() if task.group == "structured"}


def test_examples_say_where_they_are(vtab):
    source = open_vtab("cifar100", "train800val200")
    assert where(source, 799) == "cifar100:3.*.* train[:90%][799]"
    assert where(source, 800) == "cifar100:3.*.* train[90%:][0]"
    for index in (-1, 1000):
        with pytest.raises(IndexError, match=f"vtab:cifar100 has 1000 .* no number {index}"):
            source[index]


@pytest.mark.parametrize(
    ("task", "split", "says"),
    [
        ("cifar10", "test", "^unknown VTAB task 'cifar10'. Did you mean cifar100.* svhn, "),
        ("pets", "train", "^unknown split 'train' of the VTAB task pets.* train800val200, test.$"),
    ],
)
def test_mistakes(task, split, says):
    with pytest.raises(UsageError, match=says):
        open_vtab(task, split)


def test_data_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"tfds build dtd:3\.\*\.\* --file_format=array_record"):
        open_vtab("dtd", "test", str(tmp_path))


def test_data_of_which_only_a_part_is_prepared(tmp_path):
    pretend_to_be_prepared("dtd:3.*.*", tmp_path, {"train": 799, "validation": 200, "test": 9})
    assert len(open_vtab("dtd", "val200", str(tmp_path))) == 200
    with pytest.raises(UsageError, match="has 799 examples in train, expected at least 800"):
        open_vtab("dtd", "train800", str(tmp_path))


@pytest.mark.parametrize("task", [task for task in TASKS.values() if task.label_of is None])
def test_stored_labels_have_as_many_classes(task):
    """Of TFDS's own code, which also says that the version can still be prepared."""
    builder = tfds.builder(task.builder, data_dir="/none")
    assert builder.info.features["label"].num_classes == task.num_classes
