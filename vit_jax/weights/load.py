"""One door for weights: a run folder or a name of the zoo becomes a model."""

import dataclasses
import pathlib
from typing import Any

import jax
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.models.variants import ViTConfig, as_size
from vit_jax.models.vit import ViT, create_model, graphdef, init_params
from vit_jax.weights.adapt import Adapted, adapt
from vit_jax.weights.checkpoint import restore_params
from vit_jax.weights.run_folder import RunFolder


def load(path_or_name: str | pathlib.Path, **changes: Any) -> ViT:
    """The model in a run folder, or a fresh one by name: `load("runs/pre", image_size=384)`.

    `changes` are fields of ViTConfig; weights are adapted to them.
    """
    folder = RunFolder(pathlib.Path(path_or_name).expanduser())
    if not folder.path.exists() and not _looks_like_path(str(path_or_name)):
        return create_model(str(path_or_name), **changes)
    old = source_network(folder.path)
    if "image_size" in changes:
        changes["image_size"] = as_size(changes["image_size"], "image_size")
    new = dataclasses.replace(old, **changes)
    return nnx.merge(graphdef(new), load_params(folder.path, new).params)


def load_params(path: pathlib.Path, network: ViTConfig, *, keep_head: bool = True) -> Adapted:
    """The parameters stored at `path`, made to fit `network`."""
    old = source_network(path)
    params = restore_params(RunFolder(path).checkpoints, old)
    fresh = init_params(network, jax.random.key(0))
    return adapt(params, old, network, fresh, keep_head=keep_head)


def source_network(path: pathlib.Path) -> ViTConfig:
    """The network whose weights lie at `path`."""
    if not path.exists():
        raise UsageError(f"no such file or folder: {path}; expected a run folder (a --workdir)")
    return RunFolder(path).network()


def _looks_like_path(text: str) -> bool:
    # "B/16" has a slash as well; a path starts with a dot, a slash or ~, or names a parent that
    # is there.
    return text.startswith((".", "/", "~")) or (pathlib.Path(text).parent.is_dir() and "/" in text)
