"""Features on disk, so that a network runs once over an image, whatever is then fitted on them.

An entry is for a network (its weights and the code that runs them), a crop and a data set; in it
images are known by their content, so that any part of any split is found again. A damaged entry is
none.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import logging
import os
import pathlib
import tempfile
import zipfile
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

import vit_jax
from vit_jax.weights.paths import cache_folder

_DIGEST_BYTES = 16
UNREADABLE = bytes(_DIGEST_BYTES)  # the digest of no image, for one without features
_CODE = ("models", "data")  # rooms that decide what features come of an image


class Known(NamedTuple):
    """Features of some images: `digests[i]` is the content of which `features[i]` is of."""

    digests: list[bytes]
    features: np.ndarray  # float32 [image, feature]


_NOTHING = Known([], np.zeros((0, 0), np.float32))


@dataclasses.dataclass(frozen=True)
class FeatureCache:
    """A folder of entries; those used longest ago go when all together are too large."""

    folder: pathlib.Path
    most_bytes: int = 8 * 2**30

    def read(self, key: str) -> Known:
        """The entry; nothing where there is none that is whole."""
        path = self._path(key)
        try:
            with np.load(path, allow_pickle=False) as stored:  # which verifies zip's checksums
                digests, features = stored["digests"], stored["features"]
            os.utime(path)
        except FileNotFoundError:
            return _NOTHING
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            _log().warning("%s cannot be read, its features are computed again: %s", path, error)
            return _NOTHING
        return Known([row.tobytes() for row in digests], features)

    def write(self, key: str, known: Known) -> None:
        """Makes it the entry, at once or not at all."""
        digests = np.frombuffer(b"".join(known.digests), np.uint8).reshape(-1, _DIGEST_BYTES)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as unfinished:
                file = pathlib.Path(unfinished, "features.npz")
                np.savez(file, digests=digests, features=known.features)
                file.replace(self._path(key))
            self._remove_oldest()
        except OSError as error:  # a full disk, a folder of somebody else
            _log().warning("features are not kept for another time: %s", error)

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / f"{key}.npz"

    def _remove_oldest(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            # With what killed processes left unfinished.
            files = [(path.stat(), path) for path in self.folder.rglob("*.npz")]
            files.sort(key=lambda file: file[0].st_mtime_ns, reverse=True)
            sizes = itertools.accumulate(stat.st_size for stat, _ in files)
            for (_, path), so_far in zip(files, sizes, strict=True):
                if so_far > self.most_bytes:
                    path.unlink()


def default_cache() -> FeatureCache:
    """Among what can be computed again ($VIT_JAX_CACHE)."""
    return FeatureCache(cache_folder() / "features")


def entry_key(model: nnx.Module, data: str, crop: str) -> str:
    """Changes with whatever changes features: weights, network, image size, code, versions."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    settings = (model.config, crop, data, jax.__version__, jax.default_backend(), _code())
    digest.update(repr(settings).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.state(model)):
        value = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {value.dtype} {value.shape}".encode())
        digest.update(value.view(np.uint8).data)
    return digest.hexdigest()


def content_digest(image: np.ndarray | bytes) -> bytes:
    """What an image is known by."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    if isinstance(image, np.ndarray):
        digest.update(f"{image.dtype} {image.shape}".encode())
        image = np.ascontiguousarray(image).data
    digest.update(image)
    return digest.digest()


def _code() -> str:
    digest = hashlib.blake2b()
    root = pathlib.Path(vit_jax.__file__).parent
    for room in _CODE:
        for file in sorted((root / room).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _log() -> logging.Logger:
    return logging.getLogger("vit_jax")
