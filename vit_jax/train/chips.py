"""What one TPU can do, by the name that its maker gives it: the denominators of utilisation."""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # launchers read the table, and start in no time
    import jax


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


def chip_of(device: "jax.Device") -> Chip | None:
    """The chip that a device is, if it is one of CHIPS."""
    return next((chip for chip in CHIPS if device.device_kind in chip.device_kinds), None)
