"""The teacher of a run that distils one: read from where it was trained, never changed."""

import dataclasses
import pathlib

from vit_jax.data.source import Source
from vit_jax.errors import UsageError
from vit_jax.train.config import RunConfig
from vit_jax.weights.load import Stored, read_weights


def read_teacher(config: RunConfig, source: Source) -> Stored | None:
    """Its network and parameters, or None where the run has no teacher."""
    if not config.teacher.path:
        return None
    stored = read_weights(pathlib.Path(config.teacher.path).expanduser())
    if stored.network.num_classes != source.num_classes:
        raise UsageError(
            f"config.teacher.path={config.teacher.path} knows {stored.network.num_classes} "
            f"classes, {source.name} has {source.num_classes}: choose a teacher of the same classes"
        )
    # It computes as its student does, and there is nothing to rematerialise.
    network = dataclasses.replace(stored.network, dtype=config.model.dtype, remat="none")
    return stored._replace(network=network)
