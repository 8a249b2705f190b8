"""Where evaluation runs when nobody says: the first device of this machine."""

import jax


def default_sharding() -> jax.sharding.Sharding:
    """A batch, whole, on one device."""
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
