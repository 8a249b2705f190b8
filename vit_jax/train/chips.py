"""What one TPU can do, by the name that its maker gives it: the denominators of utilisation."""

import dataclasses
import time

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of TPU, by what JAX sees as one device of it. Published figures of a device."""

    name: str  # as the compiler calls it
    device_kinds: tuple[str, ...]  # as JAX calls it, or may
    cores: int  # in a device
    devices: int  # in a chip
    hbm: float  # GiB
    peak: float  # dense bfloat16 TFLOP/s
    bandwidth: float  # of HBM, TB/s
    ici: float  # to the chips around it, all links together, each way, GB/s
    dcn: float  # to other slices, its share of the host's network cards, GB/s
    clock: float  # GHz: the peak over what its matrix units compute in a cycle
    vmem: int  # MiB, the memory of a core in which kernels work

    def cycles_to_move(self, size: int) -> int:
        """Bytes, to or from HBM."""
        return int(size / (self.bandwidth * 1e12) * self.clock * 1e9)


# name, kinds, cores, devices, HBM, peak, bandwidth, ICI, DCN, clock, VMEM. Published but for the
# clocks, which follow from the peak, and the DCN of v4, taken to be that of v5p, whose hosts are
# alike.
V3 = Chip("v3", ("TPU v3",), 1, 2, 16, 61.5, 0.45, 0, 0, 0.94, 16)  # its networks: not planned for
V4 = Chip("v4", ("TPU v4",), 2, 1, 32, 275, 1.2, 300, 6.25, 1.05, 16)
V5P = Chip("v5p", ("TPU v5", "TPU v5p"), 2, 1, 95, 459, 2.77, 600, 6.25, 1.75, 64)
V5E = Chip("v5e", ("TPU v5 lite", "TPU v5e"), 1, 1, 16, 197, 0.82, 200, 3.125, 1.5, 128)
V6E = Chip("v6e", ("TPU v6 lite", "TPU v6e"), 1, 1, 32, 918, 1.64, 400, 12.5, 1.75, 128)
TPU7X = Chip("tpu7x", ("TPU7x",), 1, 2, 96, 1153.5, 3.69, 300, 6.25, 2.2, 64)
CHIPS = (V3, V4, V5P, V5E, V6E, TPU7X)


@dataclasses.dataclass(frozen=True)
class Peak:
    """FLOP/s that a device can reach, and whose word that is."""

    flops: float
    source: str


def chip_of(device: jax.Device) -> Chip | None:
    """The chip that a device is, if it is one of CHIPS."""
    return next((chip for chip in CHIPS if device.device_kind in chip.device_kinds), None)


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
