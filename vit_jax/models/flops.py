"""How much a network computes: the multiply-adds of its forward pass on one image.

Counted on the traced program, matmul by matmul, rather than by a formula for each family: no
formula can drift from the network it describes. Nothing is executed and nothing compiled.
(The compiler's own cost analysis counts the body of a scan once, whatever the depth.)
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import jaxprs_in_params

from vit_jax.models.config import NetworkConfig, ViTConfig
from vit_jax.models.network import abstract_params, graphdef


@functools.cache
def multiply_adds(config: NetworkConfig, *, is_needed_only: bool = False) -> int:
    """Of matmuls and convolutions, for one image.

    `is_needed_only`: without what a classifier that reads the class token does not need of its last
    block, and which is not computed where blocks are written out (fused_blocks.py). Of these it is
    a count, with what attention fills up on CPUs: of B/16 0.1 % too much.
    """
    image = jax.ShapeDtypeStruct((1, *config.image_size, config.channels), jnp.float32)
    if isinstance(config, ViTConfig):  # a kernel computes more than it says, and in tiles
        config = dataclasses.replace(config, attention="flat" if is_needed_only else "plain")
    definition = graphdef(config)
    program = jax.make_jaxpr(lambda params, x: nnx.merge(definition, params)(x))
    return _count(program(abstract_params(config), image).jaxpr)


def _count(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            outputs = equation.params["dimension_numbers"].rhs_spec[0]
            per_output = math.prod(kernel) // kernel[outputs]
            total += equation.outvars[0].aval.size * per_output
        else:
            times = equation.params["length"] if equation.primitive.name == "scan" else 1
            total += times * sum(map(_count, jaxprs_in_params(equation.params)))
    return total
