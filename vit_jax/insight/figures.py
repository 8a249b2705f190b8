"""Pictures as PNG bytes, drawn by matplotlib without a screen.

Without a background and with grey letters, so that they can be read on light and dark pages.
"""

import io
from collections.abc import Mapping, Sequence

import cv2
import matplotlib
import numpy as np
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

INK = "#7d8590"
RUN_COLOURS = (  # of Okabe & Ito (2008), told apart by all eyes
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
)  # fmt: skip
HEAT = "viridis"
DPI = 165  # for sharp screens; pages show them at two thirds of that
_CHART = (4.8, 3.1)  # inches; small, so that letters can be read on a phone
_TITLE = 12  # letters above a small image

# As a decorator of what draws.
styled = matplotlib.rc_context(
    {
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.titlesize": "medium",
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": INK,
        "grid.alpha": 0.25,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": "small",
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "savefig.dpi": DPI,
        "font.size": 9,
        "figure.constrained_layout.use": True,
    }
)


def png(figure: Figure) -> bytes:
    """The finished picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


@styled
def shots(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> bytes:
    """Few-shot accuracy against images per class: name -> {"10": {"mean": 0.7, "std": 0.02}}."""
    figure = Figure(figsize=_CHART)
    panel = figure.subplots()
    ticks = sorted({int(k) for by_shots in results.values() for k in by_shots})
    for number, (label, by_shots) in enumerate(results.items()):
        x = sorted(int(k) for k in by_shots)
        mean, std = (100 * np.array([by_shots[str(k)][key] for k in x]) for key in ("mean", "std"))
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        panel.errorbar(x, mean, std, label=label, marker="o", capsize=4, color=colour)
    panel.set(xscale="log", xlabel="training images per class", ylabel="test accuracy, %")
    panel.set_xticks(ticks, [str(k) for k in ticks])
    panel.minorticks_off()
    panel.grid()
    panel.legend()
    return png(figure)


@styled
def grid(images: np.ndarray, titles: Sequence[str], columns: int = 8) -> bytes:
    """uint8 images side by side, each with a few letters above it."""
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    height, width = images.shape[1:3]
    lines = max((title.count("\n") + 1 for title in titles if title), default=0)
    figure = Figure(figsize=(1.15 * columns, rows * (1.15 * height / width + 0.19 * lines)))
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, hspace=0, wspace=0)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat:
        panel.set_axis_off()
    for panel, image, title in zip(panels.flat, images, titles, strict=False):
        panel.imshow(image, interpolation="nearest", aspect="auto")
        short = "\n".join(shortened(line, _TITLE) for line in title.split("\n"))
        panel.set_title(short, fontsize=7.5, pad=2)
    return png(figure)


@styled
def confusion(matrix: np.ndarray, names: Sequence[str], images: np.ndarray) -> bytes:
    """Shares of each true class [true, predicted]; the matrix holds counts, maybe of some classes
    only, and `images` how many images each true class has in all."""
    share = matrix / np.maximum(images, 1)[:, None]
    side = max(3.2, 1.2 + 0.18 * len(names))
    figure = Figure(figsize=(side + 0.7, side))
    panel = figure.subplots()
    shown = panel.imshow(100 * share, cmap=HEAT, vmin=0, vmax=100)
    labels = [shortened(name, 16) for name in names]
    panel.set_xticks(range(len(names)), labels, rotation=90, fontsize=7)
    panel.set_yticks(range(len(names)), labels, fontsize=7)
    panel.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(shown, ax=panel, shrink=0.8, label="% of the true class's images")
    if len(names) <= 12:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            colour = "black" if share[row, column] > 0.6 else "white"
            count = str(matrix[row, column])
            panel.text(column, row, count, ha="center", va="center", fontsize=7, color=colour)
    return png(figure)


@styled
def bars(rows: Sequence[tuple[str, float, str]]) -> bytes:
    """(name, share, remark), the first at the top."""
    names, shares, remarks = zip(*rows, strict=True)
    figure = Figure(figsize=(_CHART[0], 0.7 + 0.26 * len(rows)))
    panel = figure.subplots()
    panel.barh(range(len(rows)), 100 * np.array(shares), color=RUN_COLOURS[0], height=0.65)
    for place, (share, remark) in enumerate(zip(shares, remarks, strict=True)):
        panel.text(100 * share + 1.5, place, shortened(remark, 30), va="center", fontsize=7)
    panel.set_yticks(range(len(rows)), [shortened(name, 24) for name in names])
    panel.set(xlim=(0, 140), xlabel="recognised, %", ylabel="true class (images)")
    panel.set_xticks(range(0, 101, 20))
    panel.invert_yaxis()
    panel.grid(axis="x")
    return png(figure)


@styled
def filters(components: np.ndarray) -> bytes:
    """Principal components [component, h, w, 3] in [0, 1], the first of them first."""
    columns = 7
    figure = Figure(figsize=(0.7 * columns, 0.7 * -(-len(components) // columns)))
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, hspace=0.03, wspace=0.03)
    panels = figure.subplots(-(-len(components) // columns), columns, squeeze=False)
    for panel in panels.flat:
        panel.set_axis_off()
    for panel, component in zip(panels.flat, components, strict=False):
        panel.imshow(component, interpolation="nearest")
    return png(figure)


@styled
def similarity(cosines: np.ndarray) -> bytes:
    """A grid of grids: [row, column, row, column], for each patch its likeness to all others."""
    rows, columns = cosines.shape[:2]
    gap = max(1, round(max(rows, columns) / 8))
    tiles = np.pad(cosines, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    tiled = tiles.swapaxes(1, 2).reshape(rows * (rows + gap), -1)[:-gap, :-gap]
    longest = max(tiled.shape)
    figure = Figure(
        figsize=(1.5 + 3.7 * tiled.shape[1] / longest, 0.6 + 3.7 * tiled.shape[0] / longest)
    )
    panel = figure.subplots()
    shown = panel.imshow(tiled, cmap=HEAT, vmin=-1, vmax=1, interpolation="nearest")
    for axis, count, pitch in (
        (panel.xaxis, columns, columns + gap),
        (panel.yaxis, rows, rows + gap),
    ):
        numbers = np.arange(0, count, -(-count // 14))
        axis.set_ticks(numbers * pitch + (pitch - gap - 1) / 2, numbers + 1)
    panel.set(xlabel="column of the patch", ylabel="row of the patch")
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0)
    figure.colorbar(shown, ax=panel, shrink=0.8, label="cosine similarity")
    return png(figure)


@styled
def distances(by_direction: Mapping[str, np.ndarray]) -> bytes:
    """Mean attention distance [layer, head] in pixels; one dot is one head."""
    figure = Figure(figsize=_CHART)
    panel = figure.subplots()
    for number, (direction, values) in enumerate(by_direction.items()):
        layers = np.repeat(np.arange(1, len(values) + 1), values.shape[1])
        shift = 0.12 * (number - (len(by_direction) - 1) / 2)
        panel.scatter(
            layers + shift, values.ravel(), s=22, alpha=0.75, color=RUN_COLOURS[number],
            label=direction or None, linewidths=0,
        )  # fmt: skip
        panel.plot(
            np.arange(1, len(values) + 1) + shift, values.mean(axis=1), color=RUN_COLOURS[number],
            alpha=0.4,
        )  # fmt: skip
    panel.set(xlabel="layer", ylabel="mean attention distance, pixels")
    panel.set_ylim(bottom=0, top=1.15 * max(v.max() for v in by_direction.values()) or 1)
    depth = len(values)
    panel.set_xticks(range(1, depth + 1, -(-depth // 16)))
    panel.grid()
    if len(by_direction) > 1:
        panel.legend()
    return png(figure)


@styled
def columns_of(images: np.ndarray, below: Mapping[str, np.ndarray]) -> bytes:
    """Images in a line, and under each what was made of it, one line for each name."""
    lines = {"image": images, **below}
    height, width = images.shape[1:3]
    count = len(images)
    figure = Figure(figsize=(0.5 + 1.15 * count, 1.2 * len(lines) * height / width))
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, hspace=0.03, wspace=0.03)
    panels = figure.subplots(len(lines), count, squeeze=False)
    for row, (name, pictures) in zip(panels, lines.items(), strict=True):
        row[0].set_ylabel(name, fontsize=8)
        for panel, picture in zip(row, pictures, strict=True):
            panel.imshow(picture, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
    return png(figure)


@styled
def lines_by_layer(layers: Mapping[int, Mapping[str, np.ndarray]]) -> bytes:
    """By the number of a layer and direction, a matrix [query, key] of attention along a line."""
    names = list(next(iter(layers.values())))
    figure = Figure(figsize=(0.6 + 1.15 * len(layers), 1.45 * len(names)))
    panels = figure.subplots(len(names), len(layers), squeeze=False)
    for name, row in zip(names, panels, strict=True):
        for panel, (number, layer) in zip(row, layers.items(), strict=True):
            panel.imshow(layer[name], cmap=HEAT, vmin=0, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.set_title(f"layer {number}", fontsize=7.5, pad=2)
            panel.spines[:].set_visible(False)
        row[0].set_ylabel(f"{name}\nquery", fontsize=8)
        row[0].set_xlabel("key", fontsize=8)
    return png(figure)


def overlay(images: np.ndarray, maps: np.ndarray, colours: str = HEAT) -> np.ndarray:
    """Maps [image, row, column], each from its least to its most, as heat over grey images."""
    cmap: Colormap = matplotlib.colormaps[colours]
    return np.stack([_heated(i, m, cmap) for i, m in zip(images, maps, strict=True)])


def enlarged(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """[image, row, column, 3] -> as large as images, each patch one colour."""
    return np.stack([cv2.resize(m, size[::-1], interpolation=cv2.INTER_NEAREST) for m in maps])


def shortened(text: str, most: int) -> str:
    """So that it fits."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _heated(image: np.ndarray, heat: np.ndarray, cmap: Colormap) -> np.ndarray:
    size = image.shape[1], image.shape[0]
    smooth = cv2.resize(heat.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
    spread = smooth.max() - smooth.min()
    scaled = (smooth - smooth.min()) / spread if spread > 0 else np.zeros_like(smooth)
    grey = image.mean(axis=-1, keepdims=True) / 255
    return 0.4 * grey + 0.6 * cmap(scaled)[..., :3]
