"""The TPU slices that can be rented: their shape, their hosts, and what everybody calls them.

The one table of slices, for the plan, the mesh and the launchers; what a chip can do is in
train/chips.py.
"""

import dataclasses
import math
import re

from vit_jax.errors import UsageError, closest
from vit_jax.train.chips import TPU7X, V4, V5E, V5P, V6E, Chip


@dataclasses.dataclass(frozen=True)
class Generation:
    """Slices of one kind of chip. The number in a slice's name counts `per_chip` a chip."""

    prefix: str  # of the slice's name, which is gcloud's accelerator type
    chip: Chip
    per_chip: int
    gke_accelerator: str  # node label cloud.google.com/gke-tpu-accelerator
    gke_machine: str  # of a node, before the number of its chips
    runtime: str | None  # gcloud's --runtime-version; None: to be had on GKE only
    dimensions: int  # of the torus


GENERATIONS = (
    Generation("v4", V4, 2, "tpu-v4-podslice", "ct4p-hightpu", "tpu-ubuntu2204-base", 3),
    Generation(
        "v5litepod", V5E, 1, "tpu-v5-lite-podslice", "ct5lp-hightpu", "v2-alpha-tpuv5-lite", 2
    ),
    Generation("v5p", V5P, 2, "tpu-v5p-slice", "ct5p-hightpu", "v2-alpha-tpuv5", 3),
    Generation("v6e", V6E, 1, "tpu-v6e-slice", "ct6e-standard", "v2-alpha-tpuv6e", 2),
    Generation("tpu7x", TPU7X, 2, "tpu7x", "tpu7x-standard", None, 3),
)

# Shapes of slices, by the dimensions of the torus.
_SHAPES = {
    2: ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    3: (
        "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16",
        "8x16x16", "16x16x16",
    ),
}  # fmt: skip

# A host has four chips, but where a slice is no larger than one host of one or of eight.
_ON_ONE_HOST = {"1x1": (1, 1, 1), "2x4": (2, 4, 1)}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice, or several equal ones that work together over the data centre's network."""

    generation: Generation
    shape: tuple[int, ...]  # of one slice
    slices: int = 1

    @property
    def name(self) -> str:
        """Of one slice: gcloud's --accelerator-type."""
        per_slice = math.prod(self.shape) * self.generation.per_chip
        return f"{self.generation.prefix}-{per_slice}"

    @property
    def chip(self) -> Chip:
        return self.generation.chip

    @property
    def chips(self) -> int:
        """In all slices, like `hosts` and `devices`."""
        return math.prod(self.shape) * self.slices

    @property
    def chips_per_host(self) -> int:
        return math.prod(_ON_ONE_HOST.get(self.gke_topology, (4,)))

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host

    @property
    def devices(self) -> int:
        """As JAX counts."""
        return self.chips * self.chip.devices

    @property
    def gke_topology(self) -> str:
        """Node label cloud.google.com/gke-tpu-topology."""
        return "x".join(map(str, self.shape))

    @property
    def gke_machine_type(self) -> str:
        return f"{self.generation.gke_machine}-{self.chips_per_host}t"

    @property
    def compiler_topology(self) -> str:
        """What libtpu calls one slice."""
        return f"{self.chip.name}:{self.gke_topology}"

    @property
    def compiler_options(self) -> dict[str, object]:
        """What libtpu must be told besides, to describe it."""
        options: dict[str, object] = {}
        if self.chip is V4:
            options["chip_config_name"] = "megacore"  # two cores that are one device
        if bounds := _ON_ONE_HOST.get(self.gke_topology):
            options["chips_per_host_bounds"] = bounds
        if self.slices > 1:
            options["num_slices"] = self.slices
        return options

    def text(self) -> str:
        """For people."""
        slices = f"{self.slices} x " if self.slices > 1 else ""
        hosts = f"{self.hosts} host{'s' * (self.hosts > 1)}"
        return f"{slices}{self.name} ({self.chips} chips of {self.chip.name}, {hosts})"


def topology(name: str, slices: int = 1) -> Topology:
    """ "v5litepod-16", or "v5e-16" -> 16 chips of v5e, 4x4."""
    match = re.fullmatch(r"(\w+)-(\d+)", name)
    found = [g for g in GENERATIONS if match and match[1] in (g.prefix, g.chip.name)]
    prefixes = [g.prefix for g in GENERATIONS]
    if not found:
        raise UsageError(
            f"unknown topology {name!r}: expected GENERATION-SIZE as in v5litepod-16, with "
            f"GENERATION one of {', '.join(prefixes)}.{closest(name.partition('-')[0], prefixes)}"
        )
    if slices < 1:
        raise UsageError(f"slices={slices}: expected 1 or more")
    [generation] = found
    shapes = [tuple(map(int, text.split("x"))) for text in _SHAPES[generation.dimensions]]
    by_size = {math.prod(shape) * generation.per_chip: shape for shape in shapes}
    if int(match[2]) not in by_size:
        sizes = ", ".join(map(str, by_size))
        raise UsageError(f"{name}: {generation.prefix} comes in sizes {sizes}")
    return Topology(generation, by_size[int(match[2])], slices)
