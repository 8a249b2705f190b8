"""What lies at a path: a network and its numbers, whatever form they have there."""

from typing import Any, NamedTuple

from vit_jax.models.config import NetworkConfig


class Stored(NamedTuple):
    """A network, its parameters, names of what is none of them, and of its classes if known."""

    network: NetworkConfig
    params: dict[str, Any]
    unused: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
