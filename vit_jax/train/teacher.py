"""The teacher of a run that distils one: found at the start, read onto the mesh, never changed."""

import dataclasses
from typing import Any

from vit_jax.data.source import Source
from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig
from vit_jax.train.config import RunConfig
from vit_jax.weights.load import Place, find_weights


@dataclasses.dataclass(frozen=True)
class TeacherWeights:
    """Where a teacher lies and what it is, without its numbers."""

    network: NetworkConfig
    place: Place

    def read(self, target: Any) -> Any:
        """Its parameters, laid out as the abstract `target` says; whole on no device."""
        return self.place.read(target)


def find_teacher(config: RunConfig, source: Source) -> TeacherWeights | None:
    """The run's teacher, or None where it has none."""
    if not config.teacher.path:
        return None
    place = find_weights(config.teacher.path)
    network = place.network
    if network.num_classes != source.num_classes or network.channels != 3:
        raise UsageError(
            f"config.teacher.path={config.teacher.path} sees {network.channels} channels and knows "
            f"{network.num_classes} classes, {source.name} has 3 and {source.num_classes}: choose "
            f"a teacher of the same"
        )
    # It computes as its student does, and there is nothing to rematerialise.
    return TeacherWeights(
        dataclasses.replace(network, dtype=config.model.dtype, remat="none"), place
    )
