"""report.html of one run or several: what they were, how they went, what they learned.

Whatever state a run is in, its report opens; what is missing is said where it would stand.
"""

import itertools
import json
import pathlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vit_jax.insight import figures
from vit_jax.insight.curves import Run as Curve
from vit_jax.insight.curves import chart_data
from vit_jax.insight.page import (
    Section,
    cards,
    charts,
    code,
    folded,
    missing,
    page,
    paragraph,
    picture,
    subheading,
    table,
)
from vit_jax.insight.pictures import Picture
from vit_jax.insight.results import FINISHED, Run, read_run
from vit_jax.insight.studies import Note, study_run
from vit_jax.train.config import flat
from vit_jax.weights.paths import exists, resolved
from vit_jax.weights.run_folder import RunFolder, read_json, write_text

_BYTES = 3_000_000  # of all pictures: a third more in a page, which is to stay below 5 MB

Shots = Mapping[str, Mapping[str, Mapping[str, float]]]  # name -> "10" -> {"mean", "std"}


def write_report(
    paths: Sequence[pathlib.Path],
    out: pathlib.Path | None = None,
    *,
    title: str = "",
    top: Sequence[str] = (),
    fewshot: Shots | None = None,
    note: Note = lambda text: None,
) -> pathlib.Path:
    """Writes one page for all of them, into the first one's folder, and returns its path.

    `top` and `fewshot` are what the caller knows besides.
    """
    out = out or RunFolder(paths[0]).report
    out = out / "report.html" if out.is_dir() else out
    write_text(out, report_page(paths, title=title, top=top, fewshot=fewshot, note=note))
    return out


def report_page(
    paths: Sequence[pathlib.Path],
    *,
    title: str = "",
    top: Sequence[str] = (),
    fewshot: Shots | None = None,
    compute: bool = True,
    live: bool = False,
    note: Note = lambda text: None,
) -> str:
    """The page. Without `compute`, with those pictures only that were drawn before."""
    folders = named_folders(paths)
    runs = {name: read_run(folder.path) for name, folder in folders.items()}
    studies = {
        name: study_run(folder, compute=compute, note=note) for name, folder in folders.items()
    }
    sections = [
        Section("summary", "Summary", _summary(folders, runs)),
        Section("curves", "Curves", _curves(folders, runs, live)),
        Section("fewshot", "Few-shot", _fewshot(runs, fewshot or {})),
        _pictures("mistakes", "Mistakes", studies, "answers"),
        _pictures("inspection", "What it learned", studies, "inspection"),
        _pictures("input", "What it sees", studies, "input"),
        Section("plan", "Plan", _plans(folders)),
        Section("config", "Config", _configs(runs)),
        Section("environment", "Environment", _environments(folders)),
    ]
    name = f"Run{'s' * (len(folders) > 1)} {', '.join(folders)}"
    return page(title or name, top, sections, live=live)


def named_folders(paths: Sequence[pathlib.Path]) -> dict[str, RunFolder]:
    """Runs by what tells them apart: the names of their folders, or more of their paths."""
    folders = [RunFolder(path) for path in paths]
    for folder in folders:
        folder.check()
    full = list(dict.fromkeys(resolved(folder.path) for folder in folders))
    for parts in itertools.count(1):
        named = {"/".join(path.parts[-parts:]): RunFolder(path) for path in full}
        if len(named) == len(full):
            return named


def curves_of(folders: Mapping[str, RunFolder], runs: Mapping[str, Run]) -> dict[str, Any]:
    """What the charts of a report draw."""
    return chart_data(
        [
            Curve(name, _records(folder), runs[name].config.get("batch_size", 0), runs[name].state)
            for name, folder in folders.items()
        ]
    )


def _records(folder: RunFolder) -> list[dict[str, Any]]:
    try:
        return [record for record in folder.metrics_records() if "step" in record]
    except (OSError, ValueError):
        return []  # said in the summary


def _summary(folders: Mapping[str, RunFolder], runs: Mapping[str, Run]) -> list[str]:
    scores = dict.fromkeys(key for run in runs.values() for key in run.scores)
    facts: dict[str, Callable[[Run], str]] = {
        "state": lambda run: run.state,
        "network": lambda run: run.model,
        "started from": lambda run: run.init or "scratch",
        "data": lambda run: run.data,
        "pixels": lambda run: "x".join(map(str, run.image_size)),
        "steps": lambda run: f"{run.steps:,}",
        "examples": lambda run: f"{run.steps * run.config.get('batch_size', 0):,}",
        "time": lambda run: _time(run.metrics.get("train/seconds")),
        "core-hours": lambda run: _number(run.metrics.get("train/core_hours")),
        "goodput": lambda run: _percent(run.metrics.get("train/goodput")),
        "loss": lambda run: _number(run.metrics.get("train/loss")),
        **{key: lambda run, key=key: _percent(run.scores.get(key)) for key in scores},
    }
    rows = [[fact, *(show(run) for run in runs.values())] for fact, show in facts.items()]
    parts = [table(["", *runs], [row for row in rows if any(row[1:])])]
    for name, run in runs.items():
        if run.state != FINISHED:
            parts.append(missing(f"{name} has not finished: {run.state}."))
        if not run.scores:
            parts.append(missing(f"{name} has no evaluations."))
    return [*parts, *_commands(folders)]


def _commands(folders: Mapping[str, RunFolder]) -> list[str]:
    commands: dict[str, list[str]] = {}  # a demo or a sweep starts several runs by one
    for name, folder in folders.items():
        commands.setdefault(_command(folder), []).append(name)
    parts = []
    for command, names in commands.items():
        if command:
            parts += [subheading(f"To reproduce {', '.join(names)}"), code(command)]
        else:
            parts.append(missing(f"How {', '.join(names)} was started is not known."))
    return parts


def _command(folder: RunFolder) -> str:
    """What was typed, as it can be typed again."""
    try:
        program, *arguments = read_json(folder.environment)["command"]
    except (OSError, ValueError, KeyError):
        return ""
    place = pathlib.Path(program)
    if place.parent.name == "vit_jax" and place.suffix == ".py":
        program = f"python -m vit_jax.{place.stem}"
    elif place.name == "vit-jax":
        program = place.name
    return f"{program} {shlex.join(arguments)}"


def _curves(folders: Mapping[str, RunFolder], runs: Mapping[str, Run], live: bool) -> list[str]:
    data = curves_of(folders, runs)
    silent = [run["name"] for run in data["runs"] if not run["x"]["step"]]
    parts = [missing(f"{name} has logged nothing yet.") for name in silent]
    return [*parts, charts(data)] if data["panels"] or live else parts


def _fewshot(runs: Mapping[str, Run], more: Shots) -> list[str]:
    results = {f"{name} {key}".strip(): found for name, run in runs.items()
               for key, found in _shots_of(run).items()} | dict(more)  # fmt: skip
    if not results:
        return [missing("No few-shot evaluation: add an evaluator of kind fewshot to the config.")]
    text = "Linear classifiers on frozen features; the bars are deviations over draws of the shots."
    title = "Few-shot accuracy against shots"
    return [cards([picture(figures.shots(results), title, text)])]


def _shots_of(run: Run) -> Shots:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for key, mean in run.metrics.items():
        evaluator, _, score = key.rpartition("/")
        shot, _, rest = score.partition("_")
        if rest == "shot" and shot.isdecimal():
            std = run.metrics.get(f"{key}_std", 0.0)
            found.setdefault(evaluator, {})[shot] = {"mean": mean, "std": std}
    return found


def _pictures(
    anchor: str,
    title: str,
    studies: Mapping[str, Mapping[str, Sequence[Picture]]],
    group: str,
) -> Section:
    parts = []
    count = sum(len(pictures) for found in studies.values() for pictures in found.values())
    for name, found in studies.items():
        if len(studies) > 1:
            parts.append(subheading(name))
        parts += [missing(p.text) for p in found[group] if not p.png]
        drawn = [p for p in found[group] if p.png]
        parts.append(cards([picture(p.png, p.title, p.text, _BYTES // count) for p in drawn]))
    return Section(anchor, title, parts)


def _plans(folders: Mapping[str, RunFolder]) -> list[str]:
    plans, parts = {}, []
    for name, folder in folders.items():
        if not exists(folder.plan):
            continue
        try:
            plans[name] = _plan_facts(read_json(folder.plan))
        except (OSError, ValueError, KeyError, TypeError) as error:
            parts.append(missing(f"plan.json of {name} cannot be read: {error!r}"))
    if plans:
        facts = dict.fromkeys(fact for plan in plans.values() for fact in plan)
        rows = [[fact, *(plan[fact] for plan in plans.values())] for fact in facts]
        parts.append(table(["", *plans], [row for row in rows if any(row[1:])]))
    text = "None was made: vit-jax plan --config=... --topology=... --workdir=RUN makes one."
    return parts or [missing(text)]


def _plan_facts(plan: Mapping[str, Any]) -> dict[str, str]:
    slice_, memory = plan["topology"], plan["memory"]
    return {
        "network": plan["model"],
        "slice": f"{slice_['name']}, {slice_['chips']} chips",
        "told by": "the TPU compiler" if plan["is_compiled"] else "an estimate",
        "fits": "yes" if plan["fits"] else "no",
        "mesh": " x ".join(f"{axis}={size}" for axis, size in plan["mesh"].items()),
        "batch": f"{plan['batch_size']:,}",
        "memory per device": f"{memory['total'] / 2**30:.2f} of {plan['hbm'] / 2**30:.0f} GiB",
        "step": _time(plan["step_seconds"]),
        "images per second": _number(plan["images_per_second"]),
        "utilisation": _percent(plan["utilization"]),
        "hours": _number(plan["hours"]),
        "chip-hours": _number(plan["chip_hours"]),
    }


def _configs(runs: Mapping[str, Run]) -> list[str]:
    parts = []
    if len(runs) > 1:
        tables = [flat(run.config) for run in runs.values()]
        keys = dict.fromkeys(key for values in tables for key in values)
        rows = [
            [key, *(_value(values, key) for values in tables)]
            for key in keys
            if len({_value(values, key) for values in tables}) > 1
        ]
        parts = [subheading("What differs"), table(["", *runs], rows)] if rows else [
            paragraph("All of these runs have the same config.")
        ]  # fmt: skip
    for name, run in runs.items():
        text = json.dumps(run.config, indent=2, ensure_ascii=False)
        parts.append(folded(f"Config of {name}", code(text)))
    return parts


def _value(values: Mapping[str, Any], key: str) -> str:
    return figures.shortened(str(values[key]), 60) if key in values else "-"


def _environments(folders: Mapping[str, RunFolder]) -> list[str]:
    parts = []
    for name, folder in folders.items():
        try:
            text = json.dumps(read_json(folder.environment), indent=2, ensure_ascii=False)
            parts.append(folded(f"Environment of {name}", code(text)))
        except (OSError, ValueError):
            parts.append(missing(f"{name} has no environment.json: it may be converted weights."))
    return parts


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
