"""Records of runs as the charts of a page: panels of lines over steps, examples or time."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.insight.figures import RUN_COLOURS

_MOST_POINTS = 800  # of one run; more cannot be told apart, and make the page large

Records = Sequence[Mapping[str, Any]]


class Run(NamedTuple):
    """What is drawn of a run."""

    name: str
    records: Records
    batch_size: int
    state: str = ""


class Panel(NamedTuple):
    """A chart: its title, the label of its y-axis, the metrics in it, and what to multiply by."""

    title: str
    label: str
    shows: Callable[[str], bool]
    scale: float = 1.0


def _named(*keys: str) -> Callable[[str], bool]:
    return lambda key: key in keys


def _ending(*ends: str) -> Callable[[str], bool]:
    return lambda key: key.endswith(ends)


PANELS = (
    Panel("Loss", "loss", _ending("/loss")),
    Panel("Accuracy", "accuracy, %", _ending("/accuracy", "/mean_average_precision"), 100),
    Panel("Few-shot accuracy", "accuracy, %", _ending("_shot"), 100),
    Panel("Learning rate", "learning rate", _named("train/learning_rate")),
    Panel("Gradient norm", "norm of the gradient", _named("train/gradient_norm")),
    Panel("Parameter norm", "norm of the parameters", _named("train/parameter_norm")),
    Panel("Update norm", "norm of the update", _named("train/update_norm")),
    Panel("Speed", "images per second", _named("train/images_per_second")),
    Panel("Data wait", "waiting for data, % of training", _named("train/data_wait"), 100),
    Panel("Goodput", "training, % of all time", _named("train/goodput"), 100),
    Panel("Utilisation", "model FLOPs, % of peak", _named("train/model_flops_utilization"), 100),
)


def chart_data(runs: Sequence[Run], *, clocks: bool = True) -> dict[str, Any]:
    """For charts.js: {"axes", "runs" with x of each record, "panels" with series of y}.

    `clocks`: whether the records know the time.
    """
    thinned = [run._replace(records=_thinned(run.records)) for run in runs]
    seconds = max((_last(run.records, "train/seconds") for run in runs), default=0.0)
    unit, length = next(u for u in _TIMES if seconds >= u[2] or u[2] == 0)[:2]
    times = {"time": f"time, {unit}", "core_hours": "core-hours"} if clocks else {}
    return {
        "axes": {"step": "step", "examples": "examples seen", **times},
        "runs": [
            {
                "name": run.name,
                "state": run.state,
                "colour": RUN_COLOURS[number % len(RUN_COLOURS)],
                "x": _places(run, length),
            }
            for number, run in enumerate(thinned)
        ],
        "panels": [shown for panel in PANELS if (shown := _panel(panel, thinned))],
    }


# Unit, its seconds, and from how many seconds on it is used.
_TIMES = (("hours", 3600, 7200), ("minutes", 60, 120), ("seconds", 1, 0))


def as_json(data: Any) -> str:
    """Small, and harmless inside of a page."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _thinned(records: Records) -> Records:
    """Every so many of them; those with evaluations all."""
    every = -(-len(records) // _MOST_POINTS)
    return [
        record
        for number, record in enumerate(records)
        if (len(records) - 1 - number) % every == 0
        or any(key != "step" and not key.startswith("train/") for key in record)
    ]


def _places(run: Run, unit: float) -> dict[str, list[float | None]]:
    steps = [record["step"] for record in run.records]
    return {
        "step": steps,
        "examples": [step * run.batch_size for step in steps],
        "time": _between(run.records, "train/seconds", 1 / unit),
        "core_hours": _between(run.records, "train/core_hours", 1.0),
    }


def _between(records: Records, key: str, scale: float) -> list[float | None]:
    """A clock's value at each record; not all evaluations come with one."""
    known = [(record["step"], record[key]) for record in records if key in record]
    if not known:
        return [None] * len(records)
    values = np.interp([record["step"] for record in records], *zip(*known, strict=True))
    return [_rounded(scale * value) for value in values]


def _panel(panel: Panel, runs: Sequence[Run]) -> dict[str, Any] | None:
    series = [
        {
            "run": number,
            "name": key if key.endswith("_shot") else key.rpartition("/")[0],
            "y": [_rounded(panel.scale * r[key]) if key in r else None for r in run.records],
        }
        for number, run in enumerate(runs)
        for key in dict.fromkeys(k for record in run.records for k in record if panel.shows(k))
    ]
    return {"title": panel.title, "label": panel.label, "series": series} if series else None


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _last(records: Records, key: str) -> float:
    return max((record[key] for record in records if key in record), default=0.0)
