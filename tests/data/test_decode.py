"""Images are opened by what they hold; what cannot be opened says so."""

import io
import threading

import cv2
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from tests.data.images import jpeg, saved
from tests.data.images import photo as any_photo
from vit_jax.data import decode as module
from vit_jax.data.crop import fit, fit_for_evaluation, inception_region
from vit_jax.data.decode import BadImage, Region, decode, decode_region, pixels, read_header


def photo(height=120, width=160):
    return any_photo(height, width)


FORMATS = {
    "jpeg": lambda image: jpeg(image),
    "progressive": lambda image: saved(image, "JPEG", quality=95, progressive=True),
    "png": lambda image: saved(image, "PNG"),
    "png with transparency": lambda image: saved(image, "PNG", "RGBA"),
    "palette": lambda image: saved(image, "PNG", "P"),
    "gif": lambda image: saved(image, "GIF"),
    "webp": lambda image: saved(image, "WEBP", quality=95),
    "bmp": lambda image: saved(image, "BMP"),
    "cmyk": lambda image: saved(image, "JPEG", "CMYK", quality=95),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_upright_rgb(kind):
    image = photo()
    data = FORMATS[kind](image)
    found = decode(data)
    assert found.shape == image.shape and found.dtype == np.uint8
    coarse = kind in ("palette", "gif", "webp", "cmyk")
    assert np.abs(found.astype(int) - image).mean() < (20 if coarse else 2)
    header = read_header(data)
    assert (header.height, header.width) == (120, 160)
    assert header.is_plain_jpeg == (kind in ("jpeg", "progressive"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey_images_have_three_equal_channels(kind):
    found = decode(saved(photo(), kind, "L"))
    assert found.shape == (120, 160, 3)
    np.testing.assert_array_equal(found[..., 0], found[..., 2])


@pytest.mark.parametrize("orientation", range(1, 10))  # 9 is none
def test_a_photo_is_turned_as_its_exif_says(orientation):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    data = saved(photo(), "JPEG", exif=exif.tobytes(), quality=95)
    expected = np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data))))
    header, found = read_header(data), decode(data)
    assert found.shape == expected.shape == (header.height, header.width, 3)
    assert np.abs(found.astype(int) - expected).mean() < 2
    assert header.is_plain_jpeg == (orientation in (1, 9))
    assert fit(data, (8, 8), "inception", np.random.default_rng(0)).shape == (8, 8, 3)


def test_restart_markers_cost_nothing(monkeypatch):
    data = saved(photo(), "JPEG", quality=95, restart_marker_rows=1)
    assert b"\xff\xdd" in data
    whole, region = decode(data), Region(10, 20, 50, 60)
    monkeypatch.setattr(module, "_decode_jpeg", None)  # it would be decoded a second time
    found = decode_region(data, read_header(data), region, (50, 60))
    assert np.abs(found.astype(int) - whole[10:60, 20:80]).mean() < 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"just some words", "no image of a known format"),
        (jpeg(photo())[:2000], "cut off"),
        (saved(photo(), "JPEG", quality=95, progressive=True)[:3000], "cut off"),
        (saved(photo(), "PNG")[:500], "broken|no image"),
        (b"\xff\xd8\xff" + b"nonsense" * 40, "broken|no image"),
    ],
)
def test_what_is_no_image_says_so(data, says):
    with pytest.raises(BadImage, match=says):
        decode(data)
    with pytest.raises(BadImage):
        fit(data, (8, 8), "inception", np.random.default_rng(0))


def test_a_truncated_image_is_bad_even_where_the_crop_is_whole():
    data = jpeg(photo())
    header = read_header(data)
    with pytest.raises(BadImage):
        decode_region(data[: len(data) // 2], header, Region(0, 0, 120, 160), (120, 160))


def test_stray_bytes_in_a_jpeg_do_no_harm():
    data = jpeg(photo())
    np.testing.assert_array_equal(decode(data + b"appended by a camera"), decode(data))


@pytest.mark.parametrize("subsampling", ["444", "420", "422"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_region_is_that_part_of_the_image(subsampling, progressive):
    image = photo(200, 240)
    names = {"444": 0, "422": 1, "420": 2}
    data = saved(image, "JPEG", quality=95, subsampling=names[subsampling], progressive=progressive)
    header, whole, rng = read_header(data), decode(data), np.random.default_rng(0)
    for _ in range(20):
        region = inception_region(200, 240, rng)
        top, left, height, width = region
        found = decode_region(data, header, region, (height, width))  # in its own resolution
        expected = whole[top : top + height, left : left + width].astype(int)
        assert found.shape == expected.shape
        assert np.abs(found - expected).mean() < 2


@pytest.mark.parametrize("size", [100, 50, 25])
def test_what_will_be_shrunk_is_decoded_smaller(size):
    image = photo(800, 600)
    data, region = jpeg(image), Region(80, 40, 640, 480)
    found = decode_region(data, read_header(data), region, (size, size))
    assert min(found.shape[:2]) >= size
    assert found.shape[0] < 640 and found.shape[0] / found.shape[1] == pytest.approx(
        4 / 3, abs=0.03
    )
    small = cv2.resize(found, (size, size), interpolation=cv2.INTER_AREA).astype(int)
    expected = cv2.resize(image[80:720, 40:520], (size, size), interpolation=cv2.INTER_AREA)
    assert np.abs(small - expected).mean() < 4


def test_a_crop_of_a_file_is_the_crop_of_its_pixels():
    data = jpeg(photo(300, 400))
    for seed in range(5):
        from_file = fit(data, (64, 64), "inception", np.random.default_rng(seed)).astype(int)
        from_pixels = fit(pixels(data), (64, 64), "inception", np.random.default_rng(seed))
        # Not the same: a file is decoded smaller where it is shrunk anyway, and smoother for it.
        assert np.abs(from_file - from_pixels).mean() < 8


def test_an_image_too_large_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(module, "MOST_PIXELS", 100 * 100)
    for data in (jpeg(photo()), saved(photo(), "PNG")):
        with pytest.raises(BadImage, match="160x120 pixels are more than 10,000"):
            decode(data)


def test_large_images_are_opened_one_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "_LARGE", 1000)
    inside, most, lock = [0], [0], threading.Lock()
    real = module._decode_jpeg

    def counted(*args, **kwargs):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        try:
            return real(*args, **kwargs)
        finally:
            with lock:
                inside[0] -= 1

    monkeypatch.setattr(module, "_decode_jpeg", counted)
    data = jpeg(photo(600, 800))
    threads = [threading.Thread(target=decode, args=(data,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1


def test_evaluation_sees_the_whole_image_or_its_middle():
    image = np.zeros((70, 140, 3), np.uint8)
    image[:, 70:] = 200
    assert fit_for_evaluation(image, (8, 8))[0, [0, -1], 0].tolist() == [0, 200]
    centre = fit_for_evaluation(image, (56, 56), "centre")
    assert centre.shape == (56, 56, 3)
    # 8/7 of 56 is 64: the sides keep their proportions, 64x128, and the middle has both halves.
    assert (centre[:, :27] == 0).all() and (centre[:, 29:] == 200).all()


def test_random_crops_are_a_place_in_an_image_a_little_larger():
    image = photo()
    found = {fit(image, (28, 28), "random", np.random.default_rng(s)).tobytes() for s in range(20)}
    assert len(found) > 8
    larger = cv2.resize(image, (32, 32))
    one = fit(image, (28, 28), "random", np.random.default_rng(0))
    places = [larger[y : y + 28, x : x + 28] for y in range(5) for x in range(5)]
    assert any((place == one).all() for place in places)
