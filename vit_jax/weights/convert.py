"""Weights from one form into another, verified: run folder to npz, npz to run folder."""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, config_to_dict
from vit_jax.models.network import graphdef, parameter_count
from vit_jax.weights.checkpoint import PARAMS
from vit_jax.weights.dialects import dialect
from vit_jax.weights.files import write_npz
from vit_jax.weights.load import Stored, read_weights
from vit_jax.weights.run_folder import RunFolder, write_json

# Folding a class token adds two numbers, which rounds; everything else is exact.
TOLERANCE = 1e-4


class Converted(NamedTuple):
    """What was written, and how far its logits are from those of the source."""

    network: NetworkConfig
    parameters: int
    largest_logit: float
    largest_difference: float
    unused: tuple[str, ...]  # names in the source that belong to no parameter


def convert(
    source: pathlib.Path, target: pathlib.Path, spelling: str = "published", dtype: str = "float32"
) -> Converted:
    """Writes the weights at `source` to `target`, a *.npz or else a folder, and compares logits.

    In bfloat16 the difference is what the coarser numbers cost; in float32 it must be none.
    """
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"dtype={dtype!r}: expected float32 or bfloat16")
    if target.exists():
        raise UsageError(f"{target} is there already: choose another name, or delete it first")
    to_folder = target.suffix != ".npz"
    if to_folder and (dtype, spelling) != ("float32", "published"):
        raise UsageError(
            f"{target} would be a run folder, which has no dialects and is float32: name an .npz"
        )
    stored = read_weights(source)
    if to_folder:
        write_run_folder(target, stored.network, stored.params)
    else:
        chosen = dataclasses.replace(dialect(spelling), bfloat16=dtype == "bfloat16")
        write_npz(target, stored.network, stored.params, chosen)
    before, after = _logits(stored), _logits(read_weights(target))
    difference = float(np.abs(before - after).max())
    largest = float(np.abs(before).max())
    if dtype == "float32" and not difference <= TOLERANCE * max(1.0, largest):
        raise RuntimeError(f"{target} was written, but its logits differ by {difference}")
    return Converted(
        stored.network, parameter_count(stored.network), largest, difference, stored.unused
    )


def write_run_folder(path: pathlib.Path, network: NetworkConfig, params: dict[str, Any]) -> None:
    """A folder that `load` and `--config.init` take, as if a run had left it at step 0."""
    folder = RunFolder(path)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder.checkpoints.resolve() / "0" / PARAMS, params)
    write_json(folder.config, {"network": config_to_dict(network)})


def _logits(stored: Stored) -> np.ndarray:
    """Of two random images, in float32."""
    network = dataclasses.replace(stored.network, dtype="float32")
    shape = (2, *network.image_size, network.channels)
    images = jax.random.uniform(jax.random.key(0), shape, minval=-1)
    params = jax.tree.map(jnp.asarray, stored.params)
    # A head of zeros, as the older releases have, would hide all that lies before it.
    model = nnx.merge(graphdef(network), params)
    return np.concatenate([model.features(images), model(images)], axis=-1)
