"""The same run computed in other ways: meshes, remat policies, microbatches, ranked by speed.

The global batch stays, so that every row trains the same network; the images that a chip has at
once are chosen by the number of microbatches.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator

from vit_jax.errors import UsageError
from vit_jax.tpu.advice import REMAT, flags_of
from vit_jax.tpu.plan import GIB, Plan, Site, make_plan, rough_memory
from vit_jax.train.config import RunConfig

TENSOR = (1, 2, 4)
ACCUMULATION = (1, 2, 4, 8)

# The estimate is rough: what it sees a little above the chip's memory is compiled all the same.
_SLACK = 1.3

# Guesses that order the candidates, so that a few compilations see the likeliest ones first.
_RECOMPUTED = {"none": 1.0, "qkv": 1.08, "dots": 1.1, "full": 1.33}
_TRAFFIC = {"fsdp": 0.01, "tensor": 0.06, "accumulation": 0.02}  # for each doubling


@dataclasses.dataclass(frozen=True)
class Choice:
    """One way to compute the run."""

    flags: tuple[str, ...]  # to add to the command line
    plan: Plan


def search(config: RunConfig, site: Site, most: int) -> list[Choice]:
    """Compiles up to `most` candidates and returns those that fit, the fastest first."""
    if site.devices is None:
        raise UsageError("--search needs the TPU compiler: pip install 'vit_jax[tpu]'")
    candidates = list(itertools.islice(_promising(config, site), most))
    if not candidates:
        raise UsageError(
            f"nothing to search: no mesh or remat policy lets batch_size={config.batch_size} fit "
            f"{site.topology.text()}; choose a smaller batch or more chips"
        )
    found, began = [], time.monotonic()
    for done, candidate in enumerate(candidates):
        seconds = (time.monotonic() - began) / done * (len(candidates) - done) if done else None
        eta = f", ETA {seconds / 60:.0f} min" if seconds else ""
        site.report(f"search: {done + 1} of {len(candidates)}{eta}, {len(found)} fit so far")
        plan = make_plan(candidate, site)
        if plan.fits:
            found.append(Choice(flags_of(config, candidate), plan))
    return sorted(found, key=lambda choice: choice.plan.step_seconds)


def _promising(config: RunConfig, site: Site) -> Iterator[RunConfig]:
    """Candidates that divide and may fit, those first that are likely to be fast."""
    for candidate in sorted(_candidates(config, site), key=_guess):
        try:
            rough = rough_memory(candidate, site).total
        except UsageError:  # something does not divide
            continue
        if rough <= _SLACK * site.topology.chip.hbm * GIB:
            yield candidate


def _candidates(config: RunConfig, site: Site) -> Iterator[RunConfig]:
    slice_ = site.topology
    within = slice_.devices // slice_.slices
    fsdp = sorted({1, slice_.chips_per_host * slice_.chip.devices, min(within, 64), within})
    for tensor, shared, remat, parts in itertools.product(TENSOR, fsdp, REMAT, ACCUMULATION):
        if within % (tensor * shared):
            continue
        replica = slice_.devices // (tensor * shared)
        if config.batch_size % (replica * shared * parts):
            continue
        mesh = dataclasses.replace(config.mesh, replica=-1, fsdp=shared, tensor=tensor)
        model = dataclasses.replace(config.model, remat=remat)
        yield dataclasses.replace(config, mesh=mesh, model=model, accumulation=parts)


def _guess(config: RunConfig) -> float:
    sizes = {**dataclasses.asdict(config.mesh), "accumulation": config.accumulation}
    traffic = sum(share * math.log2(sizes[key]) for key, share in _TRAFFIC.items())
    return _RECOMPUTED[config.model.remat] * (1 + traffic)
