"""Images for tests: photographs that are none, and a folder of everything that goes wrong."""

import io

import numpy as np
import PIL.Image
import simplejpeg


def photo(height=48, width=64, seed=0):
    """Something smooth, which JPEG keeps nearly as it is."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (17 + seed % 5) + c + seed) * np.cos(y / 23) for c in range(3)]
    return (127 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)


def jpeg(image, **options):
    return simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=95, **options)


def saved(image, kind, mode=None, **options):
    buffer = io.BytesIO()
    picture = PIL.Image.fromarray(image)
    (picture.convert(mode) if mode else picture).save(buffer, kind, **options)
    return buffer.getvalue()


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def turned():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    return saved(photo(), "JPEG", exif=exif.tobytes(), quality=95)


def broken_folder(root):
    """train/good: 6 photographs; train/odd: what users have among theirs."""
    for seed in range(6):
        write(root / "train" / "good" / f"{seed}.jpg", jpeg(photo(seed=seed)))
    odd = {
        "empty.jpg": b"",
        "cut.jpg": jpeg(photo(seed=7))[:700],
        "words.jpg": b"this is a text",
        "moving.jpg": saved(photo(seed=8), "GIF"),
        "really.jpg": saved(photo(seed=9), "PNG"),
        "grey.jpg": saved(photo(seed=10), "JPEG", "L"),
        "printed.jpg": saved(photo(seed=11), "JPEG", "CMYK"),
        "turned.jpg": turned(),
        "dot.png": saved(photo(1, 1), "PNG"),
        "vast.jpg": jpeg(np.zeros((9000, 12000, 3), np.uint8)),
    }
    for name, data in odd.items():
        write(root / "train" / "odd" / name, data)
    return root
