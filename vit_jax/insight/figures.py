"""Pictures as PNG bytes, drawn by matplotlib without a screen."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.data.crop import fit_for_evaluation
from vit_jax.data.source import Source

Records = Sequence[Mapping[str, float]]


def curves(runs: Mapping[str, Records], metrics: Sequence[str]) -> bytes:
    """One panel per metric over steps, with a line per run that logged it."""
    figure = Figure(figsize=(4.2 * len(metrics), 3.2), layout="constrained")
    for panel, metric in zip(_panels(figure, len(metrics)), metrics, strict=True):
        for label, records in runs.items():
            points = [(r["step"], r[metric]) for r in records if metric in r]
            if points:
                panel.plot(*zip(*points, strict=True), label=label, linewidth=1.5, marker=".")
        panel.set(xlabel="step", ylabel=metric)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    return _png(figure)


def shots(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> bytes:
    """Few-shot accuracy against images per class: name -> {"10": {"mean": 0.7, "std": 0.02}}."""
    figure = Figure(figsize=(4.8, 3.2), layout="constrained")
    (panel,) = _panels(figure, 1)
    for label, by_shots in results.items():
        x = [int(k) for k in by_shots]
        mean, std = (np.array([v[key] for v in by_shots.values()]) for key in ("mean", "std"))
        panel.errorbar(x, 100 * mean, 100 * std, label=label, marker="o", capsize=3)
    panel.set(xscale="log", xlabel="training images per class", ylabel="test accuracy, %")
    panel.set_xticks(x, [str(k) for k in x])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")
    return _png(figure)


def samples(source: Source, size: tuple[int, int], rows: int = 3, columns: int = 12) -> bytes:
    """Images from all over a data set, as the network sees them, with their class names."""
    examples = [
        source[int(index)] for index in np.linspace(0, len(source) - 1, rows * columns).astype(int)
    ]
    images = np.stack([fit_for_evaluation(example["image"], size) for example in examples])
    names = [
        " ".join(source.class_names[k] for k in np.atleast_1d(example["label"]) if k >= 0)
        for example in examples
    ]
    return grid(images, names, columns)


def grid(images: np.ndarray, titles: Sequence[str], columns: int = 12) -> bytes:
    """uint8 images side by side, each with a few letters above it."""
    rows = -(-len(images) // columns)
    size, missing = images.shape[1:3], rows * columns - len(images)
    margin = max(1, size[0] // 5)  # above each image, for its title
    paddings = ((0, missing), (margin, 0), (1, 1), (0, 0))
    tiles = np.pad(images, paddings, constant_values=255)
    (height, width), tiles = tiles.shape[1:3], tiles.reshape(rows, columns, *tiles.shape[1:])
    figure = Figure(figsize=(0.9 * columns, 0.9 * rows * height / width), layout="constrained")
    (panel,) = _panels(figure, 1)
    panel.imshow(tiles.transpose(0, 2, 1, 3, 4).reshape(rows * height, columns * width, 3))
    panel.set_axis_off()
    for number, title in enumerate(titles):
        row, column = divmod(number, columns)
        panel.text(
            (column + 0.5) * width, row * height + margin - 1, title[:12],
            fontsize=8, ha="center", va="bottom",
        )  # fmt: skip
    return _png(figure)


def _panels(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(1, count, squeeze=False).flat)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
