"""From a decoded image of any size to the network's input size, on the host, in uint8."""

import cv2
import numpy as np

from vit_jax.errors import UsageError

CROPS = ("resize", "inception")


def fit(
    image: np.ndarray, size: tuple[int, int], crop: str, rng: np.random.Generator
) -> np.ndarray:
    """`image` [h, w, 3] -> [*size, 3], by one of CROPS."""
    if crop == "inception":
        image = inception_crop(image, rng)
    return resize(image, size)


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bilinear, half-pixel centres, no antialiasing: how the published weights were tested."""
    if image.shape[:2] == tuple(size):
        return image
    return cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)


def inception_crop(
    image: np.ndarray,
    rng: np.random.Generator,
    area: tuple[float, float] = (0.05, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> np.ndarray:
    """A random rectangle of the given share of the area and aspect ratio (width / height)."""
    height, width = image.shape[:2]
    for _ in range(10):
        target = height * width * rng.uniform(*area)
        ratio = np.exp(rng.uniform(*np.log(aspect)))
        crop_w, crop_h = round((target * ratio) ** 0.5), round((target / ratio) ** 0.5)
        if 0 < crop_w <= width and 0 < crop_h <= height:
            top, left = rng.integers(height - crop_h + 1), rng.integers(width - crop_w + 1)
            return image[top : top + crop_h, left : left + crop_w]
    return image  # a very long image may hold no such rectangle


def check_crop(crop: str) -> None:
    """Raises where `crop` is no known way of cropping."""
    if crop not in CROPS:
        raise UsageError(f"data.crop={crop!r}: expected one of {', '.join(CROPS)}")
