"""Letters of many scripts from the fonts inside matplotlib, deformed anew for every index.

Digits are left out, and letters that look like one, so that what is learned here can be tested on
`digits` in good faith. Nothing is downloaded or stored: an image is a function of its number.
"""

import functools
import itertools
import math
import os
import sys
import threading
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import cv2
import numpy as np

from vit_jax.data.source import Example, check_index
from vit_jax.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font

TRAIN_IMAGES_PER_CLASS = 10_000
TEST_IMAGES_PER_CLASS = 20


class Glyphs:
    """`classes` letters, an endless hand: font face, pose, stroke, contrast, blur, noise."""

    name = "glyphs"

    def __init__(
        self,
        split: Literal["train", "test"],
        image_size: int | tuple[int, int],
        classes: int = 230,
    ):
        per_class, self._stream = {
            "train": (TRAIN_IMAGES_PER_CLASS, 0),
            "test": (TEST_IMAGES_PER_CLASS, 1),
        }[split]
        height, width = np.broadcast_to(image_size, 2).tolist()
        self._x, self._y = _coordinates(width, height), _coordinates(height, width)
        self.class_names = letters(classes)
        self._length = classes * per_class

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def labels(self) -> np.ndarray:
        return (np.arange(len(self)) % self.num_classes).astype(np.int32)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Example:
        check_index(self, index)
        label = index % self.num_classes
        letter = self.class_names[label]
        # A counter-based generator: every key opens a stream of its own, at no cost to find it.
        stream = np.random.Philox(key=(self._stream << 64) | int(index))
        look = Look(*(_LEAST + _SPAN * np.random.Generator(stream).random(len(_SPAN))).tolist())
        faces = faces_with(letter)
        distances = distance_field(letter, faces[int(look.face * len(faces))])
        grey = _ink(_pose(distances, look, self._x, self._y), look)
        if look.coarse < 0.75:
            grey = _coarsen(grey, look)
        if look.noise > 0:
            noise = stream.random_raw(-(-grey.size // 8)).view(np.uint8)[: grey.size]
            noise = noise.reshape(grey.shape)
            grey = cv2.addWeighted(grey, 1, noise, look.noise, -127.5 * look.noise)
        return Example(
            image=cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB), label=np.array(label, np.int32)
        )


class Look(NamedTuple):
    """What is drawn at random for one image. Lengths are fractions of the image's shorter side."""

    face: float
    rotation: float  # radians
    shear: float
    scale: float
    stretch: float  # log of width over height
    shift_x: float
    shift_y: float
    bend_x: float  # rows slide sideways along a sine wave, columns up and down: a shaky hand
    bend_y: float
    bend_phase_x: float
    bend_phase_y: float
    bend_waves: float
    grow: float  # of the stroke, on either side
    blur: float
    dark: float  # grey levels; below zero is zero, so half of all grounds are plain black
    light: float
    inverse: float  # dark on light, if low enough
    coarse: float  # as if enlarged from few pixels, if low enough
    coarse_pixels: float
    coarse_smooth: float
    noise: float  # below zero is none


# What is not named here lies between 0 and 1. Deformations are gentle: with twice these ranges a
# small network needs more images than the demo has time for before it learns anything.
_RANGES = {
    "rotation": (-0.18, 0.18),
    "shear": (-0.15, 0.15),
    "scale": (0.9, 1.5),
    "stretch": (-0.24, 0.09),
    "shift_x": (-0.04, 0.04),
    "shift_y": (-0.04, 0.04),
    "bend_x": (-0.025, 0.025),
    "bend_y": (-0.025, 0.025),
    "bend_phase_x": (0, math.tau),
    "bend_phase_y": (0, math.tau),
    "bend_waves": (0.5, 1.5),
    "grow": (0.005, 0.032),
    "blur": (0, 0.05),
    "dark": (-60, 60),
    "light": (150, 255),
    "coarse_pixels": (8, 13),
    "noise": (-0.25, 0.25),
}
_LEAST, _MOST = np.array([_RANGES.get(field, (0, 1)) for field in Look._fields]).T
_SPAN = _MOST - _LEAST

# A field is 64 pixels wide with a letter of 44 in it. Its value is 128 on the outline and rises by
# 16 per pixel inwards, so that a stroke grows, thins or blurs by another reading of the values.
_FIELD = 64
_LETTER = 44
_LEVELS_PER_PIXEL = 16


def _coordinates(pixels: int, other: int) -> np.ndarray:
    """Pixel centres along one axis, zero in the middle, in units of the shorter side."""
    return (np.arange(pixels, dtype=np.float32) - (pixels - 1) / 2) / min(pixels, other)


def _pose(distances: np.ndarray, look: Look, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Turns, shears, scales, moves and bends a distance field onto an image [len(y), len(x)]."""
    x, y = x - look.shift_x, y - look.shift_y
    cos, sin = math.cos(look.rotation), math.sin(look.rotation)
    to_x = _FIELD / (look.scale * math.exp(look.stretch / 2))
    to_y = _FIELD / (look.scale * math.exp(-look.stretch / 2))
    slide = to_x * look.bend_x * np.sin(math.tau * look.bend_waves * y + look.bend_phase_x)
    bob = to_y * look.bend_y * np.sin(math.tau * look.bend_waves * x + look.bend_phase_y)
    # Where each pixel looks: a row plus a column, because a wave depends on one coordinate only.
    row_x, column_x = to_x * (cos + look.shear * sin) * x, to_x * (look.shear * cos - sin) * y
    row_y, column_y = to_y * sin * x, to_y * cos * y
    centre = (_FIELD - 1) / 2
    return cv2.remap(
        distances,
        row_x + (column_x + slide + centre)[:, None],
        (row_y + bob) + (column_y + centre)[:, None],
        cv2.INTER_LINEAR,
        borderValue=0,
    )


def _ink(distances: np.ndarray, look: Look) -> np.ndarray:
    """Grey values of a posed distance field: stroke width, softness and contrast."""
    levels_per_side = _LEVELS_PER_PIXEL * _FIELD / look.scale
    # The edge is a ramp at least one pixel of the image wide, or it is jagged.
    slope = 255 / ((1 / min(distances.shape) + look.blur) * levels_per_side)
    outline = 128 - look.grow * levels_per_side
    cover = _scaled(distances, slope, 127.5 - slope * outline)
    ground, ink = max(0.0, look.dark), look.light
    if look.inverse < 0.05:
        ground, ink = ink, ground
    return _scaled(cover, (ink - ground) / 255, ground)


def _scaled(image: np.ndarray, factor: float, offset: float) -> np.ndarray:
    """factor * image + offset, held within 0 and 255."""
    return cv2.addWeighted(image, factor, image, 0, offset)


def _coarsen(grey: np.ndarray, look: Look) -> np.ndarray:
    """As if it had been scanned at 8 to 12 pixels a side and enlarged."""
    height, width = grey.shape
    shrink = int(look.coarse_pixels) / min(height, width)
    small = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    enlarge = cv2.INTER_CUBIC if look.coarse_smooth < 0.5 else cv2.INTER_LINEAR
    grey = cv2.resize(grey, small, interpolation=cv2.INTER_AREA)
    return cv2.resize(grey, (width, height), interpolation=enlarge)


# --- which letters -------------------------------------------------------------------------------

_MAIN_FACE = "DejaVuSans"
# First and last letter of what stands first in the order: the everyday alphabets.
_ALPHABETS = ("AZ", "az", "ΑΩ", "αω", "Ѐя", "ԱՖ", "աֆ", "აჰ", "את", "ءي", "ⴰⵥ", "ߊߪ", "ກຮ")
# Cosine of two blurred shapes above which they count as one: Latin A and Greek Alpha, z and Z.
_SAME_SHAPE = 0.94
_SHAPE = 24
# Like 2, 3, 5, 6, 8 and 9 to the eye, if not to the cosine.
_LIKE_DIGITS = "ՁՉԶջϨƧՅვკპჰƷȜᴈƼƽნбճზგȢ𐌚ჹƍ"


@functools.lru_cache(maxsize=8)
def letters(count: int) -> tuple[str, ...]:
    """The first `count` letters in a fixed order, no two of the same shape, none like a digit."""
    found = tuple(itertools.islice(_distinct_letters(), count))
    if len(found) < count:
        raise UsageError(
            f"glyphs has at most {len(found)} classes, not {count}: ask for {len(found)} or fewer"
        )
    return found


def _distinct_letters() -> Iterator[str]:
    shapes = np.stack([_shape(char) for char in "0123456789" + _LIKE_DIGITS])
    taken = len(shapes)
    for letter in _candidates():
        shape = _shape(letter)
        # Not with @: BLAS opens threads for a product this size, and waits long on a busy machine.
        if shape is None or np.einsum("nd,d->n", shapes[:taken], shape).max() > _SAME_SHAPE:
            continue
        if taken == len(shapes):
            shapes = np.concatenate([shapes, np.empty_like(shapes)])
        shapes[taken] = shape
        taken += 1
        yield letter


def _candidates() -> list[str]:
    """Letters of the main face: everyday alphabets, then rarer ones, then those with accents."""
    everyday = {
        chr(code): rank
        for rank, (first, last) in enumerate(_ALPHABETS)
        for code in range(ord(first), ord(last) + 1)
    }

    def order(letter: str) -> tuple[bool, int, str]:
        accented = unicodedata.decomposition(letter) != ""
        return accented, everyday.get(letter, len(_ALPHABETS)), letter

    return sorted((chr(code) for code in _codes(_MAIN_FACE) if _is_letter(chr(code))), key=order)


def _is_letter(char: str) -> bool:
    # Modifiers (Lm) are marks beside letters; "<font>", "<super>", ... are copies of other letters.
    return unicodedata.category(char) in ("Lu", "Ll", "Lo") and not unicodedata.decomposition(
        char
    ).startswith("<")


def _shape(char: str) -> np.ndarray | None:
    """A unit vector that two letters share if they differ in size and place only."""
    mask = _fit(_render(char, _MAIN_FACE), _SHAPE, _SHAPE)
    if mask is None:
        return None
    shape = cv2.GaussianBlur(mask, (0, 0), 0.7).astype(np.float32).ravel()
    return shape / np.linalg.norm(shape)


# --- fonts ---------------------------------------------------------------------------------------

# Named one by one: the folder also holds symbols and a font of placeholders for every character.
_FACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10"),
)
_RENDERED_AT = 96

# FreeType keeps the current glyph inside the font object: one thread at a time.
_font_lock = threading.Lock()


@functools.cache
def faces_with(letter: str) -> tuple[str, ...]:
    """The font faces that draw `letter`, and draw it in its usual form."""
    upright = "CYRILLIC" in unicodedata.name(letter)  # whose te in italics is an m
    return tuple(
        face for face in _FACES if ord(letter) in _codes(face) and not (upright and "Ita" in face)
    )


@functools.lru_cache(maxsize=16_384)  # 4 kB each
def distance_field(letter: str, face: str) -> np.ndarray:
    """How deep inside the letter's outline each point lies, uint8 [64, 64]; see `_FIELD`."""
    mask = _fit(_render(letter, face), 2 * _FIELD, 2 * _LETTER)
    if mask is None:
        raise RuntimeError(f"{face} lists {letter!r} but draws nothing")
    inside = (mask > 127).astype(np.uint8)
    depth = cv2.distanceTransform(inside, cv2.DIST_L2, cv2.DIST_MASK_5) - cv2.distanceTransform(
        1 - inside, cv2.DIST_L2, cv2.DIST_MASK_5
    )
    depth = cv2.resize(depth, (_FIELD, _FIELD), interpolation=cv2.INTER_AREA) / 2
    return np.clip(128 + _LEVELS_PER_PIXEL * depth, 0, 255).astype(np.uint8)


def _fit(mask: np.ndarray, side: int, letter: int) -> np.ndarray | None:
    """Scales a mask's ink to `letter` pixels and centres it on [side, side]; None without ink."""
    x, y, width, height = cv2.boundingRect(mask)
    if not width:
        return None
    scale = letter / max(width, height)
    width_to, height_to = max(1, round(width * scale)), max(1, round(height * scale))
    ink = mask[y : y + height, x : x + width]
    top, left = (side - height_to) // 2, (side - width_to) // 2
    fitted = np.zeros((side, side), np.uint8)
    fitted[top : top + height_to, left : left + width_to] = cv2.resize(
        ink, (width_to, height_to), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    )
    return fitted


def _render(char: str, face: str) -> np.ndarray:
    with _font_lock:
        font = _font(face)
        font.set_text(char)
        font.draw_glyphs_to_bitmap(antialiased=True)
        return np.array(font.get_image())


@functools.cache
def _codes(face: str) -> frozenset[int]:
    # Glyph 0 is the box for a missing one. Beyond ASCII the cm fonts hold others than they say.
    end = 128 if face.startswith("cm") else sys.maxunicode
    return frozenset(c for c, glyph in _font(face).get_charmap().items() if glyph and c < end)


@functools.cache
def _font(face: str) -> "FT2Font":
    # Here and not above: other data sets come through without loading matplotlib.
    import matplotlib
    from matplotlib.ft2font import FT2Font

    font = FT2Font(os.path.join(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf"))
    font.set_size(_RENDERED_AT, 72)
    return font
