"""A run worked out on paper: everything that is decided before a device holds a number.

The trainer executes a Program; the planner compiles the same one for hardware it does not have.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.data.source import Source
from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig
from vit_jax.models.network import graphdef, init_params
from vit_jax.train.config import RunConfig, network_config
from vit_jax.train.durations import to_steps
from vit_jax.train.objectives import classification
from vit_jax.train.optimizer import make_optimizer, make_schedule
from vit_jax.train.sharding import batch_sharding, optimizer_shardings, param_shardings
from vit_jax.train.step import TrainState, first_state, make_train_step


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled parts of a run and the shapes that flow through them."""

    network: NetworkConfig
    graphdef: nnx.GraphDef
    total_steps: int
    state: TrainState  # abstract, each leaf with its sharding
    batch: dict[str, jax.ShapeDtypeStruct]  # abstract, likewise
    init: Callable[[jax.Array], TrainState]  # a key -> the state before step 0, born sharded
    start_from: Callable[[Any], TrainState]  # parameters -> likewise, with fresh moments
    step: Any  # jitted (state, batch) -> (state, metrics), donates the state


def make_program(config: RunConfig, source: Source, mesh: Mesh) -> Program:
    """Works out the run that `config` describes on `source` and `mesh`."""
    network = network_config(config, source.num_classes)
    in_steps = functools.partial(steps_of, config, len(source))
    total_steps = in_steps(config.total, "total")
    if total_steps < 1:
        raise UsageError(f"config.total={config.total!r} is less than one step of training")
    warmup, cooldown, timescale = (
        in_steps(getattr(config.optimizer, key), f"optimizer.{key}", total_steps)
        for key in ("warmup", "cooldown", "timescale")
    )
    schedule = make_schedule(config.optimizer, warmup, total_steps, cooldown, timescale)
    optimizer = make_optimizer(config.optimizer, schedule)

    def start_from(params: Any) -> TrainState:
        return first_state(params, optimizer, config.optimizer.polyak)

    def init(key: jax.Array) -> TrainState:
        return start_from(init_params(network, key))

    shapes = jax.eval_shape(init, jax.random.key(0))
    shardings = _state_shardings(shapes, optimizer, mesh)
    step = make_train_step(
        graphdef(network),
        classification(config.loss, config.label_smoothing),
        optimizer,
        schedule,
        config,
        source.num_classes,
    )
    return Program(
        network=network,
        graphdef=graphdef(network),
        total_steps=total_steps,
        state=jax.tree.map(_with_sharding, shapes, shardings),
        batch=_abstract_batch(config, network, source, mesh),
        init=jax.jit(init, out_shardings=shardings),
        start_from=jax.jit(start_from, out_shardings=shardings),
        step=jax.jit(
            step,
            out_shardings=(shardings, NamedSharding(mesh, P())),
            donate_argnums=0,
        ),
    )


def steps_of(
    config: RunConfig, dataset_size: int, duration: str, what: str, total_steps: int | None = None
) -> int:
    """A duration of this run in steps."""
    return to_steps(
        duration,
        f"config.{what}",
        batch_size=config.batch_size,
        dataset_size=dataset_size,
        total_steps=total_steps,
    )


def _state_shardings(
    shapes: TrainState, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    params, copied = param_shardings(shapes.params, mesh), NamedSharding(mesh, P())
    return TrainState(
        step=copied,
        params=params,
        opt_state=optimizer_shardings(optimizer, shapes, params, mesh),
        average=params if shapes.average else {},
        bad_steps=copied,
        bad_in_a_row=copied,
    )


def _abstract_batch(
    config: RunConfig, network: NetworkConfig, source: Source, mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = batch_sharding(mesh, config.batch_size, config.accumulation)
    label = source[0]["label"]
    image_shape = (config.batch_size, *network.image_size, network.channels)
    return {
        "image": jax.ShapeDtypeStruct(image_shape, jnp.uint8, sharding=sharding),
        "label": jax.ShapeDtypeStruct(
            (config.batch_size, *label.shape), label.dtype, sharding=sharding
        ),
    }


def _with_sharding(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
