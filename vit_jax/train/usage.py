"""What a run uses of its machines, told at the start and measured on the way."""

import dataclasses
import math
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vit_jax.models.config import NetworkConfig
from vit_jax.models.flops import multiply_adds
from vit_jax.train.chips import chip_of
from vit_jax.train.clock import Pace
from vit_jax.train.config import RunConfig
from vit_jax.train.program import Program
from vit_jax.train.sharding import path_name

_LARGEST = 3  # tensors to name


@dataclasses.dataclass(frozen=True)
class Peak:
    """FLOP/s that a device can reach, and whose word that is."""

    flops: float
    source: str


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """What pace is measured against."""

    devices: int
    cores: int  # of all devices
    flops_per_image: float  # of the model: what is computed twice (remat) counts once
    peak: Peak  # of one device

    def measure(self, pace: Pace, seconds: float, before: Mapping[str, float]) -> dict[str, float]:
        """Numbers for the record; `seconds` is the age of the run, and `before` what it had used
        when this process took over, maybe from another number of cores."""
        here = seconds - before["seconds"]
        per_device = pace.images_per_second / self.devices
        return {
            "images_per_second": pace.images_per_second,
            "images_per_second_per_device": per_device,
            "data_wait": pace.data_wait,
            "model_flops_utilization": per_device * self.flops_per_image / self.peak.flops,
            "seconds": seconds,
            "core_hours": before["core_hours"] + self.cores * here / 3600,
            **_memory(),
        }

    def text(self) -> str:
        """One line."""
        return (
            f"model FLOPs: {self.flops_per_image / 1e9:,.3g} G an image; utilisation is of "
            f"{self.peak.flops / 1e12:,.3g} TFLOP/s a device ({self.peak.source})"
        )


# What differs between two runs of the same numbers.
MEASURED = (
    "images_per_second", "images_per_second_per_device", "data_wait", "model_flops_utilization",
    "seconds", "core_hours", "goodput", "device_memory_gb", "host_memory_gb", "bad_images",
)  # fmt: skip


def yardstick(
    config: RunConfig, network: NetworkConfig, teacher: NetworkConfig | None
) -> Yardstick:
    """For a run of this network on all devices there are."""
    device = jax.local_devices()[0]
    chip = chip_of(device)
    return Yardstick(
        devices=jax.device_count(),
        cores=jax.device_count() * (chip.cores if chip else 1),
        flops_per_image=flops_per_image(config, network, teacher),
        peak=peak_of(device, network.dtype),
    )


def flops_per_image(
    config: RunConfig, network: NetworkConfig, teacher: NetworkConfig | None
) -> float:
    """Of a training step: those that are needed, whatever is computed twice to save memory."""
    # Backward is twice forward; a teacher goes forward only. A FLOP is half a multiply-add.
    predicted = _prediction(config, network)
    forward = multiply_adds(network, is_needed_only=not predicted) + predicted
    of_teacher = multiply_adds(teacher, is_needed_only=True) if teacher else 0
    return 2 * (3 * forward + of_teacher)


def description(config: RunConfig, program: Program, mesh: Mesh) -> list[str]:
    """The mesh, the batch, the memory: what to know before a long run, line by line."""
    hosts, devices = jax.process_count(), jax.local_device_count()
    shape = " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    tensor = mesh.shape["tensor"]
    per_device = config.batch_size * tensor // (hosts * devices * config.accumulation)
    shared = f" / {tensor} that share an image" if tensor > 1 else ""
    leaves = jax.tree_util.tree_leaves_with_path(program.state.params)
    leaves.sort(key=lambda item: math.prod(item[1].shape), reverse=True)
    state = (program.state, program.frozen)
    return [
        f"mesh: {shape}, {_many(hosts * devices, 'device')} ({jax.devices()[0].device_kind})",
        f"global batch: {config.batch_size} = {_many(hosts, 'host')} x {_many(devices, 'device')}"
        f"{shared} x {per_device} images x {config.accumulation} accumulation",
        f"state: {_bytes(bytes_on_device(state))} on each device, "
        f"{_bytes(sum(map(_whole, jax.tree.leaves(state))))} in all; parameters: "
        f"{sum(leaf.size for _, leaf in leaves):,}",
        "largest: " + "; ".join(_tensor(path, leaf) for path, leaf in leaves[:_LARGEST]),
    ]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _tensor(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> str:
    axes = "x".join(map(str, leaf.shape))
    return f"{path_name(path)} {axes} {_bytes(_on_device(leaf))} of {_bytes(_whole(leaf))}"


def bytes_on_device(tree: Any) -> int:
    """Of abstract arrays, each with its sharding."""
    return sum(map(_on_device, jax.tree.leaves(tree)))


def _on_device(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _whole(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def _prediction(config: RunConfig, network: NetworkConfig) -> float:
    """Multiply-adds of the head for masked patches, which a plain forward pass leaves out."""
    outputs = getattr(network, "patch_outputs", 0)
    return outputs and config.masked.share * math.prod(network.grid) * network.width * outputs


def _memory() -> dict[str, float]:
    """The most that this process has used so far: on its first device, where that is told."""
    unit = 1 if sys.platform == "darwin" else 1024
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    found = {"host_memory_gb": host / 1e9}
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        found["device_memory_gb"] = stats["peak_bytes_in_use"] / 1e9
    return found


def peak_of(device: jax.Device, dtype: str) -> Peak:
    """The published peak of a known chip; of any other, the rate of matmuls, tried out."""
    if chip := chip_of(device):
        return Peak(chip.peak * 1e12, f"published bfloat16 peak of {chip.name}")
    is_cpu = device.platform == "cpu"
    # Large enough to fill the device, in a chain long enough that starting it costs nothing.
    dtype, size, count = ("float32", 1024, 2) if is_cpu else (dtype, 8192, 16)
    x = jax.device_put(jnp.full((size, size), 1 / size, dtype), device)
    chain = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda _, y: y @ x, x))
    chain(x).block_until_ready()
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        chain(x).block_until_ready()
        seconds.append(time.perf_counter() - began)
    # Several CPU devices are one machine, and the matmuls had all of it.
    sharing = jax.local_device_count() if is_cpu else 1
    flops = 2 * count * size**3 / min(seconds) / sharing
    return Peak(flops, f"measured on {dtype} matmuls of {size}x{size}")
