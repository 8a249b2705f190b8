"""A procedural corpus after "Visual Atoms" (Takashima et al., CVPR 2023), of any size, on no disk.

A class is a set of closed contours, circles waved by two sinusoids; an image is one view of it.
Both are computed from their number alone: there is no table of classes and no store of images.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import cv2
import numpy as np

from vit_jax.data.source import PADDING_LABEL, Example, check_index

TEST_IMAGES = 50_000  # as many as ImageNet's validation set, or a little fewer: whole classes only
MAX_LABELS = 4


class VisualAtoms:
    """`images` pictures of `classes` atoms, one each, label int32 scalar.

    With `multi_label` up to four atoms of different classes lie in one image, label int32 [4]
    filled up with PADDING_LABEL. Most hold one, 1.26 on average, as in JFT-300M.
    """

    def __init__(
        self,
        split: Literal["train", "test"],
        image_size: int | tuple[int, int],
        classes: int = 21_000,
        images: int = 300_000_000,
        multi_label: bool = False,
        name: str = "visual_atoms",
    ):
        self.name = name
        self.num_classes = classes
        self._multi_label = multi_label
        self._height, self._width = np.broadcast_to(image_size, 2).tolist()
        self._length, self._stream = {
            "train": (images, _TRAIN),
            "test": (classes * max(1, TEST_IMAGES // classes), _TEST),
        }[split]

    @functools.cached_property
    def class_names(self) -> tuple[str, ...]:
        return tuple(f"atom {label}" for label in range(self.num_classes))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Example:
        check_index(self, index)
        stream = _random_stream(self._stream, index)
        rng = np.random.Generator(stream)
        labels = [index % self.num_classes]
        if self._multi_label:
            labels = _with_company(labels[0], self.num_classes, rng)
        image = np.empty((self._height, self._width, 3), np.uint8)
        ground = 256 * rng.random(3)
        cv2.rectangle(image, (0, 0), (self._width, self._height), ground.tolist(), cv2.FILLED)
        for label in labels:
            view = View(*(_LEAST + _SPAN * rng.random(len(_SPAN))).tolist())
            _draw(image, atom(label), view, _inks(ground, rng), crowd=len(labels))
        strength = 0.25 * rng.random()
        noise = stream.random_raw(-(-image.size // 8)).view(np.uint8)[: image.size]
        noise = noise.reshape(image.shape)
        image = cv2.addWeighted(image, 1, noise, strength, -127.5 * strength)
        if not self._multi_label:
            return Example(image=image, label=np.array(labels[0], np.int32))
        padding = [PADDING_LABEL] * (MAX_LABELS - len(labels))
        return Example(image=image, label=np.array(labels + padding, np.int32))


def _with_company(label: int, classes: int, rng: np.random.Generator) -> list[int]:
    """`label` and none to three other classes."""
    # 80 % hold one label, 15 % two, 4 % three, 1 % four: the mean of JFT-300M.
    count = 1 + int(np.searchsorted((0.80, 0.95, 0.99), rng.random(), side="right"))
    labels = [label]
    while len(labels) < min(count, classes):
        other = int(rng.integers(classes))
        if other not in labels:
            labels.append(other)
    return labels


@dataclass(frozen=True)
class Atom:
    """What all images of a class share.

    Orbit k of `orbits` is a closed polygon of `vertices` points around the centre, at radius
    r_k * (1 + a_k * sin(m * t) + b_k * sin(n * t + offset)), turned by k * twist.
    """

    orbits: int
    vertices: int
    frequencies: tuple[int, int]  # m, n
    amplitudes: tuple[float, float]  # a, b of the outermost orbit
    inner_amplitudes: tuple[float, float]  # of the innermost; those between lie on the line
    offset: float  # radians between the two waves
    twist: float  # radians from one orbit to the next
    inner_radius: float  # of the innermost orbit, the outermost being 1
    spacing: float  # 1 spaces the orbits evenly, more crowds them to the inside


@functools.lru_cache(maxsize=1024)
def atom(label: int) -> Atom:
    """The atom of class `label`, the same one in every split, size and number of classes."""
    rng = np.random.Generator(_random_stream(_CLASSES, label))
    orbits, vertices, m, n, a, b, inner_a, inner_b, offset, twist, inner_radius, spacing = (
        rng.random(12).tolist()
    )
    return Atom(
        # Logarithmic, from 1 to 15: drawn evenly, most atoms would be filled discs.
        orbits=int(16**orbits),
        vertices=int(32 * 8**vertices),
        frequencies=(int(21 * m), 1 + int(20 * n)),
        # At most 0.9 together, so that no radius falls below zero.
        amplitudes=(0.05 + 0.4 * a, 0.05 + 0.4 * b),
        inner_amplitudes=(0.05 + 0.4 * inner_a, 0.05 + 0.4 * inner_b),
        offset=math.tau * offset,
        twist=0.2 * twist,
        inner_radius=0.1 + 0.6 * inner_radius,
        spacing=0.5 + 1.5 * spacing,
    )


class View(NamedTuple):
    """What one image makes of an atom. Lengths are fractions of the image's shorter side."""

    radius: float
    centre_x: float  # at -1 a full circle would touch one border of the image, at 1 the other
    centre_y: float
    turn: float  # radians
    stretch: float  # log of width over height
    phase: float  # added to the offset between the two waves
    line: float


_RANGES = {
    "radius": (0.28, 0.48),
    "centre_x": (-1, 1),
    "centre_y": (-1, 1),
    "turn": (0, math.tau),
    "stretch": (-0.2, 0.2),
    "phase": (-0.3, 0.3),
    "line": (0.002, 0.05),
}
_LEAST, _MOST = np.array([_RANGES[field] for field in View._fields]).T
_SPAN = _MOST - _LEAST


def _inks(ground: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Colours of the innermost and the outermost orbit, [2, 3], each well off the ground."""
    # Around the circle of 256 levels, no channel comes nearer to the ground than 36.
    return (ground + 90 + 130 * rng.random((2, 3))) % 256


def _draw(image: np.ndarray, atom: Atom, view: View, inks: np.ndarray, crowd: int) -> None:
    """Draws the atom into `image`, smaller where it is one of a crowd."""
    height, width, _ = image.shape
    side = min(height, width)
    radius = side * view.radius / math.sqrt(crowd)
    squeeze = math.exp(-abs(view.stretch))
    wide, high = (radius, radius * squeeze) if view.stretch > 0 else (radius * squeeze, radius)
    centre_x = (width - 1) / 2 + view.centre_x * (width / 2 - radius)
    centre_y = (height - 1) / 2 + view.centre_y * (height / 2 - radius)
    # Whole numbers of sixteenths of a pixel, which is how OpenCV takes fractions.
    points = _contours(atom, view) * (16 * wide, 16 * high) + (16 * centre_x, 16 * centre_y)
    line = max(1, round(view.line * side))
    # Smooth lines cost ten times as much where they are wider than a pixel, and matter less there.
    smooth = cv2.LINE_AA if line == 1 else cv2.LINE_8
    colours = (inks[0] + (inks[1] - inks[0]) * _outwards(atom)).tolist()
    for polygon, colour in zip(points.astype(np.int32), colours, strict=True):
        cv2.polylines(image, [polygon], True, colour, line, smooth, shift=4)


def _contours(atom: Atom, view: View) -> np.ndarray:
    """The orbits from the inside out, [orbits, vertices, 2] (x, y), within the unit circle."""
    outwards = _outwards(atom)
    inner, outer = np.array((atom.inner_amplitudes, atom.amplitudes))
    angle = np.arange(atom.vertices) * (math.tau / atom.vertices)
    m, n = atom.frequencies
    waves = np.sin((m * angle, n * angle + (atom.offset + view.phase)))
    radius = atom.inner_radius + (1 - atom.inner_radius) * outwards**atom.spacing
    radius = radius * (1 + (inner + (outer - inner) * outwards) @ waves)
    radius /= radius.max()
    # As complex numbers, for which to turn an orbit is one product.
    turns = np.exp(1j * (view.turn + atom.twist * np.arange(atom.orbits)))[:, None]
    points = radius * (turns * np.exp(1j * angle))
    return points.view(np.float64).reshape(atom.orbits, atom.vertices, 2)


def _outwards(atom: Atom) -> np.ndarray:
    """From 0, the innermost orbit, to 1, the outermost (or the only one); [orbits, 1]."""
    return 1 - np.arange(atom.orbits - 1, -1, -1)[:, None] / max(1, atom.orbits - 1)


_TRAIN, _TEST, _CLASSES = range(3)


def _random_stream(kind: int, number: int) -> np.random.Philox:
    # Counter-based: every key opens a stream of its own, and opening the last costs no more than
    # the first.
    return np.random.Philox(key=(kind << 64) | int(number))
