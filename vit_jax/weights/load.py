"""One door for weights: a run folder, an npz or a name of the zoo becomes a model."""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, as_size
from vit_jax.models.heads import Classifier
from vit_jax.models.network import create_model, graphdef, init_params
from vit_jax.models.variants import model_config
from vit_jax.weights.adapt import Adapted, adapt
from vit_jax.weights.checkpoint import restore_params
from vit_jax.weights.files import read_npz
from vit_jax.weights.run_folder import RunFolder


class Stored(NamedTuple):
    """What lies at a path: a network, its parameters, and names of what is none of them."""

    network: NetworkConfig
    params: dict[str, Any]
    unused: tuple[str, ...] = ()


def load(path_or_name: str | pathlib.Path, **changes: Any) -> Classifier:
    """The model in a run folder or an npz, or a fresh one by name.

    `load("B_16.npz", image_size=384, num_classes=10)`: changes are fields of its config
    (models/config.py), and the weights are adapted to them. An npz needs no name: its architecture
    is read off the file.
    """
    path = pathlib.Path(path_or_name).expanduser()
    if not path.exists() and not _looks_like_path(str(path_or_name)):
        return create_model(str(path_or_name), **changes)
    for key in ("image_size", "patch_size"):
        if key in changes:
            changes[key] = as_size(changes[key], key)
    stored = read_weights(path, changes.get("image_size"))
    new = _changed(stored.network, changes)
    params = stored.params
    if new != stored.network:
        params = _adapt(stored, new, keep_head=True).params
    return nnx.merge(graphdef(new), jax.tree.map(jnp.asarray, params))


def load_params(path: pathlib.Path, network: NetworkConfig, *, keep_head: bool = True) -> Adapted:
    """The parameters stored at `path`, made to fit `network`."""
    return _adapt(read_weights(path, network.image_size), network, keep_head=keep_head)


def read_weights(path: pathlib.Path, image_size: tuple[int, int] | None = None) -> Stored:
    """What lies at `path`, as it is. `image_size` helps where a file does not tell its own."""
    if not path.exists():
        raise UsageError(
            f"no such file or folder: {path}; expected a run folder (a --workdir) or an npz"
        )
    if path.is_file():
        return Stored(*read_npz(path, image_size))
    folder = RunFolder(path)
    network = folder.network()
    return Stored(network, restore_params(folder.checkpoints, network))


def _adapt(stored: Stored, network: NetworkConfig, *, keep_head: bool) -> Adapted:
    fresh = init_params(network, jax.random.key(0))
    return adapt(
        stored.params, stored.network, network, fresh, keep_head=keep_head, unused=stored.unused
    )


def _changed(network: NetworkConfig, changes: dict[str, Any]) -> NetworkConfig:
    known = {field.name for field in dataclasses.fields(network)}
    if changes.keys() - known:
        model_config("B/16" if network.family == "vit" else "BiT-R50x1", **changes)  # says which
    return dataclasses.replace(network, **changes)


def _looks_like_path(text: str) -> bool:
    # "B/16" has a slash as well, and so has "google/vit-base-patch16-224"; a path starts with a
    # dot, a slash or ~, ends in .npz, or names a parent that is there.
    return (
        text.startswith((".", "/", "~"))
        or text.endswith(".npz")
        or (pathlib.Path(text).parent.is_dir() and "/" in text)
    )
