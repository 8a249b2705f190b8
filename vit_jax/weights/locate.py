"""Where the weights lie that a user names: a path, or a name that is fetched first.

Fetched are repositories of the Hugging Face hub (google/vit-base-patch16-224, timm's too) and the
AugReg release. Each has a place of its own under $VIT_JAX_CACHE that is looked at before, so that
files can be put there by hand where there is no network.
"""

import os
import pathlib
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request

from vit_jax.errors import UsageError
from vit_jax.weights import hub
from vit_jax.weights.paths import as_path, cache_folder, exists, one_line

_HUB_PREFIX = re.compile(r"hf[-_]hub:(.+)")
# "B/16" has a slash as well, but no letter behind it.
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]*[A-Za-z][\w.-]*")
_TIMM_NAME = re.compile(r"(?:vit|deit)_\w+\.\w+")
_AUGREG_NAME = re.compile(r"(?:R\d*_)?(?:Ti|S|B|L)_\d+-i(?:1k|21k)-[\w.-]+")
_AUGREG_BUCKET, _AUGREG_FOLDER = "vit_models", "augreg"
_SECONDS = 30  # without an answer


def locate(name: str | pathlib.Path) -> pathlib.Path:
    """The path of weights, which are there afterwards if `name` is one to be fetched by."""
    text = str(name)
    if match := _HUB_PREFIX.fullmatch(text):
        return _from_hub(match[1], text)
    path = as_path(name)
    if looks_like_path(text) or exists(path):
        return path
    if _AUGREG_NAME.fullmatch(text):
        return _from_augreg(text)
    if _TIMM_NAME.fullmatch(text):
        return _from_hub(f"timm/{text}", text)
    return _from_hub(text, text) if _HUB_NAME.fullmatch(text) else path


def looks_like_path(text: str) -> bool:
    """Whether it can be no name: it starts with a dot, a slash, ~ or gs://, ends as a file of
    weights does, or names a parent that is there."""
    return (
        text.startswith((".", "/", "~", "gs://"))
        or text.endswith((".npz", ".pth", ".pt", ".safetensors"))
        or (pathlib.Path(text).parent.is_dir() and "/" in text)
    )


def _from_hub(repository: str, typed: str) -> pathlib.Path:
    by_hand = cache_folder() / "weights" / repository
    if exists(by_hand):
        return by_hand
    try:
        return hub.download(repository)
    except hub.NotFetched as error:
        raise UsageError(
            f"no such file or folder: {typed}; and not to be had from the Hugging Face hub "
            f"({error}): put its config.json and model.safetensors into {by_hand}"
        ) from error


def _from_augreg(name: str) -> pathlib.Path:
    path = cache_folder() / "weights" / _AUGREG_FOLDER / f"{name}.npz"
    if exists(path):
        return path
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        url = _public_url(name)
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file)
        part.replace(path)
    except (OSError, urllib.error.URLError) as error:
        raise UsageError(
            f"{name} is not here, and cannot be fetched ({one_line(error)}): put "
            f"gs://{_AUGREG_BUCKET}/{_AUGREG_FOLDER}/{name}.npz at {path}"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _public_url(name: str) -> str:
    """Of a bucket that anyone may read, without credentials or libraries of Google's."""
    host = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    place = urllib.parse.quote(f"{_AUGREG_FOLDER}/{name}.npz", safe="")
    return f"{host}/download/storage/v1/b/{_AUGREG_BUCKET}/o/{place}?alt=media"
