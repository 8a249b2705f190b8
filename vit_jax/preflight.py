"""What would end a job after its machines are paid for, looked at before: on this machine, without
a device."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vit_jax.data.crop import fit_for_evaluation
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Source, check_label, where
from vit_jax.data.sources import open_source
from vit_jax.errors import RunFailed, UsageError, closest
from vit_jax.models.config import as_size
from vit_jax.tpu.plan import GIB, Site, make_plan
from vit_jax.tpu.topologies import Topology
from vit_jax.train.config import RunConfig
from vit_jax.train.loop import open_folder
from vit_jax.weights.checkpoint import latest_step
from vit_jax.weights.load import find_weights
from vit_jax.weights.paths import in_bucket, one_line, write_bytes

_IMAGES = 16  # of each split, read to the end


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    is_good: bool
    found: str  # what there is, or what is wrong


@dataclasses.dataclass(frozen=True)
class Job:
    """What is going to run, and where; on no TPU if there is no topology."""

    config: RunConfig
    workdir: str
    topology: Topology | None = None


def preflight(
    job: Job, skip: Sequence[str] = (), report: Callable[[str], None] = lambda text: None
) -> Iterator[Check]:
    """Looks at one thing after the other; what is bad does not keep it from the next."""
    for name in skip:
        if name not in CHECKS:
            raise UsageError(
                f"--skip={name}: expected some of {', '.join(CHECKS)}.{closest(name, CHECKS)}"
            )
    for name, look in CHECKS.items():
        if name in skip:
            continue
        try:
            yield Check(name, True, look(job, report))
        except (UsageError, RunFailed) as error:
            yield Check(name, False, str(error))


def _data(job: Job, report: Callable[[str], None]) -> str:
    """Every split that the run will open, and some images of it."""
    config, size = job.config, as_size(job.config.image_size)
    splits = [(config.data.name, config.data.split)]
    splits += [(measured.data, measured.split) for measured in config.evaluators.values()]
    found = []
    for name, split in dict.fromkeys(splits):
        source = open_source(name, split, size)
        _read_some(source, size, config.data.on_bad_image == "raise")
        found.append(f"{source.name} {split} has {len(source):,} images")
    return f"{'; '.join(found)}; up to {_IMAGES} of each were read"


def _read_some(source: Source, size: tuple[int, int], is_strict: bool) -> None:
    """A bad image is no reason not to start, unless the config says so; nothing but bad ones is."""
    chosen = np.unique(np.linspace(0, len(source) - 1, _IMAGES).astype(int)).tolist()
    bad = []
    for index in chosen:
        try:
            example = source[index]
            fit_for_evaluation(example["image"], size)
            check_label(source, index, example["label"])
        except BadImage as error:
            bad.append(f"{where(source, index)}: {error}")
    if len(bad) == len(chosen) or (bad and is_strict):
        raise UsageError(
            f"{source.name}: {len(bad)} of {len(chosen)} images cannot be read, as {bad[0]}"
        )


def _weights(job: Job, report: Callable[[str], None]) -> str:
    paths = list(filter(None, (job.config.init, job.config.teacher.path)))
    found = [find_weights(path) for path in paths]
    return ", ".join(f"{place.path} is {place.network.name}" for place in found) or "none needed"


def _workdir(job: Job, report: Callable[[str], None]) -> str:
    folder = open_folder(job.workdir, job.config)
    if in_bucket(folder.path):
        _try_writing(folder.path / ".preflight")
    step = latest_step(folder.checkpoints)
    then = "a new run" if step is None else f"goes on from step {step}"
    return f"{folder.path} can be written to; {then}"


def _try_writing(path: pathlib.Path) -> None:
    try:
        write_bytes(path, b"")
        path.unlink()
    except Exception as error:  # of many kinds, from the network and from Google's libraries
        raise UsageError(f"{path.parent} cannot be written to: {one_line(error)}") from error


def _plan(job: Job, report: Callable[[str], None]) -> str:
    if job.topology is None:
        return "no TPU: not looked at"
    plan = make_plan(job.config, Site.of(job.topology, report))
    memory = f"{plan.memory.total / GIB:.1f} of {plan.hbm / GIB:.0f} GiB a chip"
    if not plan.fits:
        raise RunFailed(
            f"{plan.model} needs {memory} on {job.topology.text()}: `vit-jax plan` with the same "
            f"flags says what would fit"
        )
    how = "" if plan.is_compiled else " (estimated: no TPU compiler here)"
    rate = f", {plan.images_per_second:,.0f} images/s" if plan.cost else ""
    hours = f", {plan.hours:,.1f} hours in all" if plan.cost else ""
    return f"{plan.model} fits {job.topology.text()}: {memory}{rate}{hours}{how}"


CHECKS: dict[str, Callable[[Job, Callable[[str], None]], str]] = {
    "data": _data,
    "weights": _weights,
    "workdir": _workdir,
    "plan": _plan,
}
