"""TFDS data sets as if they were prepared: their real features, made up examples, no TensorFlow."""

import contextlib

import cv2
import numpy as np
import pytest

from vit_jax.data.decode import pixels

tfds = pytest.importorskip("tensorflow_datasets")

# How many examples the published data sets have.
SIZES = {
    "caltech101": {"train": 3059, "test": 6085},
    "cifar100": {"train": 50_000, "test": 10_000},
    "dtd": {"train": 1880, "validation": 1880, "test": 1880},
    "oxford_flowers102": {"train": 1020, "validation": 1020, "test": 6149},
    "oxford_iiit_pet": {"train": 3680, "test": 3669},
    "sun397": {"train": 76_128, "validation": 10_875, "test": 21_750},
    "svhn_cropped": {"train": 73_257, "test": 26_032, "extra": 531_131},
    "patch_camelyon": {"train": 262_144, "validation": 32_768, "test": 32_768},
    "eurosat": {"train": 27_000},
    "resisc45": {"train": 31_500},
    "diabetic_retinopathy_detection": {"train": 35_126, "validation": 10_906, "test": 42_670},
    "clevr": {"train": 70_000, "validation": 15_000, "test": 15_000},
    "dmlab": {"train": 65_550, "validation": 22_628, "test": 22_735},
    "dsprites": {"train": 737_280},
    "kitti": {"train": 6347, "validation": 423, "test": 711},
    "smallnorb": {"train": 24_300, "test": 24_300},
}

_SPLIT_NAMES = ("train", "validation", "test", "extra")
_BITS = np.arange(32)


@contextlib.contextmanager
def mocked_tfds(folder):
    """Reads examples of the data sets that pretend to be prepared in `folder`."""

    def as_data_source(builder, split, *, decoders):
        return Fakes(builder, split, decoders)

    policy = tfds.testing.MockPolicy.USE_FILES
    with tfds.testing.mock_data(
        policy=policy, data_dir=str(folder), as_data_source_fn=as_data_source
    ):
        yield


def pretend_to_be_prepared(name, folder, sizes=None):
    builder = tfds.builder(name, data_dir=folder, file_format="array_record")
    template = tfds.core.ShardedFileTemplate(
        dataset_name=builder.name, data_dir=builder.data_path, filetype_suffix="array_record"
    )
    splits = [
        tfds.core.SplitInfo(
            name=split, shard_lengths=[count], num_bytes=1, filename_template=template
        )
        for split, count in (sizes or SIZES[builder.name]).items()
    ]
    builder.info.set_splits(tfds.core.splits.SplitDict(splits))
    builder.data_path.mkdir(parents=True)
    builder.info.write_to_directory(builder.data_path)


def stamp(split, number):
    """A row of grey pixels, 0 or 1 as dSprites has them, that says which example this is."""
    bits = (_SPLIT_NAMES.index(split) << 24 | number) >> _BITS & 1
    return cv2.imencode(".png", bits.astype(np.uint8)[None])[1].tobytes()


def read_stamp(image):
    value = int(((pixels(image)[0, :, 0] > 0) << _BITS).sum())
    return _SPLIT_NAMES[value >> 24], value & 0xFFFFFF


def made_up(feature, rng):
    """Any value that such a feature may have. TFDS's own would be encoded by TensorFlow."""
    features = tfds.features
    if isinstance(feature, features.ClassLabel):
        return int(rng.integers(feature.num_classes))
    if isinstance(feature, features.Text):
        return "a"
    if isinstance(feature, features.BBoxFeature):
        return features.BBox(0.1, 0.2, 0.3, 0.4)
    if isinstance(feature, features.Sequence):
        inner = feature.feature  # of clevr's and kitti's objects, as many as clevr has
        return [
            {key: made_up(part, rng) for key, part in inner.items()}
            for _ in range(rng.integers(3, 11))
        ]
    return (rng.random(feature.shape) * 30).astype(feature.np_dtype)


class Fakes:
    """Examples that went through TFDS's own writing and reading."""

    def __init__(self, builder, split, decoders):
        self._features = builder.info.features
        self._decoders = decoders
        (part,) = builder.info.splits[split].file_instructions
        self._split = next(name for name in _SPLIT_NAMES if f"-{name}." in part.filename)
        self._skip, self._length = part.skip, part.take

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        number = self._skip + index
        rng = np.random.default_rng(number)
        example = {
            key: stamp(self._split, number)
            if isinstance(feature, tfds.features.Image)
            else made_up(feature, rng)
            for key, feature in self._features.items()
        }
        record = self._features.serialize_example(example)
        return self._features.deserialize_example_np(record, decoders=self._decoders)
