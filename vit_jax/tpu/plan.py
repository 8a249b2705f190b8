"""A run on a pod, on paper: the real train step compiled by the TPU compiler, without a TPU."""

import dataclasses
import os
import pathlib
from typing import Any

import jax
from jax.experimental import topologies

from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.models.config import as_size
from vit_jax.tpu.topologies import Topology, topology
from vit_jax.train.config import RunConfig
from vit_jax.train.program import make_program
from vit_jax.train.sharding import make_mesh
from vit_jax.train.teacher import find_teacher
from vit_jax.weights.load import find_weights

GB = 1e9


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the compiler says of one step. Bytes are per chip."""

    model: str
    topology: Topology
    batch_size: int
    total_steps: int
    state_bytes: int  # parameters, moments, and the batch
    temporary_bytes: int

    @property
    def fits(self) -> bool:
        return self.state_bytes + self.temporary_bytes <= self.topology.generation.chip.hbm * GB

    def as_dict(self) -> dict[str, Any]:
        """For scripts."""
        return dataclasses.asdict(self) | {"fits": self.fits}

    def text(self) -> str:
        """For people."""
        hbm = self.topology.generation.chip.hbm
        return (
            f"{self.model} on {self.topology.name} ({self.topology.chips} chips), "
            f"batch {self.batch_size} = {self.batch_size // self.topology.chips} per chip, "
            f"{self.total_steps} steps\n"
            f"memory per chip: state {self.state_bytes / GB:.2f} GB + temporaries "
            f"{self.temporary_bytes / GB:.2f} GB of {hbm:.0f} GB: "
            f"{'fits' if self.fits else 'does not fit'}"
        )


def make_plan(config: RunConfig, topology_name: str) -> Plan:
    """Compiles the train step of `config` for a TPU slice; needs libtpu (the [tpu] extra)."""
    slice_ = topology(topology_name)
    source = open_source(config.data.name, config.data.split, as_size(config.image_size))
    mesh = make_mesh(config.mesh, tpu_devices(slice_))
    teacher = find_teacher(config, source)
    init = find_weights(pathlib.Path(config.init).expanduser()) if config.init else None
    program = make_program(
        config, source, mesh, init=init and init.network, teacher=teacher and teacher.network
    )
    try:
        compiled = program.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        line = str(error).splitlines()[0]
        raise UsageError(
            f"does not fit on {topology_name}: {line} Try --config.model.remat=full, a smaller "
            f"batch_size or a larger slice"
        ) from error
    memory = compiled.memory_analysis()
    return Plan(
        model=program.network.name,
        topology=slice_,
        batch_size=config.batch_size,
        total_steps=program.total_steps,
        state_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
    )


def tpu_devices(slice_: Topology) -> list[jax.Device]:
    """Stand-ins for the slice's devices, to compile for."""
    # libtpu would otherwise ask a metadata server about the machine it is on, and refuse to load
    # beside another process that uses it.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    options = {"chip_config_name": "megacore"} if slice_.generation.prefix == "v4" else {}
    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=slice_.compiler_topology, **options
        )
    except (RuntimeError, NotImplementedError) as error:
        raise UsageError(
            f"no TPU compiler for {slice_.name} here: pip install 'vit_jax[tpu]' "
            f"({str(error).splitlines()[0]})"
        ) from error
    return list(description.devices)
