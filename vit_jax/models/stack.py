"""Equal blocks as one block whose leaves have a leading layer axis, applied by a scan.

The scan compiles one block whatever the depth, and with rematerialisation it keeps one block's
activations.
"""

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx

from vit_jax.models.activations import over_batch

M = TypeVar("M", bound=nnx.Module)

# (what was seen so far, attention weights of a layer) -> (what is seen now, what to keep of it)
See = Callable[[Any, Any], tuple[Any, Any]]


def stack(make: Callable[[nnx.Rngs], M], count: int, rngs: nnx.Rngs) -> M:
    """`count` blocks, each with its own random numbers.

    They are made one after the other: to draw the numbers of all at once takes twice the memory
    that they need.
    """
    definition, each = nnx.split(rngs.split(count))
    blocks: list[nnx.GraphDef[M]] = []

    def params(own: nnx.State) -> nnx.State:
        block, state = nnx.split(make(nnx.merge(definition, own)))
        blocks.append(block)
        return state

    state = jax.lax.map(params, each)
    return nnx.merge(blocks[0], state)


def scan(
    blocks: nnx.Module,
    remat: str,
    x: jax.Array,
    per_layer: tuple = (),
    constant: tuple = (),
    *,
    unroll: bool = False,
) -> jax.Array:
    """x through all blocks: each is called with x, its share of `per_layer`, and `constant`.

    `unroll`: one after the other in the program. What the backward pass is to find then stays where
    it is; a scan copies it into arrays of all layers (on a TPU, 13 % of a step of B/16).
    """
    block, params = nnx.split(blocks)

    def body(x: jax.Array, layer: tuple[nnx.State, tuple]) -> tuple[jax.Array, None]:
        params, values = layer
        return over_batch(nnx.merge(block, params)(over_batch(x), *values, *constant)), None

    run, layers = rematerialized(body, remat, in_scan=not unroll), (params, per_layer)
    if not unroll:
        return jax.lax.scan(run, x, layers)[0]
    for index in range(len(jax.tree.leaves(params)[0])):
        x, _ = run(x, jax.tree.map(operator.itemgetter(index), layers))
    return x


def watch(
    blocks: nnx.Module,
    x: jax.Array,
    see: See,
    first: Any,
    per_layer: tuple = (),
    constant: tuple = (),
) -> tuple[jax.Array, Any, Any]:
    """`scan`, and what `see` made of the weights: at the last layer, and stacked over all layers.

    The weights of one layer are there at a time; those of all would not fit.
    """
    block, params = nnx.split(blocks)

    def body(carry: tuple, layer: tuple[nnx.State, tuple]) -> tuple[tuple, Any]:
        (x, seen), (params, values) = carry, layer
        x, weights = nnx.merge(block, params)(x, *values, *constant, with_weights=True)
        seen, kept = see(seen, weights)
        return (x, seen), kept

    (x, last), each = jax.lax.scan(body, (x, first), (params, per_layer))
    return x, last, each


def rematerialized(function: Callable, remat: str, *, in_scan: bool) -> Callable:
    """`function`, of which the backward pass recomputes what the policy of that name says."""
    if remat == "none":
        return function
    policies = jax.checkpoint_policies
    policy = {
        "qkv": policies.dots_with_no_batch_dims_saveable,  # which keeps qkv, but no logits
        "dots": policies.dots_with_no_batch_dims_saveable,
        "full": policies.nothing_saveable,
    }[remat]
    # prevent_cse guards against undoing the rematerialisation, which a scan cannot do anyway.
    return jax.checkpoint(function, prevent_cse=not in_scan, policy=policy)
