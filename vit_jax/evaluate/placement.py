"""Where evaluation runs: on the devices of a batch, or on the first one of this machine."""

import contextlib

import jax


def default_sharding() -> jax.sharding.Sharding:
    """A batch, whole, on one device."""
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def on_mesh_of(sharding: jax.sharding.Sharding) -> contextlib.AbstractContextManager:
    """Inside, networks keep their activations split as the batch is (models/activations.py)."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.set_mesh(sharding.mesh)
    return contextlib.nullcontext()
