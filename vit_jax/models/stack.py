"""Equal blocks as one block whose leaves have a leading layer axis, applied by a scan.

The scan compiles one block whatever the depth, and with rematerialisation it keeps one block's
activations.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
from flax import nnx

from vit_jax.models.activations import over_batch

M = TypeVar("M", bound=nnx.Module)


def stack(make: Callable[[nnx.Rngs], M], count: int, rngs: nnx.Rngs) -> M:
    """`count` blocks, each with its own random numbers."""
    return nnx.vmap(make)(rngs.split(count))


def scan(
    blocks: nnx.Module, remat: str, x: jax.Array, per_layer: tuple = (), constant: tuple = ()
) -> jax.Array:
    """x through all blocks: each is called with x, its share of `per_layer`, and `constant`."""
    block, params = nnx.split(blocks)

    def body(x: jax.Array, layer: tuple[nnx.State, tuple]) -> tuple[jax.Array, None]:
        params, values = layer
        return over_batch(nnx.merge(block, params)(over_batch(x), *values, *constant)), None

    return jax.lax.scan(rematerialized(body, remat, in_scan=True), x, (params, per_layer))[0]


def rematerialized(function: Callable, remat: str, *, in_scan: bool) -> Callable:
    """`function`, of which the backward pass recomputes what the policy of that name says."""
    if remat == "none":
        return function
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    # prevent_cse guards against undoing the rematerialisation, which a scan cannot do anyway.
    return jax.checkpoint(function, prevent_cse=not in_scan, policy=policy)
