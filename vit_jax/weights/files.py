"""Networks in npz files: the layout is found out on reading, chosen on writing."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.models.config import (
    NOT_IN_WEIGHTS,
    NetworkConfig,
    config_from_dict,
    config_to_dict,
    differences,
)
from vit_jax.models.heads import Classifier
from vit_jax.weights.dialects import Dialect, dialect, from_published, to_published
from vit_jax.weights.infer import infer_network
from vit_jax.weights.layouts import LAYOUTS, from_arrays, layout_of, to_arrays
from vit_jax.weights.npz import read_arrays, write_arrays

# A file whose arrays alone do not tell the network says it in words, under this key.
NOTE = "vit_jax/network"


def read_npz(
    path: pathlib.Path, image_size: tuple[int, int] | None = None
) -> tuple[NetworkConfig, dict[str, Any], tuple[str, ...]]:
    """(network, parameters, keys that are none of them) of a file in any layout and dialect."""
    arrays = read_arrays(path)
    note = arrays.pop(NOTE, None)
    if note is not None:
        network, layout = _read_note(str(note), path)
        others: list[str] = []
        if layout == "published":
            arrays, others = to_published(arrays)
    else:
        arrays, others = to_published(arrays)
        network = infer_network(arrays, str(path), image_size)
        layout = layout_of(network)
    params, unused = from_arrays(arrays, network, layout, str(path))
    return network, params, (*others, *unused)


def save_npz(
    model: Classifier, path: str | pathlib.Path, spelling: str | Dialect = "published"
) -> None:
    """Writes a model so that it can be loaded again, here and elsewhere.

    In the layout of the published weights where that has a place for everything, spelled as the
    dialect says, else in our own.
    """
    params = nnx.to_pure_dict(nnx.state(model))
    write_npz(pathlib.Path(path).expanduser(), model.config, params, spelling)


def write_npz(
    path: pathlib.Path,
    network: NetworkConfig,
    params: dict[str, Any],
    spelling: str | Dialect = "published",
) -> None:
    """Writes the parameters of a network."""
    chosen = dialect(spelling) if isinstance(spelling, str) else spelling
    layout = layout_of(network)
    if layout != "published" and dataclasses.replace(chosen, bfloat16=False) != Dialect():
        raise UsageError(f"{network.name} is written in one way only: leave the dialect out")
    arrays = to_arrays(params, layout)
    alone = layout != "native" and _told_by(arrays, network)
    arrays = from_published(arrays, chosen)
    if not alone:
        # What a run chose besides (dropout, ...) is in its folder, as for files without a note.
        kept = {k: v for k, v in config_to_dict(network).items() if k not in NOT_IN_WEIGHTS}
        note = {"layout": layout, "network": {"name": network.name, **kept}}
        arrays[NOTE] = np.asarray(json.dumps(note))
    write_arrays(path, arrays)


def _read_note(note: str, path: pathlib.Path) -> tuple[NetworkConfig, str]:
    try:
        described = json.loads(note)
        if described["layout"] not in LAYOUTS:
            raise KeyError(described["layout"])
        return config_from_dict(described["network"]), described["layout"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} says under {NOTE!r} what this version does not understand ({error!r}): "
            f"write it again with the version that made it, or remove that key"
        ) from error


def _told_by(arrays: dict[str, np.ndarray], network: NetworkConfig) -> bool:
    """Whether the arrays tell the network without a note."""
    try:
        found = infer_network(arrays, "")
    except UsageError:
        return False
    return not differences(found, network).keys() - NOT_IN_WEIGHTS
