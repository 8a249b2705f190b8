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
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.data.source import Source, some_label
from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, ViTConfig
from vit_jax.models.fused_attention import Sizes
from vit_jax.models.network import abstract_params, graphdef, init_params
from vit_jax.train.chips import chip_of
from vit_jax.train.class_weights import class_weights
from vit_jax.train.compiler import options_for
from vit_jax.train.config import RunConfig, network_config
from vit_jax.train.durations import BY_SIZE, steps_by_size, to_steps
from vit_jax.train.learned import split, which_learn
from vit_jax.train.masked_patch import masked_patch, patch_outputs
from vit_jax.train.objectives import Metrics, Objective, Teacher, classification
from vit_jax.train.optimizer import check_patterns, make_optimizer, make_schedule
from vit_jax.train.sharding import batch_sharding, optimizer_shardings, param_shardings
from vit_jax.train.step import (
    Batch,
    TrainState,
    first_state,
    make_train_step,
)
from vit_jax.weights.lora import GROUP as LORA


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled parts of a run and the shapes that flow through them."""

    network: NetworkConfig
    graphdef: nnx.GraphDef
    weights: Callable[[Any], Any]  # a state's parameters -> those of the network
    total_steps: int
    schedule: optax.Schedule  # applied steps -> the learning rate
    state: TrainState  # abstract, each leaf with its sharding
    batch: dict[str, jax.ShapeDtypeStruct]  # abstract, likewise
    frozen: Any  # abstract, likewise: parameters of a teacher, or an empty dict
    init: Callable[[jax.Array], TrainState]  # a key -> the state before step 0, born sharded
    start_from: Callable[[Any], TrainState]  # parameters -> likewise, with fresh moments
    step: Any  # jitted (state, batch, frozen) -> (state, metrics), donates the state

    def lower(self) -> jax.stages.Lowered:
        """The step, ready to be compiled."""
        return self.step.lower(self.state, self.batch, self.frozen)


def make_program(
    config: RunConfig,
    source: Source,
    mesh: Mesh,
    *,
    init: NetworkConfig | None = None,
    teacher: NetworkConfig | None = None,
) -> Program:
    """Works out the run that `config` describes on `source` and `mesh`: the networks that it
    starts from and learns from are these."""
    network = _network(config, source, init)
    _check_lora(config, network)
    in_steps = functools.partial(steps_of, config, len(source))
    total_steps = total_steps_of(config, source)
    warmup, cooldown, timescale = (
        in_steps(getattr(config.optimizer, key), f"optimizer.{key}", total_steps)
        for key in ("warmup", "cooldown", "timescale")
    )
    schedule = make_schedule(config.optimizer, warmup, total_steps, cooldown, timescale)
    optimizer = make_optimizer(config.optimizer, schedule)

    def with_factors(params: Any) -> Any:
        return config.lora.with_factors(params, jax.random.key(config.seed))

    stored = jax.eval_shape(with_factors, abstract_params(network))
    check_patterns(config.optimizer, stored)
    groups = (LORA, "head") if config.lora.rank else ()
    learn = which_learn(config.optimizer.rate_multipliers, stored, groups)

    def start_from(params: Any) -> TrainState:
        return first_state(with_factors(params), learn, optimizer, config.optimizer.polyak)

    def init(key: jax.Array) -> TrainState:
        return start_from(init_params(network, key))

    here = decided(network, mesh)
    definition = graphdef(here)

    def to_model(params: Any) -> nnx.Module:
        return nnx.merge(definition, config.lora.merged(params))

    shapes = jax.eval_shape(init, jax.random.key(0))
    shardings = _state_shardings(shapes, learn, optimizer, mesh)
    step = make_train_step(
        to_model,
        learn,
        _objective(config, source, teacher and decided(teacher, mesh)),
        optimizer,
        schedule,
        config,
        source.num_classes,
        on_cpu=_is_cpu(mesh),
    )
    frozen = abstract_params(teacher) if teacher else {}
    try:
        frozen_shardings = param_shardings(frozen, mesh)
    except UsageError as error:
        raise UsageError(f"the teacher: {error}") from error

    def step_on_mesh(state: TrainState, batch: Batch, frozen: Any) -> tuple[TrainState, Metrics]:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # for models/activations.py
            return step(state, batch, frozen)

    return Program(
        network=network,
        graphdef=definition,
        weights=jax.jit(config.lora.merged) if config.lora.rank else lambda params: params,
        total_steps=total_steps,
        schedule=schedule,
        state=jax.tree.map(_with_sharding, shapes, shardings),
        batch=_abstract_batch(config, network, source, mesh),
        frozen=jax.tree.map(_with_sharding, frozen, frozen_shardings),
        init=jax.jit(init, out_shardings=shardings),
        start_from=jax.jit(start_from, out_shardings=shardings),
        step=jax.jit(
            step_on_mesh,
            out_shardings=(shardings, NamedSharding(mesh, P())),
            donate_argnums=0,
            compiler_options=options_for(mesh, here),
        ),
    )


def decided(network: NetworkConfig, mesh: Mesh | AbstractMesh) -> NetworkConfig:
    """`network` as these devices compute it, which need not be here: attention "auto" is decided.

    (That of a saved network is not: it may be loaded elsewhere.)
    """
    if not isinstance(network, ViTConfig):
        return network
    if _is_cpu(mesh):
        if network.attention == "auto":
            network = dataclasses.replace(network, attention="flat")
        if network.remat == "none" and network.stem_stages is None:
            # To write the outputs of GELU, norms and softmax to memory and read them again costs a
            # CPU as much as to compute them twice, and without them a step needs 40 % less memory.
            # (Flat blocks always do so.)
            network = dataclasses.replace(network, remat="dots")
    if network.attention != "auto":
        return network
    sizes = Sizes(
        network.tokens,
        network.tokens,
        network.heads // mesh.shape["tensor"],
        network.width // network.heads,
        network.tokens,
    )
    if isinstance(mesh, AbstractMesh):  # of a slice that is planned for: a TPU, whichever
        is_fused = True
    else:
        chip = chip_of(mesh.devices.flat[0])
        is_fused = chip is not None and sizes.vmem_bytes(network.dtype) <= chip.vmem * 2**20
    return dataclasses.replace(network, attention="fused" if is_fused else "plain")


def _is_cpu(mesh: Mesh | AbstractMesh) -> bool:
    return not isinstance(mesh, AbstractMesh) and mesh.devices.flat[0].platform == "cpu"


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


def total_steps_of(config: RunConfig, source: Source) -> int:
    """The length of the run."""
    if config.total == BY_SIZE:
        return steps_by_size(len(source))
    steps = steps_of(config, len(source), config.total, "total")
    if steps < 1:
        raise UsageError(f"config.total={config.total!r} is less than one step of training")
    return steps


def _network(config: RunConfig, source: Source, init: NetworkConfig | None) -> NetworkConfig:
    if config.loss != "masked_patch":
        return network_config(config, source.num_classes, init)
    headless = network_config(config, 0, init)
    outputs = patch_outputs(config.masked.target, headless)
    return network_config(config, 0, init, patch_outputs=outputs)


def _check_lora(config: RunConfig, network: NetworkConfig) -> None:
    if config.lora.rank and not (config.init and network.family == "vit"):
        raise UsageError(
            f"config.lora.rank={config.lora.rank}: LoRA changes the trained kernels of a "
            f"transformer's blocks; give --config.init=... of one"
        )


def _objective(config: RunConfig, source: Source, teacher: NetworkConfig | None) -> Objective:
    if config.loss == "masked_patch":
        return masked_patch(config.masked.target, config.masked.share)
    chosen = None
    if teacher:
        chosen = Teacher(graphdef(teacher), config.teacher.weight, config.teacher.temperature)
    weights = class_weights(config.class_weights, source)
    return classification(config.loss, config.label_smoothing, chosen, weights)


def _state_shardings(
    shapes: TrainState, learn: Any, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    params, copied = param_shardings(shapes.params, mesh), NamedSharding(mesh, P())
    return TrainState(
        step=copied,
        params=params,
        opt_state=optimizer_shardings(
            optimizer,
            shapes.opt_state,
            split(shapes.params, learn)[0],
            split(params, learn)[0],
            mesh,
        ),
        average=params if shapes.average else {},
        bad_steps=copied,
        bad_in_a_row=copied,
    )


def _abstract_batch(
    config: RunConfig, network: NetworkConfig, source: Source, mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = batch_sharding(mesh, config.batch_size, config.accumulation)
    label = some_label(source)
    image_shape = (config.batch_size, *network.image_size, network.channels)
    return {
        "image": jax.ShapeDtypeStruct(image_shape, jnp.uint8, sharding=sharding),
        "label": jax.ShapeDtypeStruct(
            (config.batch_size, *label.shape), label.dtype, sharding=sharding
        ),
    }


def _with_sharding(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
