"""Dropout and stochastic depth as pure functions of an explicit key; no key means no noise."""

import jax
import jax.numpy as jnp


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes entries with probability `rate` and scales the others up to keep the mean."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)


def drop_path(x: jax.Array, rate: jax.Array, key: jax.Array | None) -> jax.Array:
    """Zeroes a whole residual branch, image by image (Huang et al., 2016). x: [batch, ...]."""
    if key is None:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, (x.shape[0],) + (1,) * (x.ndim - 1))
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)
