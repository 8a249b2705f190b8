"""VTAB-1k: nineteen tasks of a thousand training images each (Zhai et al., 2019).

The data sets are TFDS's. What a task is made of stands in one table, and nothing else knows it.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from vit_jax.data.decode import pixels
from vit_jax.data.source import Example, Source, check_index, where
from vit_jax.data.tfds_source import Features, TfdsSource
from vit_jax.errors import UsageError, closest

SPLITS = ("train800", "val200", "train800val200", "test")

Group = Literal["natural", "specialized", "structured"]
Augmentation = Literal["flip", "crop"]


@dataclasses.dataclass(frozen=True)
class Task:
    """`train`, `val` and `test` are the portions that the thousand images are taken from, as TFDS
    spells them. `spoiled_by`: what may not be done to the images, because the label would no
    longer be true."""

    name: str
    group: Group
    builder: str
    train: str
    val: str
    test: str
    num_classes: int
    label_of: Callable[[Features], int] | None = None  # None: the feature "label"
    image_of: Callable[[Features], np.ndarray] | None = None
    spoiled_by: tuple[Augmentation, ...] = ()


def open_vtab(task: str, split: str, data_dir: str | None = None) -> Source:
    """train800: the first 800 of the train portion. val200: the first 200 of the val portion.
    train800val200: both, for the final number. test: all of it."""
    chosen = find_task(task)
    if split not in SPLITS:
        raise UsageError(
            f"unknown split {split!r} of the VTAB task {task}.{closest(split, SPLITS)}"
            f" Expected one of {', '.join(SPLITS)}."
        )
    first800, first200 = (chosen.train, 800), (chosen.val, 200)
    parts = {
        "train800": [first800],
        "val200": [first200],
        "train800val200": [first800, first200],
        "test": [(chosen.test, None)],
    }[split]
    names = [str(label) for label in range(chosen.num_classes)] if chosen.label_of else None

    def portion(expression: str) -> TfdsSource:
        return TfdsSource(
            chosen.builder,
            expression,
            data_dir=data_dir,
            label_of=chosen.label_of,
            image_of=chosen.image_of,
            class_names=names,
        )

    return _Firsts(f"vtab:{task}", [(portion(part), count) for part, count in parts])


def find_task(name: str) -> Task:
    """The task of that name."""
    if name not in TASKS:
        raise UsageError(
            f"unknown VTAB task {name!r}.{closest(name, TASKS)} Expected one of {', '.join(TASKS)}."
        )
    return TASKS[name]


class _Firsts:
    """The first so many examples of each source, or all (None), one source after the other.

    TFDS cannot say it: in "train[90%:200]" the 200 are percent, too.
    """

    def __init__(self, name: str, parts: Sequence[tuple[TfdsSource, int | None]]):
        self.name = name
        self.class_names = parts[0][0].class_names
        self._sources = [source for source, _ in parts]
        counts = [len(source) if count is None else count for source, count in parts]
        self._ends = list(itertools.accumulate(counts))
        for source, count in zip(self._sources, counts, strict=True):
            if len(source) < count:
                raise UsageError(
                    f"{source.name} has {len(source)} examples in {source.split}, expected at least"
                    f" {count}: prepare all of it"
                )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Example:
        source, index = self._find(index)
        return source[index]

    def where(self, index: int) -> str:
        return where(*self._find(index))

    def _find(self, index: int) -> tuple[TfdsSource, int]:
        check_index(self, index)
        part = bisect.bisect_right(self._ends, index)
        start = self._ends[part - 1] if part else 0
        return self._sources[part], index - start


def _clevr_count(features: Features) -> int:
    return len(features["objects"]["size"]) - 3  # scenes have three to ten objects


def _clevr_distance(features: Features) -> int:
    depths = [place[2] for place in features["objects"]["pixel_coords"]]
    return _bin(min(depths), (0, 8, 8.5, 9, 9.5, 10, 100))


def _dsprites_position(features: Features) -> int:
    return features["label_x_position"] // 2  # 32 -> 16


def _dsprites_orientation(features: Features) -> int:
    return features["label_orientation"] * 2 // 5  # 40 -> 16


def _dsprites_image(features: Features) -> np.ndarray:
    return pixels(features["image"]) * np.uint8(255)  # stored as 0 and 1


def _kitti_distance(features: Features) -> int:
    objects = features["objects"]
    # Car, van and truck are the first three types. The last bin is for no vehicle at all.
    pairs = zip(objects["type"], objects["location"], strict=True)
    return _bin(min((place[2] for kind, place in pairs if kind < 3), default=1000), _KITTI_BINS)


_KITTI_BINS = (-100, 8, 20, 999)


def _smallnorb_azimuth(features: Features) -> int:
    return features["label_azimuth"]


def _smallnorb_elevation(features: Features) -> int:
    return features["label_elevation"]


def _bin(value: float, edges: Sequence[float]) -> int:
    """Which of (edge, next edge] it is in."""
    return int(np.searchsorted(edges, value, side="left")) - 1


_CLEVR = ("clevr:3.*.*", "train[:90%]", "train[90%:]", "validation")  # its test has no labels
_DSPRITES = ("dsprites:2.*.*", "train[:80%]", "train[80%:90%]", "train[90%:]")
_SMALLNORB = ("smallnorb:2.*.*", "train", "test[:50%]", "test[50%:]")
_NINE_TENTHS = ("train[:90%]", "train[90%:]", "test")
_THREE_FIFTHS = ("train[:60%]", "train[60%:80%]", "train[80%:]")
_AS_THEY_ARE = ("train", "validation", "test")

# A crop cuts objects off that are counted, and enlarges those whose distance is asked for.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("caltech101", "natural", "caltech101:3.*.*", *_NINE_TENTHS, 102),
        Task("cifar100", "natural", "cifar100:3.*.*", *_NINE_TENTHS, 100),
        Task("dtd", "natural", "dtd:3.*.*", *_AS_THEY_ARE, 47),
        Task("flowers102", "natural", "oxford_flowers102:2.*.*", *_AS_THEY_ARE, 102),
        # VTAB has 3.*.*, which TFDS no longer builds; 4 repairs broken files, the splits are as
        # they were.
        Task("pets", "natural", "oxford_iiit_pet:4.*.*", "train[:80%]", "train[80%:]", "test", 37),
        Task("sun397", "natural", "sun397/tfds:4.*.*", *_AS_THEY_ARE, 397),
        Task("svhn", "natural", "svhn_cropped:3.*.*", *_NINE_TENTHS, 10, spoiled_by=("flip",)),
        Task("camelyon", "specialized", "patch_camelyon:2.*.*", *_AS_THEY_ARE, 2),
        Task("eurosat", "specialized", "eurosat/rgb:2.*.*", *_THREE_FIFTHS, 10),
        Task("resisc45", "specialized", "resisc45:3.*.*", *_THREE_FIFTHS, 45),
        Task(
            "retinopathy",
            "specialized",
            "diabetic_retinopathy_detection/btgraham-300:3.*.*",
            *_AS_THEY_ARE,
            5,
        ),
        Task("clevr_count", "structured", *_CLEVR, 8, _clevr_count, spoiled_by=("crop",)),
        Task("clevr_distance", "structured", *_CLEVR, 6, _clevr_distance, spoiled_by=("crop",)),
        Task("dmlab", "structured", "dmlab:2.0.1", *_AS_THEY_ARE, 6, spoiled_by=("crop",)),
        Task(
            "dsprites_position",
            "structured",
            *_DSPRITES,
            16,
            _dsprites_position,
            _dsprites_image,
            spoiled_by=("flip", "crop"),
        ),
        Task(
            "dsprites_orientation",
            "structured",
            *_DSPRITES,
            16,
            _dsprites_orientation,
            _dsprites_image,
            spoiled_by=("flip", "crop"),
        ),
        Task(
            "kitti_distance",
            "structured",
            "kitti:3.1.0",
            *_AS_THEY_ARE,
            4,
            _kitti_distance,
            spoiled_by=("crop",),
        ),
        Task(
            "smallnorb_azimuth",
            "structured",
            *_SMALLNORB,
            18,
            _smallnorb_azimuth,
            spoiled_by=("flip", "crop"),
        ),
        Task(
            "smallnorb_elevation",
            "structured",
            *_SMALLNORB,
            9,
            _smallnorb_elevation,
            spoiled_by=("crop",),
        ),
    )
}
