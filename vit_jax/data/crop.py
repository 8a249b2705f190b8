"""From an image of any size to the network's input size, on the host, in uint8."""

import math

import cv2
import numpy as np

from vit_jax.data.decode import Region, decode, decode_region, pixels, read_header
from vit_jax.errors import UsageError

TRAIN_CROPS = ("inception", "random", "resize")
EVAL_CROPS = ("resize", "centre")

# An image is first brought to this much more than the network's input, then cropped: 256 for 224.
_MARGIN = 8 / 7


def fit(
    image: np.ndarray | bytes, size: tuple[int, int], crop: str, rng: np.random.Generator
) -> np.ndarray:
    """An image, or the bytes of its file -> uint8 [*size, 3], by one of TRAIN_CROPS.

    "inception" takes a random rectangle; "random" a random place of an image a little larger;
    "resize" all of it.
    """
    if crop == "inception":
        # Resized always, which copies: the rectangle lies where the next image will.
        rectangle = _random_rectangle(image, size, rng)
        return cv2.resize(rectangle, size[::-1], interpolation=cv2.INTER_LINEAR)
    if crop == "random":
        larger = tuple(round(side * _MARGIN) for side in size)
        image = resize(pixels(image), larger)
        top, left = (rng.integers(a - b + 1) for a, b in zip(larger, size, strict=True))
        return image[top : top + size[0], left : left + size[1]]
    return resize(pixels(image), size)


def fit_for_evaluation(
    image: np.ndarray | bytes, size: tuple[int, int], crop: str = "resize"
) -> np.ndarray:
    """Likewise by one of EVAL_CROPS: all of the image, or its middle in its own proportions."""
    image = pixels(image)
    if crop == "resize":
        return resize(image, size)
    height, width = image.shape[:2]
    scale = _MARGIN * max(size[0] / height, size[1] / width)
    larger = max(round(height * scale), size[0]), max(round(width * scale), size[1])
    top, left = (larger[0] - size[0]) // 2, (larger[1] - size[1]) // 2
    return resize(image, larger)[top : top + size[0], left : left + size[1]]


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bilinear, half-pixel centres, no antialiasing: how the published weights were tested."""
    if image.shape[:2] == tuple(size):
        return image
    return cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)


def inception_region(
    height: int,
    width: int,
    rng: np.random.Generator,
    area: tuple[float, float] = (0.05, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> Region:
    """A random rectangle of the given share of the area and aspect ratio (width / height).

    The ratio is uniform, and so is the height among those that the area and the image allow: this
    is how the references draw it, with smaller crops than if the area itself were uniform.
    """
    for _ in range(10):
        ratio = rng.uniform(*aspect)
        least, most = (math.sqrt(share * height * width / ratio) for share in area)
        most = min(round(most), height, int((width + 0.5) / ratio))
        least = min(round(least), most)
        crop_h = int(rng.integers(least, most + 1))
        crop_w = round(crop_h * ratio)
        if crop_h > 0 and 0 < crop_w <= width:
            top, left = rng.integers(height - crop_h + 1), rng.integers(width - crop_w + 1)
            return Region(int(top), int(left), crop_h, crop_w)
    return Region(0, 0, height, width)  # a very long image may hold no such rectangle


def check_crop(crop: str, crops: tuple[str, ...] = TRAIN_CROPS, what: str = "data.crop") -> None:
    """Raises where `crop` is no known way of cropping."""
    if crop not in crops:
        raise UsageError(f"{what}={crop!r}: expected one of {', '.join(crops)}")


def _random_rectangle(
    image: np.ndarray | bytes, size: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    if isinstance(image, bytes):
        header = read_header(image)
        if header.is_plain_jpeg:
            region = inception_region(header.height, header.width, rng)
            return decode_region(image, header, region, size)
        image = decode(image)
    top, left, height, width = inception_region(*image.shape[:2], rng)
    return image[top : top + height, left : left + width]
