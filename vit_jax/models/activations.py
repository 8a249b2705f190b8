"""Where activations lie when a network runs on many devices: split along the batch.

A network knows no mesh; it marks its activations, and where a program is traced inside a mesh with
these axes the mark holds. Without it the compiler may split activations the way FSDP splits
parameters and gather the batch instead: B/16 on 16 chips with fsdp=4 needs 40 GB of temporaries
unmarked, 14 GB marked, as much as on a mesh of replicas.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

BATCH_AXES = ("replica", "fsdp")  # of a mesh: those that share out the batch
BATCH_SPEC = PartitionSpec(BATCH_AXES)


def over_batch(x: jax.Array) -> jax.Array:
    """x itself, its first axis split over the devices of the mesh, if there is one."""
    if not on_mesh():
        return x
    return jax.lax.with_sharding_constraint(x, BATCH_SPEC)


def flat(x: jax.Array) -> jax.Array:
    """[batch, token, width] -> [all tokens, width]."""
    return x.reshape(-1, x.shape[-1])


def by_device(
    function: Callable[..., Any], arrays: tuple[jax.Array, ...], specs: Any, result_specs: Any
) -> Any:
    """function(*arrays) on each device's own part: for kernels, which the compiler cannot split."""
    if not on_mesh():
        return function(*arrays)
    # (check_vma would have kernels say along which axes their results differ.)
    local = jax.shard_map(function, in_specs=specs, out_specs=result_specs, check_vma=False)
    return local(*arrays)


def devices_per_image() -> int:
    """How many devices share an image: each has some of the heads."""
    return jax.sharding.get_abstract_mesh().shape["tensor"] if on_mesh() else 1


def batch_devices() -> int:
    """Over how many devices the images are split."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return math.prod(sizes[axis] for axis in BATCH_AXES) if on_mesh() else 1


def device_number(spec: PartitionSpec) -> jax.Array:
    """Inside of `by_device`: which of the parts of such an array is this device's."""
    axes = [axis for part in spec for axis in (part if isinstance(part, tuple) else (part,))]
    return jax.lax.axis_index(tuple(axes)) if on_mesh() else jnp.int32(0)


def on_mesh() -> bool:
    """Is the program traced inside a mesh with these axes?"""
    return set(BATCH_AXES) <= set(jax.sharding.get_abstract_mesh().axis_names)
