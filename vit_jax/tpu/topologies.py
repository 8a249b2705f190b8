"""The TPU slices that can be rented, by the names under which they are rented."""

import dataclasses
import re

from vit_jax.errors import UsageError
from vit_jax.train.chips import V4, V5E, V5P, V6E, Chip


@dataclasses.dataclass(frozen=True)
class Generation:
    """Slices of one kind of chip. The number in a slice's name counts cores: two a chip on v4
    and v5p."""

    prefix: str  # of the slice's name
    chip: Chip


GENERATIONS = (
    Generation("v4", V4),
    Generation("v5p", V5P),
    Generation("v5litepod", V5E),
    Generation("v6e", V6E),
)

# Chips -> shape of the slice, for flat (v5e, v6e) and cubic (v4, v5p) interconnects.
_FLAT = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBIC = {
    4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8",
    256: "4x8x8", 512: "8x8x8", 1024: "8x8x16",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Topology:
    """One slice."""

    name: str
    generation: Generation
    chips: int
    compiler_topology: str  # what libtpu calls it


def topology(name: str) -> Topology:
    """ "v5litepod-16" -> 16 chips of v5e, 4x4."""
    match = re.fullmatch(r"(\w+)-(\d+)", name)
    generation = next(
        (g for g in GENERATIONS if match and match[1] in (g.prefix, g.chip.name)), None
    )
    if generation is None:
        raise UsageError(
            f"unknown topology {name!r}: expected GENERATION-SIZE as in v5litepod-16, with "
            f"GENERATION one of {', '.join(g.prefix for g in GENERATIONS)}"
        )
    shapes = _CUBIC if generation.chip.cores == 2 else _FLAT
    chips, rest = divmod(int(match[2]), generation.chip.cores)
    if rest or chips not in shapes:
        sizes = ", ".join(str(size * generation.chip.cores) for size in shapes)
        raise UsageError(f"{name}: {generation.prefix} comes in sizes {sizes}")
    return Topology(name, generation, chips, f"{generation.chip.name}:{shapes[chips]}")
