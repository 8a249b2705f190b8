"""A step that does not fit: which knob makes it fit, tried by compiling the whole step with it."""

import dataclasses
from collections.abc import Callable, Iterator

from vit_jax.errors import UsageError
from vit_jax.tpu.plan import Plan, Site, make_plan, rough_memory
from vit_jax.train.config import RunConfig
from vit_jax.train.sharding import mesh_sizes

REMAT = ("none", "qkv", "dots", "full")
_TRIES = 3  # compilations for each knob


@dataclasses.dataclass(frozen=True)
class Trial:
    """One knob turned as far as it takes to fit, or as far as it goes."""

    knob: str
    flags: tuple[str, ...]  # to add to the command line
    config: RunConfig
    plan: Plan
    saved: int  # bytes per device


def advice(config: RunConfig, plan: Plan, site: Site) -> list[Trial]:
    """For a plan that does not fit: a trial for each knob that can be turned, in the order in which
    to consider them; where none is enough alone, all that keep the batch together."""
    scale = plan.memory.total / rough_memory(config, site).total
    trials = []
    for knob, turned in KNOBS.items():
        trial = _try(knob, config, plan, site, turned(config, site), scale)
        if trial:
            trials.append(trial)
    if not any(trial.plan.fits for trial in trials):
        trials += _together(config, plan, site, trials)
    return trials


def flags_of(old: RunConfig, new: RunConfig) -> tuple[str, ...]:
    """What to type to come from one to the other, as far as knobs go."""
    values = {
        "accumulation": lambda c: c.accumulation,
        "model.remat": lambda c: c.model.remat,
        "mesh.replica": lambda c: c.mesh.replica,
        "mesh.fsdp": lambda c: c.mesh.fsdp,
        "mesh.tensor": lambda c: c.mesh.tensor,
        "batch_size": lambda c: c.batch_size,
    }
    return tuple(
        f"--config.{key}={value(new)}" for key, value in values.items() if value(new) != value(old)
    )


def _try(
    knob: str,
    config: RunConfig,
    plan: Plan,
    site: Site,
    candidates: Iterator[RunConfig],
    scale: float,
) -> Trial | None:
    """The first candidate that fits; else the last. `scale` corrects the estimate that chooses
    which of them are worth a compilation."""
    chosen = []
    for candidate in candidates:
        try:
            rough = rough_memory(candidate, site).total
        except UsageError:  # it does not divide
            continue
        chosen.append((rough * scale, candidate))
    hopeful = [candidate for rough, candidate in chosen if rough <= 1.1 * plan.hbm]
    last = None
    for candidate in (hopeful or [candidate for _, candidate in chosen[-1:]])[:_TRIES]:
        tried = make_plan(candidate, site)
        saved = plan.memory.total - tried.memory.total
        last = Trial(knob, flags_of(config, candidate), candidate, tried, saved)
        if tried.fits:
            break
    return last


def _together(config: RunConfig, plan: Plan, site: Site, trials: list[Trial]) -> list[Trial]:
    turned = {trial.knob: trial.config for trial in trials}
    combined = dataclasses.replace(
        config,
        accumulation=turned.get("accumulation", config).accumulation,
        model=turned.get("remat", config).model,
        mesh=turned.get("fsdp", config).mesh,
    )
    found = _try("together", config, plan, site, iter([combined]), 1.0)
    return [found] if found else []


def _accumulation(config: RunConfig, site: Site) -> Iterator[RunConfig]:
    parts = config.accumulation * 2
    while parts <= config.batch_size:
        yield dataclasses.replace(config, accumulation=parts)
        parts *= 2


def _remat(config: RunConfig, site: Site) -> Iterator[RunConfig]:
    for remat in REMAT[REMAT.index(config.model.remat) + 1 :]:
        yield dataclasses.replace(config, model=dataclasses.replace(config.model, remat=remat))


def _axis(config: RunConfig, site: Site, axis: str, most: int) -> Iterator[RunConfig]:
    size = 2 * getattr(config.mesh, axis)
    while 0 < size <= most:
        mesh = dataclasses.replace(config.mesh, replica=-1, **{axis: size})
        yield dataclasses.replace(config, mesh=mesh)
        size *= 2


def _fsdp(config: RunConfig, site: Site) -> Iterator[RunConfig]:
    yield from _axis(config, site, "fsdp", site.topology.devices // site.topology.slices)


def _tensor(config: RunConfig, site: Site) -> Iterator[RunConfig]:
    # Beyond the chips of a host its traffic costs more than its memory is worth.
    yield from _axis(config, site, "tensor", 8)


def _batch(config: RunConfig, site: Site) -> Iterator[RunConfig]:
    sizes = mesh_sizes(config.mesh, site.topology.devices, site.topology.slices)
    least = sizes[0] * sizes[1] * config.accumulation
    batch = config.batch_size // 2
    while batch >= least:
        yield dataclasses.replace(config, batch_size=batch)
        batch //= 2


KNOBS: dict[str, Callable[[RunConfig, Site], Iterator[RunConfig]]] = {
    "accumulation": _accumulation,
    "remat": _remat,
    "fsdp": _fsdp,
    "tensor": _tensor,
    "batch": _batch,
}
