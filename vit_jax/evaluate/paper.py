"""The paper's results (arXiv 2010.11929), table by table, for ours to stand beside.

Accuracies in percent, after fine-tuning unless the table says few-shot. Networks are called as in
models/variants.py; the competitors that this package does not have are left out.
"""

import re
from typing import NamedTuple

IMAGENET, IMAGENET_21K, JFT = "ImageNet", "ImageNet-21k", "JFT-300M"
PRETRAINING = (IMAGENET, IMAGENET_21K, JFT)

_COLUMNS = ("imagenet", "imagenet_real", "cifar10", "cifar100", "pets", "flowers102")


class Figure(NamedTuple):
    """One number of the paper, and where it stands."""

    table: str
    model: str
    pretraining: str
    data: str
    percent: float
    deviation: float | None = None  # over three fine-tuning runs
    epochs: int | None = None  # of pre-training, where a table has several


# Mean and deviation of three runs: L/16 and H/14 at 512 and 518 px with Polyak averaging on
# ImageNet, at 384 px elsewhere.
TABLE_2: dict[tuple[str, str], dict[str, tuple[float, float | None]]] = {
    ("H/14", JFT): {
        "imagenet": (88.55, 0.04), "imagenet_real": (90.72, 0.05), "cifar10": (99.50, 0.06),
        "cifar100": (94.55, 0.04), "pets": (97.56, 0.03), "flowers102": (99.68, 0.02),
        "vtab": (77.63, 0.23),
    },
    ("L/16", JFT): {
        "imagenet": (87.76, 0.03), "imagenet_real": (90.54, 0.03), "cifar10": (99.42, 0.03),
        "cifar100": (93.90, 0.05), "pets": (97.32, 0.11), "flowers102": (99.74, 0.00),
        "vtab": (76.28, 0.46),
    },
    ("L/16", IMAGENET_21K): {
        "imagenet": (85.30, 0.02), "imagenet_real": (88.62, 0.05), "cifar10": (99.15, 0.03),
        "cifar100": (93.25, 0.05), "pets": (94.67, 0.15), "flowers102": (99.61, 0.02),
        "vtab": (72.72, 0.21),
    },
    ("BiT-R152x4", JFT): {
        "imagenet": (87.54, 0.02), "imagenet_real": (90.54, None), "cifar10": (99.37, 0.06),
        "cifar100": (93.51, 0.08), "pets": (96.62, 0.23), "flowers102": (99.63, 0.03),
        "vtab": (76.29, 1.70),
    },
}  # fmt: skip

# All at 384 px, without averaging. H/14 was not pre-trained on ImageNet.
TABLE_5_MODELS = ("B/16", "B/32", "L/16", "L/32", "H/14")
TABLE_5: dict[str, dict[str, tuple[float, ...]]] = {
    IMAGENET: {
        "cifar10": (98.13, 97.77, 97.86, 97.94),
        "cifar100": (87.13, 86.31, 86.35, 87.07),
        "imagenet": (77.91, 73.38, 76.53, 71.16),
        "imagenet_real": (83.57, 79.56, 82.19, 77.83),
        "flowers102": (89.49, 85.43, 89.66, 86.36),
        "pets": (93.81, 92.04, 93.64, 91.35),
    },
    IMAGENET_21K: {
        "cifar10": (98.95, 98.79, 99.16, 99.13, 99.27),
        "cifar100": (91.67, 91.97, 93.44, 93.04, 93.82),
        "imagenet": (83.97, 81.28, 85.15, 80.99, 85.13),
        "imagenet_real": (88.35, 86.63, 88.40, 85.65, 88.70),
        "flowers102": (99.38, 99.11, 99.61, 99.19, 99.51),
        "pets": (94.43, 93.02, 94.73, 93.09, 94.82),
    },
    JFT: {
        "cifar10": (99.00, 98.61, 99.38, 99.19, 99.50),
        "cifar100": (91.87, 90.49, 94.04, 92.52, 94.55),
        "imagenet": (84.15, 80.73, 87.12, 84.37, 88.04),
        "imagenet_real": (88.85, 86.27, 89.99, 88.28, 90.33),
        "flowers102": (99.56, 99.27, 99.56, 99.45, 99.68),
        "pets": (95.80, 93.40, 97.11, 95.83, 97.56),
    },
}

# Pre-trained on JFT-300M, 384 px: model, epochs, then the columns above.
TABLE_6: tuple[tuple[str, int, tuple[float, ...]], ...] = (
    ("B/32", 7, (80.73, 86.27, 98.61, 90.49, 93.40, 99.27)),
    ("B/16", 7, (84.15, 88.85, 99.00, 91.87, 95.80, 99.56)),
    ("L/32", 7, (84.37, 88.28, 99.19, 92.52, 95.83, 99.45)),
    ("L/16", 7, (86.30, 89.43, 99.38, 93.46, 96.81, 99.66)),
    ("L/16", 14, (87.12, 89.99, 99.38, 94.04, 97.11, 99.56)),
    ("H/14", 14, (88.08, 90.36, 99.50, 94.71, 97.11, 99.71)),
    ("BiT-R50x1", 7, (77.54, 84.56, 97.67, 86.07, 91.11, 94.26)),
    ("BiT-R50x2", 7, (82.12, 87.94, 98.29, 89.20, 93.43, 97.02)),
    ("BiT-R101x1", 7, (80.67, 87.07, 98.48, 89.17, 94.08, 95.95)),
    ("BiT-R152x1", 7, (81.88, 87.96, 98.82, 90.22, 94.17, 96.94)),
    ("BiT-R152x2", 7, (84.97, 89.69, 99.06, 92.05, 95.37, 98.62)),
    ("BiT-R152x2", 14, (85.56, 89.89, 99.24, 91.92, 95.75, 98.75)),
    ("BiT-R200x3", 14, (87.22, 90.15, 99.34, 93.53, 96.32, 99.04)),
    ("R50+B/32", 7, (84.90, 89.15, 99.01, 92.24, 95.75, 99.46)),
    ("R50+B/16", 7, (85.58, 89.65, 99.14, 92.63, 96.65, 99.40)),
    ("R50+L/32", 7, (85.68, 89.04, 99.24, 92.93, 96.97, 99.43)),
    ("R50+L/16", 7, (86.60, 89.72, 99.18, 93.64, 97.03, 99.40)),
    ("R50+L/16", 14, (87.12, 89.76, 99.31, 93.89, 97.36, 99.11)),
)

# VTAB-1k by task, in the order of data/vtab.py, and the mean that the paper prints.
TABLE_9_TASKS = (
    "caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn",
    "camelyon", "eurosat", "resisc45", "retinopathy",
    "clevr_count", "clevr_distance", "dmlab", "dsprites_position", "dsprites_orientation",
    "kitti_distance", "smallnorb_azimuth", "smallnorb_elevation",
)  # fmt: skip
TABLE_9: dict[tuple[str, str], tuple[float, ...]] = {
    ("H/14", JFT): (
        95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6,
        91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2,
    ),
    ("L/16", JFT): (
        95.4, 81.9, 74.3, 99.7, 96.7, 63.5, 87.4, 83.6, 96.5, 89.7, 77.1,
        86.4, 63.1, 49.7, 74.5, 60.5, 82.2, 36.2, 51.1,
    ),
    ("L/16", IMAGENET_21K): (
        90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9, 82.5, 95.6, 85.2, 75.3,
        70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7,
    ),
}  # fmt: skip
TABLE_9_MEAN = {("H/14", JFT): 77.6, ("L/16", JFT): 76.3, ("L/16", IMAGENET_21K): 72.7}

# VTAB-1k by group, read off the figure.
FIGURE_2: dict[str, dict[str, float]] = {
    "H/14": {"all": 77.6, "natural": 86.7, "specialized": 87.0, "structured": 65.0},
    "BiT-R152x4": {"all": 76.2, "natural": 85.5, "specialized": 86.9, "structured": 62.7},
}

# 5-shot on ImageNet after pre-training on so many million images of JFT, read off the figure.
FIGURE_4_MILLIONS = (9, 30, 90, 300)
FIGURE_4: dict[str, tuple[float, ...]] = {
    "L/16": (41.9, 57.8, 70.0, 71.6),
    "L/32": (36.2, 53.6, 64.0, 65.4),
    "B/32": (38.0, 52.9, 54.7, 55.2),
    "BiT-R50x1": (47.8, 50.8, 51.9, 52.0),
    "BiT-R152x2": (52.7, 66.9, 68.9, 69.3),
}

# 5-shot on ImageNet after 7 epochs of JFT-300M, read off the figure.
FIGURE_13: dict[str, float] = {
    "Axial-B/16": 65.8, "B/16": 63.5, "Axial-B/32": 58.2, "B/32": 56.4, "AxialResNet50": 55.3,
    "BiT-R50x1": 49.5,
}  # fmt: skip

CLASSES = {"imagenet": 1000, "cifar10": 10, "cifar100": 100, "pets": 37, "flowers102": 102}
# How data sets are called elsewhere, without case and punctuation.
_SPELLINGS = {
    "imagenet2012": "imagenet", "imagenet1k": "imagenet", "ilsvrc2012": "imagenet",
    "oxfordiiitpet": "pets", "oxfordpets": "pets",
    "flowers": "flowers102", "oxfordflowers102": "flowers102",
}  # fmt: skip


def fine_tuned(model: str, data: str) -> list[Figure]:
    """What the paper has for a network on a data set, vtab:TASK among them; maybe nothing."""
    found = [
        Figure("Table 2", model, pretraining, data, *row[data])
        for (name, pretraining), row in TABLE_2.items()
        if name == model and data in row
    ]
    found += [
        Figure("Table 5", model, pretraining, data, percent)
        for pretraining, rows in TABLE_5.items()
        for name, percent in zip(TABLE_5_MODELS, rows.get(data, ()), strict=False)
        if name == model
    ]
    found += [
        Figure("Table 6", model, JFT, data, row[_COLUMNS.index(data)], epochs=epochs)
        for name, epochs, row in TABLE_6
        if name == model and data in _COLUMNS
    ]
    task = data.removeprefix("vtab:") if data.startswith("vtab:") else None
    found += [
        Figure("Table 9", model, pretraining, data, row[TABLE_9_TASKS.index(task)])
        for (name, pretraining), row in TABLE_9.items()
        if name == model and task in TABLE_9_TASKS
    ]
    return found


def five_shot(model: str, data: str) -> list[Figure]:
    """The same for 5-shot accuracy of frozen features."""
    if data != "imagenet":
        return []
    found = [Figure("Fig. 4", model, JFT, data, FIGURE_4[model][-1])] if model in FIGURE_4 else []
    if model in FIGURE_13:
        found.append(Figure("Fig. 13", model, JFT, data, FIGURE_13[model], epochs=7))
    return found


def data_set(name: str, num_classes: int | None = None) -> str | None:
    """Which of the paper's data sets `name` is: vtab:TASK, tfds:NAME, or a folder called like one.

    A name may mislead (there are flowers of five classes), so their number must agree, if known.
    """
    if name.startswith("vtab:"):
        return name
    last = name.removeprefix("tfds:").rstrip("/").rpartition("/")[2].partition(":")[0]
    plain = re.sub(r"[^a-z0-9]", "", last.lower())
    known = _SPELLINGS.get(plain, plain)
    return known if known in CLASSES and num_classes in (CLASSES[known], None) else None
