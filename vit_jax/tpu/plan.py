"""A run on a pod, on paper: the real train step compiled by the TPU compiler, without a TPU."""

import dataclasses
import os
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh

from vit_jax.data.source import Source
from vit_jax.data.sources import open_source
from vit_jax.models.config import NetworkConfig, as_size
from vit_jax.tpu.cost import Cost, Machine, replay
from vit_jax.tpu.estimate import Memory, activation_bytes, estimate, state_memory
from vit_jax.tpu.hlo import parse
from vit_jax.tpu.topologies import Topology
from vit_jax.train.config import RunConfig
from vit_jax.train.program import Program, make_program
from vit_jax.train.sharding import AXES, make_mesh, mesh_sizes
from vit_jax.train.teacher import find_teacher
from vit_jax.train.usage import flops_per_image
from vit_jax.weights.load import find_weights

GIB = 2**30

# What the compiler says when it gives up: early, by the temporaries alone, or late, by all.
_TEMPORARIES = r"RESOURCE_EXHAUSTED.*required for HLO temporaries \(([\d.]+)([KMGT])\)"
_USED = r"RESOURCE_EXHAUSTED[\s\S]*Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm"
CURVE_POINTS = 60

Report = Callable[[str], None]  # told what takes long, before it does


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the compiler says of one step, and what follows for the run. Bytes are per device."""

    model: str
    topology: Topology
    mesh: dict[str, int]
    remat: str
    batch_size: int
    accumulation: int
    total_steps: int
    fits: bool
    memory: Memory
    flops_per_image: float
    cost: Cost | None  # None: it does not fit, or there is no compiler
    is_compiled: bool
    compile_seconds: float
    curve: tuple[float, ...]  # the learning rate in CURVE_POINTS parts of the run, first to last

    @property
    def hbm(self) -> int:
        return int(self.topology.chip.hbm * GIB)

    @property
    def flops_per_step(self) -> float:
        return self.flops_per_image * self.batch_size

    @property
    def peak(self) -> float:
        """FLOP/s of all devices."""
        return self.topology.devices * self.topology.chip.peak * 1e12

    @property
    def step_seconds(self) -> float | None:
        return self.cost and self.cost.seconds

    @property
    def images_per_second(self) -> float | None:
        return self.cost and self.batch_size / self.cost.seconds

    @property
    def utilization(self) -> float | None:
        return self.cost and self.flops_per_step / self.cost.seconds / self.peak

    @property
    def hours(self) -> float | None:
        return self.cost and self.total_steps * self.cost.seconds / 3600

    @property
    def chip_hours(self) -> float | None:
        return self.cost and self.hours * self.topology.chips

    def as_dict(self) -> dict[str, Any]:
        """For scripts."""
        derived = (
            "hbm", "flops_per_step", "step_seconds", "images_per_second", "utilization", "hours",
            "chip_hours",
        )  # fmt: skip
        slice_ = self.topology
        named = {key: getattr(slice_, key) for key in ("name", "slices", "chips", "hosts")}
        return (
            dataclasses.asdict(self)
            | {key: getattr(self, key) for key in derived}
            | {"topology": named | {"chip": slice_.chip.name, "shape": slice_.gke_topology}}
        )


@dataclasses.dataclass(frozen=True)
class Site:
    """Where runs are planned: a slice and its devices, which are None where no compiler is."""

    topology: Topology
    devices: list[jax.Device] | None
    report: Report = lambda text: None

    @classmethod
    def of(cls, topology: Topology, report: Report = lambda text: None) -> "Site":
        """With a compiler if there is one; it is said if not."""
        try:
            return cls(topology, tpu_devices(topology), report)
        except NoCompiler as error:
            report(f"{error}; memory is estimated, times are unknown")
            return cls(topology, None, report)


def make_plan(config: RunConfig, site: Site) -> Plan:
    """Compiles the train step of `config` for a slice."""
    source = open_source(config.data.name, config.data.split, as_size(config.image_size))
    mesh = _mesh(config, site)
    teacher = find_teacher(config, source)
    program = _program(config, source, mesh, teacher and teacher.network)
    rough, curve = estimate(config, program), _curve(program)
    began = time.monotonic()
    memory, cost, fits = rough, None, rough.total <= site.topology.chip.hbm * GIB
    if site.devices is not None:
        site.report(f"compiling {_words(config, program, mesh)} for {site.topology.text()}")
        memory, cost, fits = _compiled(config, program, site.topology, mesh)
    return Plan(
        model=program.network.name,
        topology=site.topology,
        mesh=dict(mesh.shape),
        remat=program.network.remat,
        batch_size=config.batch_size,
        accumulation=config.accumulation,
        total_steps=program.total_steps,
        fits=fits,
        memory=memory,
        flops_per_image=flops_per_image(config, program.network, teacher and teacher.network),
        cost=cost,
        is_compiled=site.devices is not None,
        compile_seconds=time.monotonic() - began,
        curve=curve,
    )


class NoCompiler(Exception):
    """libtpu is not there, or does not know the chip."""


def tpu_devices(slice_: Topology) -> list[jax.Device]:
    """Stand-ins for the slice's devices, to compile for."""
    # libtpu would otherwise ask a metadata server about the machine it is on, complain that there
    # is no answer, and refuse to load beside another process that uses it.
    for key, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": slice_.name,
        "TPU_WORKER_HOSTNAMES": "localhost",
    }.items():
        os.environ.setdefault(key, value)
    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=slice_.compiler_topology, **slice_.compiler_options
        )
    except (RuntimeError, NotImplementedError) as error:
        raise NoCompiler(
            f"no TPU compiler for {slice_.name} here (pip install 'vit_jax[tpu]'): "
            f"{str(error).splitlines()[0]}"
        ) from error
    return list(description.devices)


def rough_memory(config: RunConfig, site: Site) -> Memory:
    """The estimate alone: no compilation."""
    source = open_source(config.data.name, config.data.split, as_size(config.image_size))
    teacher = find_teacher(config, source)
    mesh = _abstract_mesh(config, site)
    return estimate(config, _program(config, source, mesh, teacher and teacher.network))


def _program(
    config: RunConfig,
    source: Source,
    mesh: Mesh | AbstractMesh,
    teacher: NetworkConfig | None,
) -> Program:
    init = find_weights(config.init) if config.init else None
    return make_program(config, source, mesh, init=init and init.network, teacher=teacher)


def _mesh(config: RunConfig, site: Site) -> Mesh | AbstractMesh:
    if site.devices is None:
        return _abstract_mesh(config, site)
    return make_mesh(config.mesh, site.devices)


def _abstract_mesh(config: RunConfig, site: Site) -> AbstractMesh:
    sizes = mesh_sizes(config.mesh, site.topology.devices, site.topology.slices)
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _compiled(
    config: RunConfig, program: Program, slice_: Topology, mesh: Mesh
) -> tuple[Memory, Cost | None, bool]:
    stored, activations = state_memory(program), activation_bytes(config, program)
    try:
        compiled = program.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        total = _needed(str(error), sum(stored.values()))
        if total is None:
            raise
        temporaries = total - sum(stored.values())
        activations = min(activations, temporaries)
        return (
            Memory(**stored, temporaries=temporaries, activations=activations, total=total),
            None,
            False,
        )
    sizes = compiled.memory_analysis()
    # Results that take the place of an argument (the state's) need no memory of their own.
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    # What lies in HBM when most does. (temp_size_in_bytes is up to a tenth more, which no buffer
    # that the compiler dumps accounts for.)
    temporaries = sizes.peak_memory_in_bytes - sizes.argument_size_in_bytes - results
    memory = Memory(
        **stored,
        temporaries=temporaries,
        activations=min(activations, temporaries),
        total=sizes.peak_memory_in_bytes + sizes.generated_code_size_in_bytes,
    )
    per_slice = mesh.devices.reshape(-1)[: slice_.devices // slice_.slices]
    machine = Machine(slice_.chip, [device.coords for device in per_slice], slice_.slices)
    return memory, replay(parse(compiled.as_text()), machine), True


def _needed(message: str, stored: int) -> int | None:
    """Bytes that the compiler would have needed, if it gave up for want of them."""
    for pattern, already in ((_USED, 0), (_TEMPORARIES, stored)):
        if found := re.search(pattern, message):
            return already + int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2])))
    return None


def _curve(program: Program) -> tuple[float, ...]:
    """The highest rate of each part of the run: a short peak is not missed."""
    steps = np.linspace(0, program.total_steps - 1, 20 * CURVE_POINTS).astype(int)
    rates = np.asarray(jax.vmap(program.schedule)(jnp.asarray(steps)))
    return tuple(map(float, rates.reshape(CURVE_POINTS, -1).max(axis=1)))


def _words(config: RunConfig, program: Program, mesh: Mesh) -> str:
    sizes = " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    parts = f", {config.accumulation} microbatches" if config.accumulation > 1 else ""
    network = program.network
    return f"{network.name}, batch {config.batch_size}{parts}, remat {network.remat}, {sizes}"
