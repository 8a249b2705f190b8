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
def multiply_adds(config: NetworkConfig) -> int:
    """Of matmuls and convolutions, for one image."""
    image = jax.ShapeDtypeStruct((1, *config.image_size, config.channels), jnp.float32)
    if isinstance(config, ViTConfig):  # a kernel computes more than it says, and in tiles
        config = dataclasses.replace(config, attention="plain")
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
