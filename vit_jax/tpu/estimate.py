"""Memory of a step without a compiler: what is stored exactly, by sharding, the rest roughly."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.config import NetworkConfig
from vit_jax.models.network import abstract_params, graphdef
from vit_jax.train.config import RunConfig
from vit_jax.train.program import Program, decided
from vit_jax.train.usage import bytes_on_device


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on each device. `temporaries` is all that comes and goes within a step."""

    parameters: int
    moments: int
    other_state: int  # an average of the parameters, a teacher, counters
    batch: int
    temporaries: int
    activations: int  # a part of the temporaries, roughly: kept for the backward pass
    total: int  # more than the sum: arrays are padded to tiles


def estimate(config: RunConfig, program: Program) -> Memory:
    """Temporaries are gradients, activations, and one block's own that are being computed."""
    stored, activations = state_memory(program), activation_bytes(config, program)
    gradients = stored["parameters"] * (2 if config.accumulation > 1 else 1)
    depth = getattr(program.network, "depth", 1)
    working = activation_bytes(config, program, remat="none") // depth
    temporaries = gradients + activations + working
    total = sum(stored.values()) + temporaries
    return Memory(**stored, temporaries=temporaries, activations=activations, total=total)


def state_memory(program: Program) -> dict[str, int]:
    """Exactly, but for padding."""
    state = program.state
    other = (state.average, program.frozen, state.step, state.bad_steps, state.bad_in_a_row)
    return {
        "parameters": bytes_on_device(state.params),
        "moments": bytes_on_device(state.opt_state),
        "other_state": bytes_on_device(other),
        "batch": bytes_on_device(program.batch),
    }


def activation_bytes(config: RunConfig, program: Program, remat: str | None = None) -> int:
    """What a backward pass finds of its forward pass, of the images that a device has at once."""
    mesh = program.state.step.sharding.mesh
    network = decided(program.network, mesh)
    if remat is not None:
        network = dataclasses.replace(network, remat=remat)
    images = config.batch_size // (mesh.shape["replica"] * mesh.shape["fsdp"])
    # The tensor axis splits most of it: heads and hidden units.
    return _per_image(network) * images // config.accumulation // mesh.shape["tensor"]


@functools.cache
def _per_image(network: NetworkConfig) -> int:
    """The difference that one image makes; parameters are kept as well, but once."""
    definition, params = graphdef(network), abstract_params(network)

    def kept(images: jax.Array) -> int:
        def loss(params: object) -> jax.Array:
            return nnx.merge(definition, params)(images).sum()

        backward = jax.eval_shape(lambda params: jax.vjp(loss, params)[1], params)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(backward))

    def batch(size: int) -> jax.ShapeDtypeStruct:
        return jnp.zeros((size, *network.image_size, network.channels))

    return kept(batch(2)) - kept(batch(1))
