"""Weights from one form into another, verified: run folders, npz, folders of other libraries."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from vit_jax.errors import UsageError, closest
from vit_jax.models.config import NetworkConfig, config_to_dict
from vit_jax.models.network import graphdef, parameter_count
from vit_jax.weights.card import model_card
from vit_jax.weights.checkpoint import PARAMS, save_args
from vit_jax.weights.dialects import dialect
from vit_jax.weights.files import write_npz
from vit_jax.weights.hugging_face import write_hugging_face
from vit_jax.weights.load import read_weights
from vit_jax.weights.paths import check_bucket, exists, in_bucket, resolved
from vit_jax.weights.refusals import check_fits
from vit_jax.weights.run_folder import RunFolder, write_json, write_text
from vit_jax.weights.stored import Stored
from vit_jax.weights.timm_folder import write_timm

FORMS = ("npz", "run", "hf", "timm")

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
    form: str = "",
    spelling: str = "published",
    dtype: str = "float32",
    image_size: tuple[int, int] | None = None,
) -> Converted:
    """Writes the weights at `source` to `target` in one of FORMS, and compares outputs.

    Without a word of the form a name that ends in .npz is one, any other a run folder. In bfloat16
    the difference is what the coarser numbers cost. `image_size` is that of the source, where a
    file does not tell. The target appears when it has been verified, and not before.
    """
    form = form or ("npz" if target.suffix == ".npz" else "run")
    _check_target(target, form, spelling, dtype)
    stored = read_weights(source, image_size)
    write = _writer(source, stored, form, spelling, dtype)
    before = _outputs(stored)
    if not np.isfinite(before).all():
        raise UsageError(f"{source} holds a network that answers NaN: there is nothing to verify")
    with tempfile.TemporaryDirectory(dir=_existing_parent(target)) as folder:
        new = pathlib.Path(folder) / target.name
        write(new)
        difference = float(np.abs(before - _outputs(read_weights(new, image_size))).max())
        largest = float(np.abs(before).max())
        if dtype == "float32" and difference > TOLERANCE * max(1.0, largest):
            raise RuntimeError(f"converted {source}, but outputs differ by {difference}")
        if in_bucket(target):
            write(target)  # the same again: nothing can be moved there
        else:
            new.rename(target)
    return Converted(
        stored.network, parameter_count(stored.network), largest, difference, stored.unused
    )


def write_run_folder(
    path: pathlib.Path,
    network: NetworkConfig,
    params: dict[str, Any],
    class_names: tuple[str, ...] = (),
) -> None:
    """A folder that `load` and `--config.init` take, as if a run had left it at step 0."""
    folder = RunFolder(path)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(resolved(folder.checkpoints) / "0", save_args({PARAMS: params}, {}))
    named = {"class_names": list(class_names)} if class_names else {}
    write_json(folder.config, {"network": config_to_dict(network), **named})


def _writer(
    source: pathlib.Path, stored: Stored, form: str, spelling: str, dtype: str
) -> Callable[[pathlib.Path], None]:
    """What writes the weights in that form to a path."""
    network, params, _, names = stored
    if form == "npz":
        chosen = dataclasses.replace(dialect(spelling), bfloat16=dtype == "bfloat16")
        return lambda path: write_npz(path, network, params, chosen)
    if form == "run":
        return lambda path: write_run_folder(path, network, params, names)
    check_fits(network, form)
    write_folder = write_hugging_face if form == "hf" else write_timm

    def write(path: pathlib.Path) -> None:
        write_folder(path, network, params, names)
        write_text(path / "README.md", model_card(network, form, RunFolder(source), names))

    return write


def _check_target(target: pathlib.Path, form: str, spelling: str, dtype: str) -> None:
    if form not in FORMS:
        raise UsageError(f"--to={form}: expected one of {', '.join(FORMS)}.{closest(form, FORMS)}")
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"dtype={dtype!r}: expected float32 or bfloat16")
    if exists(target):
        raise UsageError(f"{target} is there already: choose another name, or delete it first")
    if form == "npz" and target.suffix != ".npz":
        raise UsageError(f"{target}: expected a name that ends in .npz")
    if form != "npz" and target.suffix in (".npz", ".safetensors", ".pth", ".pt"):
        raise UsageError(
            f"{target}: expected a name that ends in .npz, or with --to={form} that of a new folder"
        )
    if form != "npz" and (dtype, spelling) != ("float32", "published"):
        raise UsageError(
            f"{target} would be a folder (--to={form}), which has no dialects and is float32: name "
            f"an .npz"
        )


def _existing_parent(target: pathlib.Path) -> pathlib.Path | None:
    """To write the new beside it; nowhere in particular for a bucket."""
    if in_bucket(target):
        check_bucket(target)
        return None
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
