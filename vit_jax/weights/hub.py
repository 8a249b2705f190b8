"""Folders of weights to and from the Hugging Face hub, by its own library (extra [hub])."""

import functools
import os
import pathlib
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from vit_jax.errors import UsageError
from vit_jax.weights.paths import one_line
from vit_jax.weights.safetensors_file import INDEX, NAME, listed

_INSTALL = "pip install 'vit_jax[hub]'"
_SECONDS = 10  # without an answer


class NotFetched(Exception):
    """A repository that is not to be had, and why."""


def download(repository: str) -> pathlib.Path:
    """The folder, in the hub's own cache, with the files of a repository that are read here."""
    try:
        api = _api()
    except ImportError as error:
        raise NotFetched(_INSTALL) from error
    problem = _connection_problem(api.endpoint)
    # The library would try for half a minute; what it has in its cache it gives without a network.
    fetch = functools.partial(api.hf_hub_download, repository, local_files_only=bool(problem))
    try:
        config = pathlib.Path(fetch("config.json"))
        _optional(fetch, "preprocessor_config.json")
        if index := _optional(fetch, INDEX):
            for name in listed(index):
                fetch(name)
        else:
            fetch(NAME)
    except Exception as error:  # of many kinds: of the hub, of HTTP, of the network, of the disk
        raise NotFetched(problem or one_line(error)) from error
    return config.parent


def check_pushable(repository: str) -> None:
    """Raises where it is plain before any work that nothing can be uploaded."""
    try:
        _api()
    except ImportError as error:
        raise UsageError(f"--push-to-hub={repository}: {_INSTALL}") from error
    if repository.count("/") != 1:
        raise UsageError(f"--push-to-hub={repository}: expected OWNER/NAME, as in me/my-vit")


def push(folder: pathlib.Path, repository: str) -> str:
    """Uploads a folder as a model; the repository is made, private, if it is not there."""
    api = _api()
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Weights from vit_jax"
        )
    except Exception as error:
        raise UsageError(
            f"{folder} is written, but could not be pushed to {repository} ({one_line(error)}): "
            f"type `hf auth login`, then `hf upload {repository} {folder}`"
        ) from error
    return str(done.commit_url)


def _connection_problem(endpoint: str) -> str:
    """Why the hub does not answer, or nothing where it does, or where a proxy stands before it."""
    url = urllib.parse.urlsplit(endpoint)
    if url.scheme in urllib.request.getproxies():
        return ""
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        socket.create_connection((url.hostname or "", port), _SECONDS).close()
    except OSError as error:
        return f"{url.hostname} does not answer: {one_line(error)}"
    return ""


def _optional(fetch: Callable[[str], str], name: str) -> pathlib.Path | None:
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return pathlib.Path(fetch(name))
    except EntryNotFoundError:
        return None


def _api() -> Any:
    from huggingface_hub import HfApi

    # Read when it is called, while the library reads it once, when it is imported.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
