"""VTAB-1k: weights in; out come nineteen runs with one setting, and their means beside the paper's.

The setting is that of section 4.1 and Table 4: 2500 steps of SGD at 0.01, 384 px, 800 + 200 images.
"""

import dataclasses
import pathlib
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.sources import open_source
from vit_jax.data.vtab import TASKS, find_task
from vit_jax.errors import Diverged, UsageError
from vit_jax.evaluate.paper import TABLE_9, TABLE_9_TASKS
from vit_jax.insight.results import aligned
from vit_jax.models.config import NetworkConfig, fitting_size
from vit_jax.train.cluster import is_lead
from vit_jax.train.config import RunConfig, run_config
from vit_jax.train.flags import parse_config
from vit_jax.train.loop import train
from vit_jax.weights.load import Place, find_weights
from vit_jax.weights.paths import as_path, check_bucket, in_bucket, resolved
from vit_jax.weights.run_folder import RunFolder, read_json, write_json

GROUPS = tuple(dict.fromkeys(task.group for task in TASKS.values()))


@dataclasses.dataclass(frozen=True)
class Results:
    """Accuracies from 0 to 1 by task, and why there is none."""

    weights: str
    version: str  # of the weights
    model: str
    changes: Sequence[str] = ()  # of the setting
    accuracy: Mapping[str, float] = dataclasses.field(default_factory=dict)
    problems: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def with_task(self, task: str, found: Mapping[str, Any] | str) -> "Results":
        """With the summary of one more run, or with the reason why there is none."""
        if isinstance(found, str):
            return dataclasses.replace(self, problems={**self.problems, task: found})
        accuracy = {**self.accuracy, task: found["metrics"]["test/accuracy"]}
        in_order = {name: accuracy[name] for name in TASKS if name in accuracy}
        return dataclasses.replace(self, accuracy=in_order)

    def mean(self) -> float | None:
        """The VTAB score: there is none without all nineteen."""
        return None if len(self.accuracy) < len(TASKS) else statistics.fmean(self.accuracy.values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        means = {
            group: {
                "mean": statistics.fmean(self.accuracy[task] for task in tasks),
                "tasks": len(tasks),
            }
            for group in GROUPS
            if (tasks := self._of(group))
        }
        return dataclasses.asdict(self) | {"groups": means, "vtab_mean": self.mean()}

    def text(self) -> str:
        """A table, the paper's columns beside ours, and a line for all that is missing."""
        header = ("accuracy, %", self.model, *(f"{model} {data}" for model, data in TABLE_9))
        rows: list[tuple[str, ...]] = [header]
        for group in GROUPS:
            tasks, all_tasks = self._of(group), sum(t.group == group for t in TASKS.values())
            rows += [self._row(task, [task]) for task in tasks]
            if tasks:
                partly = f", {len(tasks)} of {all_tasks}" if len(tasks) < all_tasks else ""
                rows.append(self._row(f"= {group}{partly}", tasks))
        count, all_tasks = len(self.accuracy), len(TASKS)
        if count == all_tasks:
            rows.append(self._row("= VTAB mean", list(self.accuracy)))
        elif count:  # a mean of some is not the score, and the paper's is of the same ones
            name = "= mean of these, no VTAB score"
            rows.append(self._row(name, list(self.accuracy)))
        table = aligned(rows) if count else []
        changes = [f"not the paper's setting: {' '.join(self.changes)}"] if self.changes else []
        return "\n".join([*table, *changes, *self._reasons()])

    def _of(self, group: str) -> list[str]:
        return [task for task in self.accuracy if TASKS[task].group == group]

    def _row(self, name: str, tasks: Sequence[str]) -> tuple[str, ...]:
        """The mean over some tasks, of ours and of the paper's columns."""
        ours = 100 * statistics.fmean(self.accuracy[task] for task in tasks)
        theirs = [
            statistics.fmean(column[TABLE_9_TASKS.index(task)] for task in tasks)
            for column in TABLE_9.values()
        ]
        return (name, *(f"{value:.1f}" for value in (ours, *theirs)))

    def _reasons(self) -> list[str]:
        """One line for each reason why tasks have no result."""
        tasks: dict[str, list[str]] = {}
        for task, problem in self.problems.items():
            tasks.setdefault(problem, []).append(task)
        return [f"no result for {', '.join(names)}: {problem}" for problem, names in tasks.items()]


def vtab(
    weights: str,
    workdir: str,
    tasks: Sequence[str] = tuple(TASKS),
    changes: Sequence[str] = (),
) -> Results:
    """Fine-tunes `weights`, all that `load` takes, on each task, as a run in workdir/TASK.

    `changes` are flags, --config.key=value. Started again, it takes up where it stopped; a finished
    task is left alone. A task without data, or that diverged, is told of and costs no other.
    """
    tasks = [find_task(task).name for task in dict.fromkeys(tasks)]
    place = find_weights(weights)
    configs = {task: task_config(weights, place.network, task, changes) for task in tasks}
    file = _open(workdir, place)
    results = Results(str(resolved(place.path)), place.version, place.network.name, changes)
    for task in tasks:  # before hours of training, not after
        if problem := _problem_with_data(task):
            done = RunFolder(file.parent / task).summary  # the data of a finished task may be gone
            found = read_json(done) if done.is_file() else problem
            results = results.with_task(task, found)
    if results.problems:
        _tell(f"cannot be read, left out: {', '.join(results.problems)}; more at the end")
    _write(file, results)
    for task in tasks:
        if task in results.accuracy or task in results.problems:
            continue
        try:
            results = results.with_task(task, train(configs[task], file.parent / task))
        except Diverged as error:
            results = results.with_task(task, str(error))
            _tell(str(error))
        _write(file, results)
    return results


def task_config(
    weights: str, network: NetworkConfig, task: str, changes: Sequence[str]
) -> RunConfig:
    """The run of one task: configs/finetune.py for the network of `weights`, with `changes`."""
    for flag in changes:
        if re.match(r"--?config(=|$)|--?config\.(init|data\.name)\b", flag):
            raise UsageError(f"{flag}: leave it out, the tasks of VTAB decide that")
    config = parse_config(
        [
            f"--config=configs/finetune.py:data=vtab:{task}",
            f"--config.init={weights}",
            f"--config.image_size={fitting_size(network, 384)}",
            # Test sets are up to 73,000 images, and there are nineteen folders of checkpoints.
            "--config.evaluators.test.every=100%",
            "--config.checkpoints_kept=1",
            *changes,
        ]
    )
    return run_config(config)


def _open(workdir: str, place: Place) -> pathlib.Path:
    """The file of results, in a folder that belongs to these weights or to none."""
    folder = as_path(workdir)
    file = folder / "vtab.json"
    if in_bucket(folder):
        check_bucket(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = read_json(file) if file.is_file() else None
    except OSError as error:
        raise UsageError(f"--workdir={folder} is no folder to write to: {error}") from error
    own = (str(resolved(place.path)), place.version)
    if before and (before["weights"], before["version"]) != own:
        raise UsageError(
            f"--workdir={folder} holds the tasks of {before['weights']} at {before['version']}, "
            f"and --model={place.path} is at {place.version}: choose another folder"
        )
    return file


def _problem_with_data(task: str) -> str:
    """Why its splits cannot be opened."""
    try:
        for split in ("train800val200", "test"):
            open_source(f"vtab:{task}", split, 384)
    except UsageError as error:
        return str(error)
    return ""


def _write(file: pathlib.Path, results: Results) -> None:
    if is_lead():
        write_json(file, results.as_dict())


def _tell(line: str) -> None:
    if is_lead():
        print(line, file=sys.stderr, flush=True)
