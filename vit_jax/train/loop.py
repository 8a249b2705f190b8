"""The training run, from its config to its summary. Starting it again resumes it."""

import collections
import contextlib
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
from flax import nnx

from vit_jax.data.batches import local_rows, on_device, train_batches, train_indices
from vit_jax.data.source import Source
from vit_jax.data.sources import open_source
from vit_jax.errors import Diverged, Stopped, UsageError
from vit_jax.evaluate.evaluators import Evaluator, make_evaluator
from vit_jax.models.config import NetworkConfig, as_size, config_to_dict
from vit_jax.train.acts import CHECKPOINT, COMPILE, DATA_WAIT, EVALUATION, STEP, Acts
from vit_jax.train.bad_images import BadImages
from vit_jax.train.cadence import Cadence
from vit_jax.train.checkpoint import Checkpoints
from vit_jax.train.clock import Clock
from vit_jax.train.cluster import is_lead
from vit_jax.train.config import RunConfig, changes, run_config
from vit_jax.train.environment import environment
from vit_jax.train.lock import only_job
from vit_jax.train.metrics import MetricsWriter, drop_records_after
from vit_jax.train.program import Program, make_program, steps_of, total_steps_of
from vit_jax.train.progress import Progress
from vit_jax.train.sharding import make_mesh
from vit_jax.train.signals import StopSignals
from vit_jax.train.step import TrainState
from vit_jax.train.teacher import TeacherWeights, find_teacher
from vit_jax.train.usage import Yardstick, description, yardstick
from vit_jax.train.watch import Watch
from vit_jax.weights.checkpoint import latest_step, what_is_left
from vit_jax.weights.load import find_weights, load_params
from vit_jax.weights.manifest import Damaged
from vit_jax.weights.paths import as_path, check_bucket, exists, in_bucket, modified_at
from vit_jax.weights.run_folder import RunFolder, read_json, write_json

# How far the host may run ahead of the devices: enough to keep them busy, few enough that
# batches do not pile up in their memory.
_STEPS_IN_FLIGHT = 2


def train(config: RunConfig, workdir: str | pathlib.Path) -> dict[str, Any]:
    """Trains until `config.total`, or continues where the run in `workdir` stopped.

    Returns what summary.json holds.
    """
    folder = open_folder(workdir, config)
    with (
        only_job(folder.path),
        StopSignals() as stop,
        Acts(config.alarm_seconds) as acts,
    ):
        return _train(config, folder, stop, acts)


def _train(config: RunConfig, folder: RunFolder, stop: StopSignals, acts: Acts) -> dict[str, Any]:
    source = open_source(config.data.name, config.data.split, as_size(config.image_size))
    mesh = make_mesh(config.mesh)
    total = total_steps_of(config, source)
    if _is_finished(folder, config, total):
        summary = read_json(folder.summary)
        with Progress(folder.path.name, total, silent=not is_lead()) as progress:
            progress.note(f"finished before, {summary['steps']} steps; nothing to do")
        return summary
    teacher = find_teacher(config, source)
    _check_teacher(folder, teacher)
    program = make_program(
        config, source, mesh, init=_init(folder, config), teacher=teacher and teacher.network
    )
    schedule = _make_schedule(config, program, source)

    with (
        Progress(folder.path.name, program.total_steps, silent=not is_lead()) as progress,
        Checkpoints(
            folder.checkpoints, config.checkpoints_kept, schedule.keep_every, progress.note
        ) as checkpoints,
    ):
        restored = checkpoints.restore_newest(program.state)
        if restored is None:
            state, start = _first_state(config, program, progress), 0
        else:
            state, start = restored.state, int(restored.state.step)
            acts.resume(restored.notes["goodput"], _last_sign(folder))
            progress.note(f"resuming at step {start}")
        frozen = teacher.read(program.frozen) if teacher else {}
        # Not before: weights that do not fit leave no folder that looks like a run.
        if is_lead():
            if _has_changed(folder, config):
                drop_records_after(folder, start)
            _write_description(folder, config, program, source, teacher)
        measured_by = yardstick(config, program.network, teacher and teacher.network)
        for line in (*description(config, program, mesh), measured_by.text()):
            progress.note(line)
        if teacher:
            progress.note(f"teacher: {teacher.place.path}, {teacher.place.version}")
        run = _Run(
            config, program, source, schedule, measured_by, folder, checkpoints, progress, stop,
            acts,
        )  # fmt: skip
        summary = _run_steps(run, state, start, frozen)
        if is_lead():
            write_json(folder.summary, summary)
        return summary


@dataclasses.dataclass(frozen=True)
class _Schedule:
    """After which steps things happen besides training."""

    log: int
    checkpoint: Cadence
    keep_every: int  # of the checkpoints; 0: only the newest
    evaluators: tuple[tuple[str, int, Evaluator], ...]  # (name, every, evaluator)
    total: int

    def due(self, every: int, step: int) -> bool:
        return step % every == 0 or step == self.total

    def evaluators_due(self, step: int) -> dict[str, Evaluator]:
        return {name: measure for name, every, measure in self.evaluators if self.due(every, step)}

    def evaluators_not_due(self, step: int) -> dict[str, Evaluator]:
        due = self.evaluators_due(step)
        return {name: measure for name, _, measure in self.evaluators if name not in due}


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the loop works with, all of it settled before the first step."""

    config: RunConfig
    program: Program
    source: Source
    schedule: _Schedule
    yardstick: Yardstick
    folder: RunFolder
    checkpoints: Checkpoints
    progress: Progress
    stop: StopSignals
    acts: Acts


def _run_steps(run: _Run, state: TrainState, start: int, frozen: Any) -> dict[str, Any]:
    schedule, progress, batch_size = run.schedule, run.progress, run.config.batch_size
    acts = run.acts
    bad_images = BadImages(
        run.source, run.folder.path, run.config.data.bad_images_allowed, progress
    )
    batches = _batches(run, start, bad_images)
    with acts.during(COMPILE):
        step_fn = _compile(run.program, progress)
    in_flight: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()
    records = [record for record in run.folder.metrics_records() if record["step"] <= start]
    latest = {key: value for record in records for key, value in record.items() if key != "step"}
    before = {key: latest.get(f"train/{key}", 0.0) for key in ("seconds", "core_hours")}
    clock = Clock(start, schedule.total, batch_size, acts, before=before["seconds"])
    watch = Watch(run.config.best_by, run.config.patience, records)
    with (
        contextlib.closing(batches),
        MetricsWriter(run.folder, start) if is_lead() else contextlib.nullcontext() as writer,
    ):
        acts.begin(STEP)
        step = start
        while step < schedule.total and not watch.is_over:
            step += 1
            with acts.during(DATA_WAIT):
                batch = next(batches)
            state, metrics = step_fn(state, batch, frozen)
            in_flight.append((step, metrics | {"bad_images": len(bad_images)}))
            evaluators = schedule.evaluators_due(step)
            is_last = step == schedule.total
            is_stopped = run.stop.is_asked() and not is_last
            is_saved = schedule.checkpoint.is_due(step) or is_stopped or is_last
            # The devices go on meanwhile, except where the network itself is wanted.
            keep = 0 if evaluators or is_saved else _STEPS_IN_FLIGHT
            logged = _logged(run, _awaited(run, in_flight, keep), clock, before)
            record = logged.pop(step, {}) | _evaluate(run, state, evaluators)
            watch.see(step, record)
            if watch.is_over:  # before the end: what would have been measured there is measured now
                record |= _evaluate(run, state, schedule.evaluators_not_due(step))
                progress.note(f"stopping at step {step}: {watch.text()}")
            for done, values in (*logged.items(), (step, record)):
                latest |= values
                if values and writer:
                    writer.write(done, values)
            # Records come first: a step in a checkpoint is a step in metrics.jsonl.
            is_last |= watch.is_over
            if is_saved or is_last or watch.is_best(step):
                with acts.during(CHECKPOINT):
                    if writer:
                        writer.sync()
                    bad_images.sync()
                    notes, best = {"goodput": acts.notes()}, watch.best and watch.best.step
                    run.checkpoints.save(step, state, notes, best=best, wait=is_stopped or is_last)
            if is_stopped and not is_last:
                raise Stopped(f"{run.folder.path}: saved at step {step}; start again to go on")
    return {
        "steps": step,
        "examples": step * batch_size,
        "seconds": round(clock.seconds, 1),
        "goodput": {"share": acts.goodput(), "seconds": acts.seconds()},
        "peak_flops_per_device": run.yardstick.peak.flops,
        "peak_flops_source": run.yardstick.peak.source,
        "metrics": latest,
        **_measure_best(run, watch, step, latest),
    }


def _logged(
    run: _Run,
    awaited: Iterator[tuple[int, dict[str, Any]]],
    clock: Clock,
    before: dict[str, float],
) -> dict[int, dict[str, float]]:
    """The records of those of these steps that are to be logged; the last one is shown as well."""
    due = [(step, metrics) for step, metrics in awaited if run.schedule.due(run.schedule.log, step)]
    if not due:
        return {}
    pace = clock.measure(due[-1][0])  # of all: when each of them was done, nobody knows
    goodput = {"goodput": run.acts.goodput()}
    measured = run.yardstick.measure(pace, clock.seconds, before) | goodput
    records = {}
    for step, metrics in due:
        values = {key: float(value) for key, value in metrics.items()}
        if values.pop("bad_in_a_row"):  # nothing was learned: its other numbers say nothing
            values = {key: values[key] for key in ("bad_steps", "bad_images")}
        records[step] = {f"train/{key}": value for key, value in (values | measured).items()}
    shown = {key: values[key] for key in ("loss", "accuracy") if key in values}
    run.progress.update(step, shown | goodput, pace.images_per_second, pace.eta)
    return records


def _awaited(
    run: _Run, in_flight: collections.deque[tuple[int, dict[str, Any]]], keep: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """All steps but the latest, once they are done, with their metrics; tells of those that were
    not applied, ends after many."""
    while len(in_flight) > keep:
        step, metrics = in_flight.popleft()
        in_a_row = int(metrics["bad_in_a_row"])
        if not in_a_row:
            yield step, metrics
            continue
        indices = train_indices(
            run.source, batch_size=run.config.batch_size, seed=run.config.seed, step=step - 1
        )
        loss, norm = float(metrics["loss"]), float(metrics["gradient_norm"])
        run.progress.note(
            f"step {step} was not applied: loss {loss:.4g}, gradient norm {norm:.4g}, "
            f"examples {_shortened(indices)}"
        )
        if in_a_row >= run.config.bad_steps_allowed:
            run.checkpoints.wait()
            raise Diverged(
                f"{run.folder.path}: {in_a_row} steps in a row, up to step {step}, had a loss or "
                f"gradient that is not finite (or above spike_norm); "
                f"{what_is_left(run.folder.checkpoints)}. Lower optimizer.learning_rate or set "
                f"optimizer.clip_norm"
            )
        yield step, metrics


def _shortened(indices: list[int]) -> str:
    first = ", ".join(map(str, indices[:8]))
    return first if len(indices) <= 8 else f"{first}, ... ({len(indices)} in all)"


def _evaluate(run: _Run, state: TrainState, evaluators: dict[str, Evaluator]) -> dict[str, float]:
    record: dict[str, float] = {}
    if not evaluators:
        return record
    with run.acts.during(EVALUATION):
        params = run.program.weights(state.average or state.params)
        model = nnx.merge(run.program.graphdef, params)
        for name, evaluator in evaluators.items():
            record |= {f"{name}/{key}": value for key, value in evaluator(model).items()}
    return record


def _measure_best(run: _Run, watch: Watch, step: int, latest: dict[str, float]) -> dict[str, Any]:
    """What the weights are worth that the run is for, where its config says what is best."""
    if watch.best is None:
        return {}
    evaluators = {name: measure for name, _, measure in run.schedule.evaluators}
    if watch.is_best(step):
        metrics = {k: v for k, v in latest.items() if k.partition("/")[0] in evaluators}
    else:
        try:
            state = run.checkpoints.restore(watch.best.step, run.program.state).state
        except Damaged as error:
            run.progress.note(f"the best checkpoint, of step {watch.best.step}, is lost: {error}")
            return {}
        metrics = _evaluate(run, state, evaluators)
    return {"best": {"by": watch.metric, "step": watch.best.step, "metrics": metrics}}


def _batches(run: _Run, start: int, bad_images: BadImages) -> Iterator[dict[str, jax.Array]]:
    config, sharding = run.config, run.program.batch["image"].sharding
    batches = train_batches(
        run.source,
        batch_size=config.batch_size,
        image_size=run.program.network.image_size,
        seed=config.seed,
        crop=config.data.crop,
        rows=local_rows(sharding, config.batch_size),
        on_bad_image=config.data.on_bad_image,
    )
    return on_device(
        batches,
        sharding,
        config.batch_size,
        start=start,
        threads=config.data.threads,
        workers=config.data.workers,
        seen=bad_images.see,
    )


def _compile(program: Program, progress: Progress) -> Any:
    progress.note("compiling the train step ...")
    started = time.monotonic()
    compiled = program.lower().compile()
    progress.note(f"compiled in {time.monotonic() - started:.1f} s")
    return compiled


def _first_state(config: RunConfig, program: Program, progress: Progress) -> TrainState:
    key = jax.random.key(config.seed)
    if not config.init:
        return program.init(key)
    adapted = load_params(config.init, program.network, keep_head=False)
    progress.note(f"starting from {config.init}: {adapted.report()}")
    return program.start_from(jax.device_get(adapted.params))


def _make_schedule(config: RunConfig, program: Program, source: Source) -> _Schedule:
    def every(duration: str, what: str) -> int:
        return max(1, steps_of(config, len(source), duration, what, program.total_steps))

    evaluators = tuple(
        (
            name,
            every(item.every, f"evaluators.{name}.every"),
            make_evaluator(
                item.kind,
                item.data,
                item.split,
                crop=item.crop,
                shots=item.shots,
                seeds=item.seeds,
                on_bad_image=config.data.on_bad_image,
                image_size=program.network.image_size,
                num_classes=program.network.num_classes,
                class_names=source.class_names,
                batch_size=config.batch_size,
                sharding=program.batch["image"].sharding,
            ),
        )
        for name, item in config.evaluators.items()
    )
    return _Schedule(
        log=every(config.log_every, "log_every"),
        checkpoint=Cadence(
            config.checkpoint_every, lambda duration: every(duration, "checkpoint_every")
        ),
        keep_every=every(config.keep_every, "keep_every") if config.keep_every else 0,
        evaluators=evaluators,
        total=program.total_steps,
    )


# What may change when a run is resumed. Everything else would make it another run.
_MAY_CHANGE = (
    "total", "log_every", "checkpoint_every", "checkpoints_kept", "keep_every", "alarm_seconds",
    "evaluators", "mesh", "init", "data.threads", "data.workers", "data.bad_images_allowed",
    "model.remat", "bad_steps_allowed", "best_by", "patience", "sweep",
)  # fmt: skip


def _is_finished(folder: RunFolder, config: RunConfig, total: int) -> bool:
    """By the end of its steps or of its patience."""
    is_over = (latest_step(folder.checkpoints) or 0) >= total or _watch(folder, config).is_over
    return exists(folder.summary) and is_over


def _watch(folder: RunFolder, config: RunConfig) -> Watch:
    return Watch(config.best_by, config.patience, folder.metrics_records())


def _init(folder: RunFolder, config: RunConfig) -> NetworkConfig | None:
    """The network that a run starts, or started, from."""
    if not config.init:
        return None
    if latest_step(folder.checkpoints) is not None:
        return folder.network()  # resumed: what it started from may be gone
    return find_weights(config.init).network


def _check_teacher(folder: RunFolder, teacher: TeacherWeights | None) -> None:
    """A resumed run must learn from the teacher that it began with."""
    if not teacher or latest_step(folder.checkpoints) is None:
        return
    before = read_json(folder.config).get(_TEACHER)
    if before != teacher.place.version:
        raise UsageError(
            f"--workdir={folder.path} learned from {teacher.place.path} at {before}, which is now "
            f"at {teacher.place.version}: keep a copy of a teacher that goes on training"
        )


def open_folder(workdir: str | pathlib.Path, config: RunConfig) -> RunFolder:
    """The run's folder: there, writable, and of no other run."""
    folder = RunFolder(as_path(workdir))
    if in_bucket(folder.path):
        check_bucket(folder.path)
    if folder.is_run() and latest_step(folder.checkpoints) is not None:  # else nothing is lost
        stored = stored_config(folder)
        if not stored:
            raise UsageError(
                f"--workdir={folder.path} holds converted weights and no run: start from them with "
                f"--config.init={folder.path}, in another folder"
            )
        changed = [
            f"{key} {old} -> {new}"
            for key, old, new in changes(run_config(stored), config)
            if not key.startswith(_MAY_CHANGE)
        ]
        if changed:
            raise UsageError(
                f"--workdir={folder.path} holds a run with another config "
                f"({', '.join(changed)}): choose another folder"
            )
    if in_bucket(folder.path):
        return folder  # there are no folders to make, and the lock is the first thing written
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.path):
            pass
    except OSError as error:
        raise UsageError(f"--workdir={folder.path} is no folder to write to: {error}") from error
    return folder


# What config.json holds besides the config.
_NETWORK, _TEACHER, _CLASSES = "network", "teacher_version", "class_names"


def stored_config(folder: RunFolder) -> dict[str, Any]:
    """The config of the run in a folder, for `run_config`; nothing where it has weights only."""
    more = (_NETWORK, _TEACHER, _CLASSES)
    return {k: v for k, v in read_json(folder.config).items() if k not in more}


def _has_changed(folder: RunFolder, config: RunConfig) -> bool:
    """Whether the run goes on with another config than it had."""
    if not folder.is_run():
        return False
    try:
        return bool(changes(run_config(stored_config(folder)), config))
    except UsageError:  # of another version, and without a checkpoint
        return True


def _last_sign(folder: RunFolder) -> float:
    """When the run was last heard of."""
    return modified_at(folder.metrics) if exists(folder.metrics) else 0.0


def _write_description(
    folder: RunFolder,
    config: RunConfig,
    program: Program,
    source: Source,
    teacher: TeacherWeights | None,
) -> None:
    more = {_NETWORK: config_to_dict(program.network), _CLASSES: list(source.class_names)}
    if teacher:
        more[_TEACHER] = teacher.place.version
    write_json(folder.config, dataclasses.asdict(config) | more)
    write_json(folder.environment, environment())
