"""A table of runs: run folders in, a row for each out, and the paper's figures beside.

Whatever state a run is in, it has its row: what cannot be read is said there.
"""

import contextlib
import dataclasses
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.errors import UsageError
from vit_jax.evaluate.paper import PRETRAINING, Figure, data_set, fine_tuned, five_shot
from vit_jax.weights.paths import resolved, walk
from vit_jax.weights.run_folder import RunFolder, read_json

FINISHED = "finished"
# Of the tables that have a figure, the one to show: those at the usual resolution come first.
_TABLES = ("Table 5", "Table 9", "Table 6", "Table 2", "Fig. 4", "Fig. 13")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run folder, as far as it can be read."""

    path: str
    state: str  # "finished", "step 40 of 90 epochs", or what is wrong with it
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps: int = 0
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)  # the latest of each

    @property
    def model(self) -> str:
        return self._section("network").get("name") or self._section("model").get("name", "")

    @property
    def data(self) -> str:
        return self._section("data").get("name", "")

    @property
    def init(self) -> str:
        """What it started from; nothing: from scratch."""
        return self.config.get("init", "")

    @property
    def image_size(self) -> tuple[int, ...]:
        """Height and width; nothing where that is not known."""
        return tuple(self._section("network").get("image_size", ()))

    @property
    def scores(self) -> dict[str, float]:
        """What its evaluators found that people compare: shares from 0 to 1."""
        return {key: value for key, value in self.metrics.items() if _is_score(key, value)}

    def paper(self) -> dict[str, list[Figure]]:
        """The paper's figures for its scores, where there are any."""
        found = {key: self._figures(key) for key in self.scores}
        return {key: figures for key, figures in found.items() if figures}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": self.path,
            "state": self.state,
            "model": self.model,
            "init": self.init,
            "data": self.data,
            "image_size": self.image_size,
            "seed": self.config.get("seed"),
            "steps": self.steps,
            "metrics": self.metrics,
            "paper": {k: [f._asdict() for f in figures] for k, figures in self.paper().items()},
        }

    def _section(self, key: str) -> dict[str, Any]:
        found = self.config.get(key)
        return found if isinstance(found, dict) else {}

    def _figures(self, key: str) -> list[Figure]:
        name, _, score = key.rpartition("/")
        evaluator = self._section("evaluators").get(name, {})
        data, kind = evaluator.get("data", ""), evaluator.get("kind")
        if kind == "classification" and (known := data_set(data, self._classes())):
            return fine_tuned(self.model, known)
        if kind == "fewshot" and score == "5_shot" and (known := data_set(data)):
            return five_shot(self.model, known)
        return []

    def _classes(self) -> int:
        return self._section("network").get("num_classes", 0)


def find_runs(folders: Sequence[pathlib.Path]) -> list[Run]:
    """The runs in some folders, however deep, in the order of their names."""
    found: dict[pathlib.Path, pathlib.Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"no such folder: {folder}; give run folders, or folders of them")
        for place, inner, files in walk(folder):
            # Runs may lie in a run (a sweep's), but in nothing that a run itself writes.
            ours = {"checkpoints", "tensorboard", "plots"}
            inner[:] = sorted(name for name in inner if name not in ours and name[0] != ".")
            folder_of_run = RunFolder(place)
            signs = (folder_of_run.environment, folder_of_run.metrics, folder_of_run.summary)
            if folder_of_run.config.name in files and {sign.name for sign in signs} & set(files):
                found.setdefault(resolved(place), place)
    if not found:
        raise UsageError(
            f"no runs in {', '.join(map(str, folders))}: expected the --workdir of vit-jax train, "
            f"or a folder that holds some"
        )
    return [read_run(path) for path in found.values()]


def read_run(path: pathlib.Path) -> Run:
    """The run in a folder; no exception, whatever its files hold."""
    folder = RunFolder(path)
    problems: list[str] = []
    config: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    steps, finished = 0, False
    with _told(folder.config, problems):
        config = dict(read_json(folder.config))
        config.pop("class_names", None)  # thousands
    with _told(folder.metrics, problems):
        for record in folder.metrics_records():
            steps = int(record["step"])
            metrics |= {key: value for key, value in record.items() if key != "step"}
    if folder.summary.is_file():
        with _told(folder.summary, problems):
            summary = read_json(folder.summary)
            finished = int(summary["steps"]) >= steps  # fewer: it was made longer since
            if finished:
                steps, metrics = int(summary["steps"]), dict(summary["metrics"])
                metrics |= summary.get("best", {}).get("metrics", {})  # of the weights it is for
    state = FINISHED if finished else f"step {steps:,} of {config.get('total', '?')}"
    return Run(str(path), "; ".join(problems) or state, config, steps, metrics)


def over_seeds(runs: Sequence[Run]) -> list[tuple[list[Run], dict[str, tuple[float, float]]]]:
    """Finished runs that differ in nothing but their seed, and (mean, deviation) of each score."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.state == FINISHED:
            config = {key: value for key, value in run.config.items() if key != "seed"}
            groups.setdefault(json.dumps(config, sort_keys=True), []).append(run)
    return [
        (group, _means(group))
        for group in groups.values()
        if len({run.config.get("seed") for run in group}) > 1
    ]


def results_dict(runs: Sequence[Run]) -> dict[str, Any]:
    """For JSON."""
    seeds = [
        {
            "paths": [run.path for run in group],
            "seeds": [run.config.get("seed") for run in group],
            "scores": {key: {"mean": m, "deviation": d} for key, (m, d) in means.items()},
        }
        for group, means in over_seeds(runs)
    ]
    return {"runs": [run.as_dict() for run in runs], "over_seeds": seeds}


def results_text(runs: Sequence[Run]) -> str:
    """The table; where several runs differ in their seed, their mean follows the last of them."""
    scores = list(dict.fromkeys(key for run in runs for key in run.scores))
    header = ["run", "model", "from", "data", "px", "steps", *(f"{key}, %" for key in scores)]
    means = {group[-1].path: (group, values) for group, values in over_seeds(runs)}
    rows = [[*header, "paper, %", "core-hours", "state"]]
    tables: list[str] = []
    for run in runs:
        rows.append(_row(run, scores))
        tables.append(_paper_cell(run)[0])
        if run.path in means:
            group, values = means[run.path]
            cells = {k: f"{100 * mean:.2f} ± {100 * dev:.2f}" for k, (mean, dev) in values.items()}
            numbers = [cells.get(key, "") for key in scores]
            rows.append([f"= mean of {len(group)} seeds", *[""] * 5, *numbers, *[""] * 3])
    text = "\n".join(aligned(rows))
    if places := ", ".join(dict.fromkeys(filter(None, tables))):
        text += f"\npaper: after pre-training on {' / '.join(PRETRAINING)} ({places})"
    return text


@contextlib.contextmanager
def _told(path: pathlib.Path, problems: list[str]) -> Iterator[None]:
    """What a broken file raises becomes one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(f"{path.name} is broken: {' '.join(repr(error).split())}")


def _is_score(key: str, value: Any) -> bool:
    evaluator, _, score = key.rpartition("/")
    is_kind = score in ("accuracy", "mean_average_precision") or score.endswith("_shot")
    return evaluator not in ("", "train") and is_kind and isinstance(value, int | float)


def _means(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    shared = [key for key in runs[0].scores if all(key in run.scores for run in runs)]
    values = {key: [run.scores[key] for run in runs] for key in shared}
    return {key: (statistics.fmean(v), statistics.pstdev(v)) for key, v in values.items()}


def _row(run: Run, scores: Sequence[str]) -> list[str]:
    found = {key: f"{100 * value:.2f}" for key, value in run.scores.items()}
    height, width = (*run.image_size, "", "")[:2]
    hours = run.metrics.get("train/core_hours")
    return [
        run.path,
        run.model,
        (run.init or "scratch") if run.config else "",
        run.data,
        str(height) if height == width else f"{height}x{width}",
        f"{run.steps:,}",
        *(found.get(key, "") for key in scores),
        _paper_cell(run)[1],
        "" if hours is None else f"{hours:.3g}",
        run.state,
    ]


def _paper_cell(run: Run) -> tuple[str, str]:
    """A table and its figures by pre-training, for the first score that the paper has."""
    figures = next(iter(run.paper().values()), [])
    if not figures:
        return "", ""
    there = {figure.table for figure in figures}
    # Table 2 has ImageNet at higher resolution, with averaged weights.
    larger = "Table 2" in there and max(run.image_size, default=0) > 384
    table = "Table 2" if larger else next(table for table in _TABLES if table in there)
    digits = 2 if table in ("Table 2", "Table 5", "Table 6") else 1
    cells = {f.pretraining: f"{f.percent:.{digits}f}" for f in figures if f.table == table}
    return table, " / ".join(cells.get(data, "-") for data in PRETRAINING)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of equal width; one with nothing in it is left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return [
        "  ".join(f"{c:{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
