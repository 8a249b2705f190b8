"""Files on disk and in buckets (gs://, s3://, ...) through one layer: fsspec.

Paths are strings; those without a scheme are local and go through the standard library, which is
faster for a million small files.
"""

import os
import time
from typing import Any

import fsspec

from vit_jax.errors import UsageError

_WAITS = (0.5, 2.0)  # seconds between attempts


def is_remote(path: str) -> bool:
    """Whether the path lies in a bucket."""
    return "://" in path


def is_folder(path: str) -> bool:
    """Whether there is such a folder."""
    if not is_remote(path):
        return os.path.isdir(path)
    return _filesystem(path).isdir(path)


def is_file(path: str) -> bool:
    """Whether there is such a file."""
    if not is_remote(path):
        return os.path.isfile(path)
    return _filesystem(path).isfile(path)


def read(path: str) -> bytes:
    """The whole file; OSError where there is none. A bucket is asked again before that."""
    if not is_remote(path):
        with open(path, "rb") as file:
            return file.read()
    for seconds in _WAITS:
        try:
            return _filesystem(path).cat_file(path)
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(seconds)
    return _filesystem(path).cat_file(path)


def find(folder: str) -> list[str]:
    """All files below, as in "cats/1.jpg", sorted; not those whose name, or whose folder's, begins
    with a dot."""
    if is_remote(folder):
        filesystem = _filesystem(folder)
        root = filesystem._strip_protocol(folder).rstrip("/")
        found = [path.removeprefix(root).lstrip("/") for path in filesystem.find(root)]
    else:
        found = []
        visited = set()
        for parent, folders, names in os.walk(folder, followlinks=True, onerror=_refuse):
            place = os.stat(parent)
            if (place.st_dev, place.st_ino) in visited:  # a link back to where it was met before
                folders.clear()
                continue
            visited.add((place.st_dev, place.st_ino))
            folders.sort()
            inside = os.path.relpath(parent, folder).replace(os.sep, "/")
            found += names if inside == "." else [f"{inside}/{name}" for name in names]
    return sorted(path for path in found if not path.startswith(".") and "/." not in path)


def _refuse(error: OSError) -> None:
    raise UsageError(f"cannot look into {error.filename}: {error.strerror}") from error


def _filesystem(path: str) -> Any:
    try:
        return fsspec.core.url_to_fs(path)[0]
    except (ImportError, ValueError) as error:
        raise UsageError(f"cannot open {path}: {error}") from error
