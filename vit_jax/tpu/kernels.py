"""What a call of our own kernels costs; the compiler has no estimate of them.

A call takes the larger of two: the bundles of instructions that the compiler schedules for one
step of the grid, one in a cycle, times the steps; and the bytes of its operands and results over
the bandwidth of HBM, even where the compiler has put some into VMEM. Waits for memory inside a step
are in neither. The kernels have no loops but their grid. Schedules are read from what libtpu writes
when it is told so as it is loaded: another process compiles the kernel alone. What was found is
kept, by shape, code and compiler.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax

from vit_jax.models import fused_attention, fused_norm
from vit_jax.tpu.hlo import Instruction
from vit_jax.tpu.topologies import GENERATIONS, Topology
from vit_jax.train.chips import Chip
from vit_jax.weights.paths import cache_folder

# By the names that they say in a compiled program: how to get one, with arrays for it.
KERNELS: dict[str, Callable[..., Any]] = {
    fused_attention.FORWARD: fused_attention.example,
    fused_attention.BACKWARD: fused_attention.example,
    fused_norm.FORWARD: fused_norm.example,
    fused_norm.BACKWARD: fused_norm.example,
}
_CODE = (fused_attention, fused_norm)
_SCHEDULE = "schedule-analysis_final_bundles.txt"
_BUNDLES = re.compile(r"total scheduled bundles:\s*(\d+)")
_IMAGES = 64  # too many for VMEM: they come from HBM, as in a step


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One of KERNELS for one kind of chip, and all that its schedule depends on."""

    name: str
    dtype: str
    options: tuple[tuple[str, float], ...]
    chip: str


def kernel_cycles(instruction: Instruction, chip: Chip) -> int | None:
    """Of a call in a compiled program; None: it is no kernel that is known here."""
    text = instruction.attribute(r"kernel_metadata=(\{[^}]*\})")
    said = json.loads(text) if text else {}
    if said.get("kernel") not in KERNELS:
        return None
    name, steps, moved = said.pop("kernel"), int(said.pop("steps")), int(said.pop("bytes"))
    dtype = said.pop("dtype")
    options = tuple(sorted((key, json.loads(value)) for key, value in said.items()))
    bundles = scheduled_bundles(Kernel(name, dtype, options, chip.name))
    if bundles is None:
        return None
    computing = bundles * steps // chip.cores  # which share out the images
    return max(computing, chip.cycles_to_move(moved))


@functools.cache
def scheduled_bundles(kernel: Kernel) -> int | None:
    """Of one step of the grid; None: this compiler does not tell."""
    kept = _folder() / f"{_key(kernel)}.json"
    if kept.exists():
        return json.loads(kept.read_text())["bundles"]
    bundles = _compiled_alone(kernel)
    if bundles is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(dataclasses.asdict(kernel) | {"bundles": bundles}))
        new.replace(kept)
    return bundles


def _folder() -> pathlib.Path:
    return cache_folder() / "tpu"


def _key(kernel: Kernel) -> str:
    code = [pathlib.Path(file.__file__).read_text() for file in _CODE]
    versions = [importlib.metadata.version(name) for name in ("jax", "libtpu")]
    return hashlib.blake2b(repr((kernel, code, versions)).encode(), digest_size=16).hexdigest()


def _compiled_alone(kernel: Kernel) -> int | None:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true",
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
        }
        environment.pop("TPU_ACCELERATOR_TYPE", None)  # of the slice that is planned for
        code = "import sys, vit_jax.tpu.kernels as k; k.compile_for_its_schedule(sys.argv[1])"
        command = [sys.executable, "-c", code, json.dumps(dataclasses.asdict(kernel))]
        subprocess.run(command, env=environment, capture_output=True, check=False)
        for file in pathlib.Path(folder).glob(f"*{kernel.name}*{_SCHEDULE}"):
            if found := _BUNDLES.search(file.read_text()):
                return int(found[1])
    return None


def compile_for_its_schedule(text: str) -> None:
    """The kernel of a JSON, in a process whose libtpu writes schedules."""
    from vit_jax.tpu.plan import tpu_devices  # which needs this module

    values = json.loads(text)
    [generation] = (g for g in GENERATIONS if g.chip.name == values["chip"])
    smallest = (1, 1) if generation.dimensions == 2 else (2, 2, 1)
    one = jax.sharding.SingleDeviceSharding(tpu_devices(Topology(generation, smallest))[0])
    kernel, arrays = KERNELS[values["name"]](
        values["name"], _IMAGES, values["dtype"], **dict(values["options"])
    )
    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one) for x in arrays]
    jax.jit(kernel).lower(*arrays).compile()
