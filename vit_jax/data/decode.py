"""From the bytes of an image file to pixels, by what they hold and not by what they are called.

JPEGs go through libjpeg-turbo (simplejpeg) and are turned as their EXIF tag says; everything else,
and JPEGs in CMYK, through OpenCV, and what that does not know through Pillow.
"""

import contextlib
import io
import re
import threading
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np
import PIL.Image
import simplejpeg

from vit_jax.errors import UsageError

# An image of more pixels is refused: it is a mistake, or an attack on memory.
MOST_PIXELS = 2**28
PIL.Image.MAX_IMAGE_PIXELS = MOST_PIXELS  # where it warns; its own is a third of that
# Larger ones than this are opened one at a time, so that many threads cannot fill the memory.
_LARGE = 2**24
_one_at_a_time = threading.Lock()

_MOST_SCRATCH = 2**24  # bytes that a thread keeps
_this_thread = threading.local()


# Batches are made by many threads, one image each. OpenCV would open a pool of its own in every one
# of them, and they would wait for each other. Here, so that worker processes do it too.
cv2.setNumThreads(0)
cv2.utils.logging.setLogLevel(0)  # what is wrong with an image is told once, by its name


class BadImage(UsageError):
    """Bytes that are no image, or only part of one."""


class Region(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int


class Header(NamedTuple):
    """What is known of an image before it is decoded."""

    height: int
    width: int
    orientation: int | None  # of a JPEG, grey or YCbCr: its EXIF tag, 1 where it is upright

    @property
    def is_plain_jpeg(self) -> bool:
        """Of which parts can be decoded by themselves."""
        return self.orientation == 1


def pixels(image: np.ndarray | bytes) -> np.ndarray:
    """uint8 [height, width, 3] RGB, upright; a grey image three times, transparency left out."""
    return decode(image) if isinstance(image, bytes) else image


def decode(data: bytes) -> np.ndarray:
    """The whole image."""
    header = read_header(data)
    with _room_for(header):
        if header.orientation is None:
            return _decode_other(data)
        return _upright(_decode_jpeg(data), header.orientation)


def decode_region(data: bytes, header: Header, region: Region, size: tuple[int, int]) -> np.ndarray:
    """A rectangle of a plain JPEG, in its own resolution or in half, a quarter, an eighth of it,
    never less than `size`: what will be shrunk anyway need not be decoded in full.

    It lies in memory of this thread that its next call writes over: resize or copy it before.
    """
    needed = max(size[0] / region.height, size[1] / region.width)
    scale = next((scale for scale in (1 / 8, 1 / 4, 1 / 2) if scale >= needed), 1)
    with _room_for(header):
        if scale == 1:
            image = _decode_rows(data, header, region.top + region.height)
            return image[_slice(region.top, region.height), _slice(region.left, region.width)]
        least = {"min_height": _up(header.height * scale), "min_width": _up(header.width * scale)}
        image = _decode_jpeg(data, fast=True, **least)
    by_rows, by_columns = image.shape[0] / header.height, image.shape[1] / header.width
    rows = _slice(round(region.top * by_rows), max(1, round(region.height * by_rows)))
    columns = _slice(round(region.left * by_columns), max(1, round(region.width * by_columns)))
    return image[rows, columns]


def read_header(data: bytes) -> Header:
    """Size and kind; BadImage where there is none."""
    if not data:
        raise BadImage("the file is empty")
    if data[:3] == b"\xff\xd8\xff":
        with contextlib.suppress(ValueError):
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            _check_size(height, width)
            if colours not in ("YCbCr", "Gray"):
                return Header(height, width, None)
            orientation = _orientation(data)
            if orientation in _LYING:
                height, width = width, height
            return Header(height, width, orientation)
    with _pillow(data) as image:
        width, height = image.size
    _check_size(height, width)
    return Header(height, width, None)


def _decode_jpeg(data: bytes, *, fast: bool = False, **least: int) -> np.ndarray:
    """`fast` is a little less exact, by a level or two: enough for training."""
    options = {"colorspace": "RGB", "fastdct": fast, "fastupsample": fast, **least}
    try:
        return simplejpeg.decode_jpeg(data, **options)
    except ValueError as error:
        if "remature end" in str(error) or "runcated" in str(error):
            raise BadImage(f"the JPEG is cut off ({error})") from error
        if "extraneous bytes" not in str(error):
            raise BadImage(f"the JPEG is broken ({error})") from error
    try:
        return simplejpeg.decode_jpeg(data, strict=False, **options)  # stray bytes do no harm
    except ValueError as error:
        raise BadImage(f"the JPEG is broken ({error})") from error


def _decode_other(data: bytes) -> np.ndarray:
    # IMREAD_COLOR: three channels of eight bits, turned as its EXIF says, whatever the file holds.
    with contextlib.suppress(cv2.error):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        if image is not None:
            return image
    with _pillow(data) as image:
        try:
            return np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            raise BadImage(f"the image is broken ({error})") from error


@contextlib.contextmanager
def _pillow(data: bytes):
    try:
        image = PIL.Image.open(io.BytesIO(data))
    except (PIL.UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise BadImage("it is no image of a known format") from error
    except PIL.Image.DecompressionBombError as error:
        raise BadImage(str(error)) from error
    with image:
        yield image


_LYING = (5, 6, 7, 8)  # orientations whose rows are columns


def _upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turned and mirrored as the EXIF tag says."""
    if orientation in _LYING:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def _orientation(data: bytes) -> int:
    """The EXIF tag: 1 is upright."""
    if not any(
        marker == 0xE1 and data.startswith(b"Exif\0\0", place + 4)
        for marker, place in _segments(data)
    ):
        return 1
    with contextlib.suppress(BadImage, OSError, ValueError, SyntaxError), _pillow(data) as image:
        orientation = image.getexif().get(0x0112, 1)
        return orientation if orientation in range(1, 9) else 1
    return 1


def _decode_rows(data: bytes, header: Header, count: int) -> np.ndarray:
    """The first rows, and of a progressive JPEG, which has all rows in each pass, all of them.

    The rows below are not decoded: the file is made to say that it ends there.
    """
    place = _baseline_frame(data)
    if place is None:
        file, count = data, header.height
    else:
        file = _scratch("file", len(data))
        file[:] = data
        file[place + 5 : place + 7] = count.to_bytes(2, "big")
    image = np.frombuffer(_scratch("rows", count * header.width * 3), np.uint8)
    try:
        simplejpeg.decode_jpeg(file, "RGB", fastdct=True, fastupsample=True, buffer=image)
    except ValueError as error:
        # Said after the last row, which is there by then: bytes of the rows below remain.
        if not re.search("extraneous bytes before marker 0xd[0-9]", str(error)):
            return _decode_jpeg(file, fast=True)
    return image.reshape(count, header.width, 3)


def _baseline_frame(data: bytes) -> int | None:
    """Where the segment of a baseline JPEG that gives its height begins; None in progressive."""
    for marker, place in _segments(data):
        if marker in (0xC0, 0xC1):
            return place
        if 0xC2 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return None
    return None


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Kind and place of all that a JPEG says before its first pixels."""
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # filling
            place += 1
            continue
        if marker == 0xDA:
            return
        yield marker, place
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")


def _scratch(use: str, length: int) -> memoryview:
    """Memory of this thread, the same again and again: asking the system for new pages takes as
    long as a fifth of the decoding."""
    if length > _MOST_SCRATCH:
        return memoryview(bytearray(length))
    if not hasattr(_this_thread, use) or len(getattr(_this_thread, use)) < length:
        setattr(_this_thread, use, memoryview(bytearray(length * 3 // 2)))
    return getattr(_this_thread, use)[:length]


def _room_for(header: Header) -> contextlib.AbstractContextManager:
    large = header.height * header.width > _LARGE
    return _one_at_a_time if large else contextlib.nullcontext()


def _check_size(height: int, width: int) -> None:
    if height * width > MOST_PIXELS:
        raise BadImage(f"{width}x{height} pixels are more than {MOST_PIXELS:,}")


def _slice(start: int, length: int) -> slice:
    return slice(start, start + length)


def _up(value: float) -> int:
    return -int(-value // 1)
