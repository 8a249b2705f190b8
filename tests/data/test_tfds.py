"""A data set that TFDS has prepared reads back as it was written, with no TensorFlow anywhere."""

import concurrent.futures
import pathlib
import pickle
import struct
import subprocess
import sys

import cloudpickle
import cv2
import numpy as np
import pytest

from vit_jax.data import tfds_source
from vit_jax.data.source import PADDING_LABEL, where
from vit_jax.data.tfds_source import MOST_LABELS, TfdsSource, open_tfds
from vit_jax.errors import UsageError

tfds = pytest.importorskip("tensorflow_datasets")

ROOT = pathlib.Path(__file__).parents[2]
COUNT = 10
NAMES = ("circle", "square", "star")


def picture(number):
    return np.random.default_rng(number).integers(0, 256, (6, 7, 3), np.uint8)


def encoded(number):
    return cv2.imencode(".png", picture(number))[1].tobytes()


def example(number):
    return {
        "image": encoded(number),
        "mask": encoded(number),
        "label": number % 3,
        "file_name": f"{number}.png",
    }


def prepare(folder, features, make=example, target=None):
    """As a user's own data set is: its code is not there when it is read."""

    class TinyShapes(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.2.0")
        code_path = None  # no module of its own, with checksums of downloads beside it

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", target) if target else None,
            )

        def _split_generators(self, _):
            return {"train": self._generate_examples(), "test": self._generate_examples()}

        def _generate_examples(self):
            yield from ((number, make(number)) for number in range(COUNT))

    TinyShapes(data_dir=folder, file_format="array_record").download_and_prepare()


def tiny_features():
    return {
        "image": tfds.features.Image(),
        "mask": tfds.features.Image(),
        "label": tfds.features.ClassLabel(names=NAMES),
        "file_name": tfds.features.Text(),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    prepare(folder, tiny_features())
    return str(folder)


def numbers(source):
    """Which of the written examples it holds, in its order."""
    return [int(source.file_name(i).removesuffix(".png")) for i in range(len(source))]


def test_every_example_reads_back_to_the_bit(folder):
    source = open_tfds("tiny_shapes", "train", folder)
    assert source.name == "tiny_shapes"
    assert source.class_names == NAMES and source.num_classes == 3
    assert sorted(numbers(source)) == list(range(COUNT))
    for index, number in enumerate(numbers(source)):
        found = source[index]
        assert set(found) == {"image", "label"}
        assert found["image"] == encoded(number)
        assert found["label"].dtype == np.int32 and found["label"].shape == ()
        assert found["label"] == number % 3
    assert "tensorflow" not in sys.modules


def test_versions_and_slices_are_those_of_tfds(folder):
    whole = numbers(open_tfds("tiny_shapes:1.*.*", "train", folder))
    assert numbers(open_tfds("tiny_shapes:1.2.0", "train[:80%]", folder)) == whole[:8]
    joined = numbers(open_tfds("tiny_shapes", "train[9:]+train[:2]", folder))
    assert joined == [*whole[9:], *whole[:2]]


def test_examples_have_names(folder):
    source = open_tfds("tiny_shapes", "test[5:]", folder)
    assert where(source, 2) == "tiny_shapes test[5:][2]"


@pytest.mark.parametrize("index", [-1, COUNT])
def test_there_is_nothing_outside(folder, index):
    with pytest.raises(IndexError, match=f"has 10 examples, there is no number {index}"):
        open_tfds("tiny_shapes", "train", folder)[index]


def test_the_caller_may_make_image_and_label(folder):
    source = TfdsSource(
        "tiny_shapes",
        "train",
        data_dir=folder,
        label_of=lambda features: len(features["file_name"]),
        image_of=lambda features: features["mask"] + b"!",
        class_names="abcdefgh",
    )
    assert source.class_names == tuple("abcdefgh")
    assert source[3]["label"] == len("0.png")
    assert source[3]["image"] == encoded(numbers(source)[3]) + b"!"
    with pytest.raises(TypeError, match="class_names"):
        TfdsSource("tiny_shapes", "train", data_dir=folder, label_of=len)


def test_images_that_are_not_asked_for_are_not_decoded(folder):
    def mask_of(features):
        return features["mask"]

    source = TfdsSource("tiny_shapes", "train", data_dir=folder, image_of=mask_of)
    assert isinstance(source[0]["image"], bytes)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_may_be_stored_as_they_are(tmp_path, channels):
    shape = (6, 7, channels)
    features = {
        "picture": tfds.features.Tensor(shape=shape, dtype=np.uint8),
        "label": tfds.features.ClassLabel(num_classes=COUNT),
    }
    prepare(tmp_path, features, lambda n: {"picture": picture(n)[..., :channels], "label": n})
    source = open_tfds("tiny_shapes", "train", str(tmp_path))
    assert source.class_names == tuple("0123456789")
    for index in range(COUNT):
        found = source[index]
        expected = np.broadcast_to(picture(int(found["label"]))[..., :channels], (6, 7, 3))
        assert found["image"].dtype == np.uint8
        np.testing.assert_array_equal(found["image"], expected)


@pytest.mark.parametrize(("length", "padded"), [(None, MOST_LABELS), (4, 4)])
def test_several_labels_are_padded(tmp_path, length, padded):
    classes = tfds.features.ClassLabel(num_classes=20)
    features = {
        "image": tfds.features.Image(),
        "label": tfds.features.Sequence(classes, length=length),
    }

    def make(number):
        labels = [number] * (length or number % 4)
        return {"image": encoded(number), "label": labels}

    prepare(tmp_path, features, make)
    source = open_tfds("tiny_shapes", "train", str(tmp_path))
    assert source.num_classes == 20
    for index in range(COUNT):
        found = source[index]
        label = found["label"]
        assert label.shape == (padded,) and label.dtype == np.int32
        number = next(n for n in range(COUNT) if encoded(n) == found["image"])
        count = length or number % 4
        assert label.tolist() == [number] * count + [PADDING_LABEL] * (padded - count)


def test_the_label_may_go_by_another_name(tmp_path):
    features = {
        "image": tfds.features.Image(),
        "first": tfds.features.ClassLabel(num_classes=2),
        "second": tfds.features.ClassLabel(num_classes=COUNT),
    }

    def make(number):
        return {"image": encoded(number), "first": 0, "second": number}

    prepare(tmp_path, features, make, target="second")
    source = open_tfds("tiny_shapes", "train", str(tmp_path))
    assert source.num_classes == COUNT
    assert sorted(int(source[i]["label"]) for i in range(COUNT)) == list(range(COUNT))


def test_more_labels_than_there_is_room_for(tmp_path):
    features = {
        "image": tfds.features.Image(),
        "label": tfds.features.Sequence(tfds.features.ClassLabel(num_classes=20)),
    }
    prepare(tmp_path, features, lambda n: {"image": encoded(n), "label": [1] * 17})
    source = open_tfds("tiny_shapes", "train", str(tmp_path))
    with pytest.raises(UsageError, match=r"^tiny_shapes train\[3\] has 17 labels, .* at most 16$"):
        source[3]


def test_threads_read_the_same(folder):
    source = open_tfds("tiny_shapes", "train", folder)
    alone = [source[i]["image"] for i in range(COUNT)]
    fresh = open_tfds("tiny_shapes", "train", folder)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: fresh[i % COUNT]["image"], range(40 * COUNT)))
    assert together == alone * 40


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_another_process_can_be_given_it(folder, tmp_path, pickler):
    source = open_tfds("tiny_shapes", "train[5:]", folder)
    expected = source[4]["image"]  # its files are open when it is sent
    (tmp_path / "source").write_bytes(pickler.dumps(source))
    code = (
        "import pickle, sys; source = pickle.load(open(sys.argv[1], 'rb'));"
        "assert 'tensorflow' not in sys.modules;"
        "sys.stdout.buffer.write(source[4]['image'])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "source")]
    read = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    assert read == expected


@pytest.mark.parametrize(
    ("name", "split", "says"),
    [
        ("tiny_shapez", "train", r"^unknown TFDS data set 'tiny_shapez': .* not prepared in {0}"),
        ("oxford_iit_pet", "train", r"^unknown .* Did you mean oxford_iiit_pet\?$"),
        ("cifar100:9.*.*", "train", r"^cannot open .*'cifar100:9\.\*\.\*': .* only: 3.0.2.$"),
        ("sun397/tfdz", "train", r"^cannot open .*'sun397/tfdz': BuilderConfig tfdz not found"),
        ("tiny shapes", "train", r"^cannot open .*'tiny shapes': Parsing .* failed.$"),
        (
            "cifar100",
            "train",
            r"cifar100 is not prepared, there is none in {0}/cifar100/3.0.2 \(TFDS_DATA_DIR or "
            r"data_dir .*: tfds build cifar100 --file_format=array_record --data_dir={0}$",
        ),
        ("tiny_shapes", "tset", r"no split 'tset': .* Did you mean test\? Expected one of train"),
        ("tiny_shapes", "train[:90%", r"no split 'train\[:90%': .* Expected one of train, test"),
        ("tiny_shapes", "train[:11]", r"no split 'train\[:11\]': .* 10 examples"),
        ("tiny_shapes", "train[3:3]", r"^the split 'train\[3:3\]' of tiny_shapes is empty$"),
    ],
)
def test_mistakes_are_told_in_one_line(folder, name, split, says):
    with pytest.raises(UsageError, match=says.format(folder)) as error:
        open_tfds(name, split, folder)
    assert "\n" not in str(error.value)


def test_another_version_than_the_prepared_one(tmp_path):
    (tmp_path / "cifar100" / "3.0.1").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"There is cifar100:3\.0\.1\. Prepare it with"):
        open_tfds("cifar100", "train", str(tmp_path))


def as_tfrecords(folder):
    """Rewrites a prepared data set in the other format: the same examples, framed otherwise."""
    from array_record.python.array_record_module import ArrayRecordReader

    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    for path in folder.glob("*.array_record*"):
        reader = ArrayRecordReader(str(path))
        frames = b"".join(
            struct.pack("<Q4x", len(record)) + record + bytes(4) for record in reader.read_all()
        )
        reader.close()
        path.with_name(path.name.replace("array_record", "tfrecord")).write_bytes(frames)
        path.unlink()


def test_tfrecords_are_read_too(tmp_path, folder):
    prepare(tmp_path, tiny_features())
    as_tfrecords(tmp_path / "tiny_shapes" / "1.2.0")
    for split, count in (("train", COUNT), ("train[20%:50%]", 3)):
        expected = open_tfds("tiny_shapes", split, folder)
        found = pickle.loads(cloudpickle.dumps(open_tfds("tiny_shapes", split, str(tmp_path))))
        assert len(found) == len(expected) == count
        for index in range(count):
            assert found[index]["image"] == expected[index]["image"]
            assert found[index]["label"] == expected[index]["label"]
    assert "tensorflow" not in sys.modules


def test_a_tfrecord_that_is_cut_off_is_named(tmp_path):
    prepare(tmp_path, tiny_features())
    as_tfrecords(tmp_path / "tiny_shapes" / "1.2.0")
    file = next((tmp_path / "tiny_shapes" / "1.2.0").glob("*train.tfrecord*"))
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(UsageError, match=r"tfrecord-\S+ is cut off or no tfrecord file"):
        open_tfds("tiny_shapes", "train", str(tmp_path))


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (lambda f: {"label": f.ClassLabel(num_classes=9)}, "found none among its features label$"),
        (
            lambda f: {"a": f.Image(), "b": f.Image(), "label": f.ClassLabel(num_classes=9)},
            r"found several \(a, b\) among its features a, b, label$",
        ),
        (lambda f: {"image": f.Image(), "kind": f.ClassLabel(num_classes=9)}, "are: kind$"),
        (lambda f: {"image": f.Image(), "label": f.Text()}, "are: none$"),
    ],
)
def test_data_sets_that_are_no_labelled_images(tmp_path, features, says):
    features = features(tfds.features)

    def make(number):
        kinds = {tfds.features.Image: encoded(number), tfds.features.Text: "a"}
        return {key: kinds.get(type(feature), 1) for key, feature in features.items()}

    prepare(tmp_path, features, make)
    with pytest.raises(UsageError, match=says):
        open_tfds("tiny_shapes", "train", str(tmp_path))


@pytest.mark.parametrize("missing", ["tensorflow_datasets", "array_record"])
def test_the_extra_is_not_installed(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=rf"\({missing}\): pip install 'vit_jax\[tfds\]'$"):
        open_tfds("cifar100", "train")


def test_importing_the_module_does_not_import_tfds():
    code = f"import sys, {tfds_source.__name__}; assert 'tensorflow_datasets' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
