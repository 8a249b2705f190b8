"""Where a classifier is wrong: which classes it confuses, and the mistakes it is surest of."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.data.compose import Subset
from vit_jax.data.crop import fit_for_evaluation
from vit_jax.data.source import Source, some_label
from vit_jax.errors import UsageError
from vit_jax.evaluate.classification import Classification, check_classes
from vit_jax.insight import figures
from vit_jax.insight.pictures import Picture
from vit_jax.models.heads import Classifier

_MOST_IMAGES = 2048  # enough to see what goes wrong
_MOST_CLASSES = 20  # in a matrix that can be read
_WORST = 10
_GALLERY = 24


class Answers(NamedTuple):
    """Of each image."""

    label: np.ndarray
    answer: np.ndarray
    confidence: np.ndarray


def mistakes(
    model: Classifier, source: Source, *, crop: str = "resize", class_names: tuple[str, ...] = ()
) -> Iterator[Picture]:
    """The confusion matrix, the worst classes, and a gallery."""
    check_classes(source, model.config.num_classes, class_names)
    if some_label(source).ndim:
        raise UsageError(f"the images of {source.name} have several labels: no class is mistaken")
    numbers = np.linspace(0, len(source) - 1, min(len(source), _MOST_IMAGES)).astype(int)
    sample = Subset(source, numbers)
    found = answers(model, sample, crop)
    # Of all classes there may be many thousands.
    classes = np.unique([found.label, found.answer])
    matrix = np.zeros((len(classes),) * 2, np.int32)
    np.add.at(matrix, tuple(np.searchsorted(classes, part) for part in found[:2]), 1)
    names = [source.class_names[k] for k in classes]
    wrong = int((found.label != found.answer).sum())
    among = f"{len(found.label):,} of {len(source):,} images" if len(sample) < len(source) else (
        f"{len(source):,} images"
    )  # fmt: skip
    yield _confusion(matrix, names, f"{wrong:,} mistakes on {among} of {source.name}")
    yield _worst_classes(matrix, names)
    yield _gallery(found, sample, model.config.image_size, crop)


def answers(model: Classifier, source: Source, crop: str) -> Answers:
    """Of all images of a source, in its order."""
    parts = []
    for found, _, _, mask in Classification(source, crop=crop).answers(model):
        keys = ("label", "best", "confidence")
        parts.append([np.asarray(found[key])[mask > 0] for key in keys])
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _confusion(matrix: np.ndarray, names: Sequence[str], what: str) -> Picture:
    off = matrix - np.diag(matrix.diagonal())
    chosen = np.argsort(-(off.sum(axis=0) + off.sum(axis=1)), kind="stable")[:_MOST_CLASSES]
    chosen = np.sort(chosen)
    part = ""
    if len(chosen) < len(matrix):
        part = f" Shown are the {len(chosen)} of {len(matrix):,} classes with the most mistakes."
    return Picture(
        "confusion",
        "Confusion matrix",
        f"{what}: how often each class was taken for which.{part}",
        figures.confusion(
            matrix[np.ix_(chosen, chosen)],
            [names[k] for k in chosen],
            matrix.sum(axis=1)[chosen],
        ),
    )


def _worst_classes(matrix: np.ndarray, names: Sequence[str]) -> Picture:
    images = matrix.sum(axis=1)
    recall = matrix.diagonal() / np.maximum(images, 1)
    there = np.flatnonzero(images)
    order = there[np.lexsort((-images[there], recall[there]))][:_WORST]
    off = matrix - np.diag(matrix.diagonal())
    rows = []
    for k in order:
        other = off[k].argmax()
        taken = f"taken for {names[other]}" if off[k, other] else ""
        rows.append((f"{names[k]} ({images[k]})", float(recall[k]), taken))
    return Picture(
        "worst_classes",
        "Worst classes",
        "Share of a class's images that were recognised, with their number, and what they were "
        "most often taken for.",
        figures.bars(rows),
    )


def _gallery(found: Answers, source: Source, size: tuple[int, int], crop: str) -> Picture:
    name, title = "mistakes", "Most confident mistakes"
    wrong = np.flatnonzero(found.label != found.answer)
    if not len(wrong):
        return Picture(name, title, "There are none: every image was recognised.")
    surest = wrong[np.argsort(-found.confidence[wrong], kind="stable")][:_GALLERY]
    images = [fit_for_evaluation(source[int(k)]["image"], size, crop) for k in surest]
    titles = [
        f"{found.confidence[k]:.0%} {source.class_names[found.answer[k]]}\n"
        f"is {source.class_names[found.label[k]]}"
        for k in surest
    ]
    text = "How sure the network is, of what, and what it is."
    return Picture(name, title, text, figures.grid(np.stack(images), titles))
