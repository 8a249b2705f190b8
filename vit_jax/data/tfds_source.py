"""Any TensorFlow data set (TFDS) that is prepared on disk, read without TensorFlow.

The images come as the bytes that were stored.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from vit_jax.data.source import PADDING_LABEL, Example, check_index
from vit_jax.data.tfrecord import Tfrecords, find_records
from vit_jax.errors import UsageError, closest

Features = Mapping[str, Any]

# Of a label sequence of open length: the examples of a batch need one length.
MOST_LABELS = 16

_FILE_NAMES = ("file_name", "filename", "image/file_name")


def open_tfds(name: str, split: str, data_dir: str | None = None) -> "TfdsSource":
    """`name` and `split` as TFDS spells them: "sun397/tfds", "cifar100:3.*.*"; "train[:90%]"."""
    return TfdsSource(name, split, data_dir=data_dir)


def split_names(name: str, data_dir: str | None = None) -> tuple[str, ...]:
    """The splits that a prepared data set has."""
    return tuple(_prepared(_tfds(), name, data_dir).info.splits)


class TfdsSource:
    """One split of a prepared data set.

    The image is the feature "image" or the only one there is, the label "label" or what the data
    set calls its target. `image_of` and `label_of` make them from all features of an example
    instead; images are bytes there too, and `label_of` needs the `class_names`.
    """

    def __init__(
        self,
        name: str,
        split: str,
        *,
        data_dir: str | None = None,
        label_of: Callable[[Features], int] | None = None,
        image_of: Callable[[Features], np.ndarray | bytes] | None = None,
        class_names: Sequence[str] | None = None,
    ):
        tfds = _tfds()
        builder = _prepared(tfds, name, data_dir)
        features = _features(tfds, builder.info)
        self.name = name
        self.split = split
        self._image_of = image_of or _ImageOf(_image_key(tfds, name, features))
        if label_of is None:
            key = _label_key(tfds, name, features, builder.info.supervised_keys)
            names = _classes(tfds, features[key]).names
            self._label_of = _LabelOf(key, _length(tfds, features[key]))
        elif class_names is None:
            raise TypeError("label_of needs class_names: nothing else says how many there are")
        else:
            names, self._label_of = class_names, label_of
        self.class_names = tuple(names if class_names is None else class_names)
        self._records = _records(tfds, name, builder, split)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Example:
        check_index(self, index)
        features = self._records[index]
        try:
            label = self._label_of(features)
        except _TooManyLabels as error:
            raise UsageError(f"{self.where(index)} has {error}") from error
        return Example(image=self._image_of(features), label=np.array(label, np.int32))

    def where(self, index: int) -> str:
        return f"{self.name} {self.split}[{index}]"

    def file_name(self, index: int) -> str:
        """What the image's file was called before it was stored here, or '' where nobody knows."""
        check_index(self, index)
        features = self._records[index]
        found = next((features[key] for key in _FILE_NAMES if key in features), b"")
        return found.decode() if isinstance(found, bytes) else str(found)


class _TooManyLabels(Exception):
    pass


# Classes and not closures, so that sources can be sent to worker processes by any pickle.


class _ImageOf:
    def __init__(self, key: str):
        self._key = key

    def __call__(self, features: Features) -> np.ndarray | bytes:
        image = features[self._key]
        is_grey = not isinstance(image, bytes) and image.shape[-1] == 1
        return np.repeat(image, 3, axis=-1) if is_grey else image


class _LabelOf:
    def __init__(self, key: str, length: int | None):
        self._key = key
        self._length = length  # None: one label

    def __call__(self, features: Features) -> int | np.ndarray:
        found = features[self._key]
        if self._length is None:
            return found
        if len(found) > self._length:
            raise _TooManyLabels(f"{len(found)} labels, expected at most {self._length}")
        return np.array([*found, *[PADDING_LABEL] * (self._length - len(found))], np.int32)


@dataclasses.dataclass(frozen=True)
class _FromTfrecords:
    """What TFDS' own reader of tfrecords needs TensorFlow for. Each start goes through all files
    once; `vit-jax prepare` spares that."""

    records: Tfrecords
    features: Any
    decoders: dict[str, Any]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Features:
        return self.features.deserialize_example_np(self.records[index], decoders=self.decoders)


def _tfds() -> ModuleType:
    """An optional extra, and a slow import: only those who read TFDS pay for it."""
    try:
        importlib.import_module("array_record")
        return importlib.import_module("tensorflow_datasets")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"TFDS data sets need a package that is not there ({error.name}):"
            " pip install 'vit_jax[tfds]'"
        ) from error


def _prepared(tfds: ModuleType, name: str, data_dir: str | None) -> Any:
    """The builder of a data set that is there and can be read."""
    builder = _builder(tfds, name, data_dir)
    folder = builder.data_path
    if not folder.exists() or not builder.info.splits:
        raise UsageError(
            f"the TFDS data set {name} is not prepared, there is none in {folder}"
            f" (TFDS_DATA_DIR or data_dir chooses another place).{_other_versions(folder, name)}"
            f" Prepare it with: tfds build {name} --file_format=array_record"
            + (f" --data_dir={data_dir}" if data_dir else "")
        )
    formats = {fmt.value for fmt in builder.info.available_file_formats()}
    if not formats & {"array_record", "tfrecord"}:
        raise UsageError(
            f"the TFDS data set {name} in {folder} is prepared as {', '.join(sorted(formats))},"
            f" expected array_record or tfrecord: tfds build {name} --file_format=array_record"
        )
    return builder


def _builder(tfds: ModuleType, name: str, data_dir: str | None) -> Any:
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        base = _base(name).partition("/")[0]
        # Without the community's, which would be asked for over the network.
        known = tfds.list_builders(with_community_datasets=False)
        where = data_dir or tfds.core.constants.DATA_DIR
        raise UsageError(
            f"unknown TFDS data set {base!r}: not in the catalogue, not prepared in {where}"
            f" (TFDS_DATA_DIR or data_dir chooses another place).{closest(base, known)}"
        ) from error
    # A wrong version, configuration or spelling, or a builder whose code needs a missing package.
    except (ValueError, AssertionError, ImportError) as error:
        raise UsageError(f"cannot open the TFDS data set {name!r}: {_reason(error)}") from error


def _base(name: str) -> str:
    return name.partition(":")[0]


def _other_versions(folder: Any, name: str) -> str:
    """TFDS opens no other version than its own unless it is asked for by number."""
    siblings = folder.parent.iterdir() if folder.parent.exists() else ()
    found = sorted(p.name for p in siblings if p.name[:1].isdigit() and p.is_dir())
    return f" There is {_base(name)}:{found[-1]}." if found else ""


def _reason(error: Exception) -> str:
    """The first line of what TFDS says, without what it was doing and without its lists."""
    first = (str(error).strip() or repr(error)).splitlines()[0]
    return first.rpartition('": ')[2].partition(" Here are")[0].partition(" Should be")[0].strip()


def _features(tfds: ModuleType, info: Any) -> Features:
    is_dict = isinstance(info.features, tfds.features.FeaturesDict)
    return dict(sorted(info.features.items())) if is_dict else {}


def _image_key(tfds: ModuleType, name: str, features: Features) -> str:
    images = [key for key, feature in features.items() if _is_image(tfds, feature)]
    if "image" in images:
        return "image"
    if len(images) == 1:
        return images[0]
    found = f"several ({', '.join(images)})" if images else "none"
    raise UsageError(
        f"the TFDS data set {name} cannot be used: expected one image of 8 bits per example, found"
        f" {found} among its features {', '.join(features)}"
    )


def _is_image(tfds: ModuleType, feature: Any) -> bool:
    """Encoded, or stored as it is: [height, width, 1 or 3]."""
    if isinstance(feature, tfds.features.Image):
        return feature.np_dtype == np.uint8
    is_array = type(feature) is tfds.features.Tensor and feature.np_dtype == np.uint8
    return is_array and len(feature.shape) == 3 and feature.shape[-1] in (1, 3)


def _label_key(
    tfds: ModuleType, name: str, features: Features, supervised: tuple[str, ...] | None
) -> str:
    labels = [key for key, feature in features.items() if _classes(tfds, feature)]
    for key in ("label", *(supervised or ())[1:]):
        if key in labels:
            return key
    raise UsageError(
        f"the TFDS data set {name} has no feature 'label' of classes; those of classes are:"
        f" {', '.join(labels) or 'none'}"
    )


def _classes(tfds: ModuleType, feature: Any) -> Any | None:
    """The ClassLabel of one label or of a sequence of them."""
    inner = feature.feature if isinstance(feature, tfds.features.Sequence) else feature
    return inner if isinstance(inner, tfds.features.ClassLabel) else None


def _length(tfds: ModuleType, feature: Any) -> int | None:
    if not isinstance(feature, tfds.features.Sequence):
        return None
    return feature.shape[0] or MOST_LABELS


def _records(tfds: ModuleType, name: str, builder: Any, split: str) -> Sequence[Features]:
    info = builder.info
    try:
        count = info.splits[split].num_examples
    except (ValueError, KeyError, NotImplementedError) as error:
        hint = "" if "[" in split else closest(split, info.splits)
        raise UsageError(
            f"{name} has no split {split!r}: {_reason(error)}{hint}"
            f" Expected one of {', '.join(info.splits)}, or parts of them, train[:90%]"
        ) from error
    if not count:
        raise UsageError(f"the split {split!r} of {name} is empty")
    # Of all images, also those that are not asked for: decoding a mask takes as long.
    decoders = {
        key: tfds.decode.SkipDecoding()
        for key, feature in _features(tfds, info).items()
        if isinstance(feature, tfds.features.Image)
    }
    if info.file_format.value == "tfrecord":
        parts = [(str(f.filename), f.skip, f.take) for f in info.splits[split].file_instructions]
        return _FromTfrecords(find_records(parts), info.features, decoders)
    return builder.as_data_source(split, decoders=decoders)
