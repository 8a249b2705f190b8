"""Modules with random numbers everywhere, so that no zero or one of a fresh network hides a term.

They are made without initialising and called as one program: most of the time of small tests goes
into compiling, and op by op they would take several times as long.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def random_normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def scrambled(make, scale=0.4):
    """The module that `make()` builds, with random parameters, and these as nested dicts."""
    generator = np.random.default_rng(0)
    graphdef, shapes = nnx.split(nnx.eval_shape(make))
    params = jax.tree.map(
        lambda leaf: (scale * generator.normal(size=leaf.shape)).astype(np.float32),
        nnx.to_pure_dict(shapes),
    )
    return nnx.merge(graphdef, jax.tree.map(jnp.asarray, params)), jax.tree.map(np.float64, params)


def call(module, x):
    """module(x)."""
    return _call(*nnx.split(module), x)


@functools.partial(jax.jit, static_argnums=0)
def _call(graphdef, params, x):
    return nnx.merge(graphdef, params)(x)
