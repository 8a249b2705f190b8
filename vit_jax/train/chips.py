"""What one chip can do, by the name that its maker gives it: the denominators of utilisation."""

import dataclasses
import time

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of TPU. Memory in GB, peak in dense bfloat16 TFLOP/s, bandwidth in TB/s."""

    name: str  # as the compiler calls it
    device_kind: str  # as JAX calls it
    cores: int  # of which JAX sees one device
    hbm: float
    peak: float
    bandwidth: float


V4 = Chip("v4", "TPU v4", 2, 32, 275, 1.2)
V5P = Chip("v5p", "TPU v5", 2, 95, 459, 2.77)
V5E = Chip("v5e", "TPU v5 lite", 1, 16, 197, 0.82)
V6E = Chip("v6e", "TPU v6 lite", 1, 32, 918, 1.64)
CHIPS = (V4, V5P, V5E, V6E)


@dataclasses.dataclass(frozen=True)
class Peak:
    """FLOP/s that a device can reach, and whose word that is."""

    flops: float
    source: str


def chip_of(device: jax.Device) -> Chip | None:
    """The chip that a device is, if it is one of CHIPS."""
    return next((chip for chip in CHIPS if chip.device_kind == device.device_kind), None)


def peak_of(device: jax.Device) -> Peak:
    """The published peak of a known chip; of any other, the rate of a large matmul, tried out."""
    if chip := chip_of(device):
        return Peak(chip.peak * 1e12, f"published bfloat16 peak of {chip.name}")
    size, seconds = 1024, []
    x = jax.device_put(jnp.ones((size, size), jnp.float32), device)
    matmul = jax.jit(jnp.matmul)
    matmul(x, x).block_until_ready()
    for _ in range(5):
        began = time.perf_counter()
        matmul(x, x).block_until_ready()
        seconds.append(time.perf_counter() - began)
    # Several CPU devices are one machine, and the matmul had all of it.
    sharing = jax.local_device_count() if device.platform == "cpu" else 1
    return Peak(2 * size**3 / min(seconds) / sharing, "measured float32 matmul")
