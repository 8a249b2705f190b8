"""Weights from one form into another, verified: run folder to npz, npz to run folder."""

import dataclasses
import pathlib
import tempfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, config_to_dict
from vit_jax.models.network import graphdef, parameter_count
from vit_jax.weights.checkpoint import PARAMS, save_args
from vit_jax.weights.dialects import dialect
from vit_jax.weights.files import write_npz
from vit_jax.weights.load import Stored, read_weights
from vit_jax.weights.run_folder import RunFolder, write_json

# Folding a class token adds two numbers, which rounds; everything else is exact.
TOLERANCE = 1e-4


class Converted(NamedTuple):
    """What was written, and how far its features and logits are from those of the source."""

    network: NetworkConfig
    parameters: int
    largest_output: float
    largest_difference: float
    unused: tuple[str, ...]  # names in the source that belong to no parameter


def convert(
    source: pathlib.Path,
    target: pathlib.Path,
    spelling: str = "published",
    dtype: str = "float32",
    image_size: tuple[int, int] | None = None,
) -> Converted:
    """Writes the weights at `source` to `target`, a *.npz or else a folder, and compares outputs.

    In bfloat16 the difference is what the coarser numbers cost. `image_size` is that of the source,
    where a file does not tell. The target appears when it has been verified, and not before.
    """
    _check_target(target, spelling, dtype)
    stored = read_weights(source, image_size)
    before = _outputs(stored)
    if not np.isfinite(before).all():
        raise UsageError(f"{source} holds a network that answers NaN: there is nothing to verify")
    with tempfile.TemporaryDirectory(dir=_existing_parent(target)) as folder:
        new = pathlib.Path(folder) / target.name
        if target.suffix == ".npz":
            chosen = dataclasses.replace(dialect(spelling), bfloat16=dtype == "bfloat16")
            write_npz(new, stored.network, stored.params, chosen)
        else:
            write_run_folder(new, stored.network, stored.params)
        difference = float(np.abs(before - _outputs(read_weights(new, image_size))).max())
        largest = float(np.abs(before).max())
        if dtype == "float32" and difference > TOLERANCE * max(1.0, largest):
            raise RuntimeError(f"converted {source}, but outputs differ by {difference}")
        new.rename(target)
    return Converted(
        stored.network, parameter_count(stored.network), largest, difference, stored.unused
    )


def write_run_folder(path: pathlib.Path, network: NetworkConfig, params: dict[str, Any]) -> None:
    """A folder that `load` and `--config.init` take, as if a run had left it at step 0."""
    folder = RunFolder(path)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder.checkpoints.resolve() / "0", save_args({PARAMS: params}, {}))
    write_json(folder.config, {"network": config_to_dict(network)})


def _check_target(target: pathlib.Path, spelling: str, dtype: str) -> None:
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"dtype={dtype!r}: expected float32 or bfloat16")
    if target.exists():
        raise UsageError(f"{target} is there already: choose another name, or delete it first")
    if target.suffix not in ("", ".npz"):
        raise UsageError(f"{target}: expected a name that ends in .npz, or that of a new folder")
    if target.suffix != ".npz" and (dtype, spelling) != ("float32", "published"):
        raise UsageError(
            f"{target} would be a run folder, which has no dialects and is float32: name an .npz"
        )


def _existing_parent(target: pathlib.Path) -> pathlib.Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error}") from error
    return target.parent


def _outputs(stored: Stored) -> np.ndarray:
    """Features and logits of two random images, in float32.

    Features too: a head of zeros, as the older releases have, would hide all that lies before it.
    """
    network = dataclasses.replace(stored.network, dtype="float32")
    shape = (2, *network.image_size, network.channels)
    images = jax.random.uniform(jax.random.key(0), shape, minval=-1)
    model = nnx.merge(graphdef(network), jax.tree.map(jnp.asarray, stored.params))
    return np.concatenate([model.features(images), model(images)], axis=-1)
