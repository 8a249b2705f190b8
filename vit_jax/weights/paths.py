"""Where runs and weights lie: on disk, or in a bucket of Google Cloud Storage (gs://).

A path on disk is pathlib's. One in a bucket is epath's, which has the methods of pathlib; what
differs between the two is here.
"""

import importlib.util
import os
import pathlib
import re
from collections.abc import Iterator

from vit_jax.errors import UsageError

_SCHEME = "gs://"


def as_path(text: str | pathlib.Path) -> pathlib.Path:
    """The path that a user typed."""
    text = str(text)
    if text.startswith(_SCHEME):
        return _bucket_path(text)
    if re.match(r"\w+:/", text):  # with one slash: what pathlib makes of two
        raise UsageError(f"{text}: expected a path on disk, or in a bucket as in gs://bucket/run")
    return pathlib.Path(text).expanduser()


def in_bucket(path: pathlib.Path) -> bool:
    """Whether it is none on disk."""
    return str(path).startswith(_SCHEME)


def split_bucket(path: pathlib.Path) -> tuple[str, str]:
    """(bucket, name of the object in it)."""
    bucket, _, name = str(path).removeprefix(_SCHEME).partition("/")
    return bucket, name


def exists(path: pathlib.Path) -> bool:
    """Whether there is a file or folder. A bucket that gives no answer is told in one line."""
    if not in_bucket(path):
        return path.exists()
    try:
        return path.exists()
    except Exception as error:  # of many kinds, from the network and from Google's libraries
        raise UsageError(f"cannot look at {path}: {one_line(error)}") from error


def check_bucket(path: pathlib.Path) -> None:
    """Refuses a folder to write to whose bucket is not there, or not for these credentials."""
    from google.api_core.exceptions import GoogleAPIError, NotFound
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import storage

    bucket, _ = split_bucket(path)
    try:
        storage.Client().get_bucket(bucket)
    except NotFound as error:
        raise UsageError(
            f"{path}: there is no bucket {_SCHEME}{bucket}; make it with gcloud storage buckets "
            f"create, where the machines are"
        ) from error
    except GoogleAuthError as error:
        raise UsageError(
            f"{path}: no credentials for it ({one_line(error)}); on a machine of your own: gcloud "
            f"auth application-default login"
        ) from error
    except (GoogleAPIError, OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot open the bucket ({one_line(error)}); these credentials need the roles "
            f"storage.objectUser and storage.legacyBucketReader"
        ) from error


def cache_folder() -> pathlib.Path:
    """For what can be had again: where $VIT_JAX_CACHE says, or among the user's other caches."""
    return pathlib.Path(os.environ.get("VIT_JAX_CACHE") or "~/.cache/vit_jax").expanduser()


def resolved(path: pathlib.Path) -> pathlib.Path:
    """As Orbax wants it: absolute."""
    return path if in_bucket(path) else path.resolve()


def size_of(path: pathlib.Path) -> int:
    """Of a file, in bytes."""
    return path.stat().length if in_bucket(path) else path.stat().st_size


def modified_at(path: pathlib.Path) -> float:
    """When a file was last written, in seconds since 1970."""
    return path.stat().mtime if in_bucket(path) else path.stat().st_mtime


def write_bytes(path: pathlib.Path, data: bytes) -> None:
    """Replaces the file in one move, so that nobody ever finds half of it."""
    if in_bucket(path):
        _filesystem().pipe_file(str(path), data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def move_folder(source: pathlib.Path, target: pathlib.Path) -> None:
    """To a new name. In a bucket each file is copied, then deleted."""
    if in_bucket(source):
        _filesystem().mv(str(source), str(target), recursive=True)
        return
    target.parent.mkdir(exist_ok=True)
    source.rename(target)


def walk(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, list[str], list[str]]]:
    """(folder, names of folders in it, names of files in it), from here on down. What is taken out
    of the folders' list is not looked into."""
    if not in_bucket(folder):
        for place, folders, files in os.walk(folder):
            yield pathlib.Path(place), folders, files
        return
    names: dict[str, list[str]] = {"directory": [], "file": []}
    for entry in _filesystem().ls(str(folder), detail=True):
        name = entry["name"].rstrip("/").removeprefix("/".join(split_bucket(folder)).rstrip("/"))
        if name:  # else an object that stands for this very folder
            names[entry["type"]].append(name.strip("/"))
    yield folder, names["directory"], names["file"]
    for name in names["directory"]:
        yield from walk(folder / name)


def one_line(error: Exception) -> str:
    """What it says, short enough to be told."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def _bucket_path(text: str) -> pathlib.Path:
    if importlib.util.find_spec("gcsfs") is None:
        raise UsageError(f"{text} is in a bucket: pip install 'vit_jax[gcs]'")
    if not re.match(r"gs://[a-z0-9]", text):
        raise UsageError(f"{text}: expected the name of a bucket, as in gs://bucket/run")
    os.environ.setdefault("EPATH_USE_TF", "false")  # else TensorFlow reads and writes, if there

    import fsspec
    from etils import epath

    # Listings are remembered for good otherwise, and TensorStore and other hosts write as well.
    fsspec.config.conf.setdefault("gs", {}).setdefault("use_listings_cache", False)
    return epath.Path(text)


def _filesystem():
    import fsspec

    return fsspec.filesystem("gcs")
