"""report.html of a run: what it was, how it went, what came out."""

import json
import pathlib
import shlex

from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.insight import figures
from vit_jax.insight.page import code, heading, page, paragraph, picture, table
from vit_jax.weights.run_folder import RunFolder, read_json

_TRAINING = ("train/loss", "train/accuracy", "train/learning_rate")


def write_run_report(path: pathlib.Path) -> pathlib.Path:
    """Writes report.html into a run folder, finished or not, and returns its path."""
    folder = RunFolder(path)
    if not folder.is_run():
        raise UsageError(f"{path} is no run folder: it has no config.json; give a --workdir")
    if not folder.environment.is_file():
        raise UsageError(f"{path} holds converted weights and no run: there is nothing to report")
    parts = [*_results(folder), *training_curves({path.name: folder}), *data_samples(folder)]
    environment = read_json(folder.environment)
    parts += [heading("Command"), code(shlex.join(environment["command"]))]
    config = {k: v for k, v in read_json(folder.config).items() if k != "class_names"}  # thousands
    parts += [heading("Config"), code(json.dumps(config, indent=2))]
    parts += [heading("Environment"), code(json.dumps(environment, indent=2))]
    folder.report.write_text(page(f"Run {path.name}", parts))
    return folder.report


def training_curves(runs: dict[str, RunFolder]) -> list[str]:
    """A section with the curves of one or several runs, over each other."""
    records = {name: folder.metrics_records() for name, folder in runs.items()}
    if not any(records.values()):
        return [heading("Training"), paragraph("Nothing was logged yet.")]
    evaluated = sorted({k for rs in records.values() for r in rs for k in r if _is_accuracy(k)})
    parts = [heading("Training"), picture(figures.curves(records, _TRAINING), "training curves")]
    if evaluated:
        parts.append(picture(figures.curves(records, evaluated), "evaluation curves"))
    return parts


def data_samples(folder: RunFolder) -> list[str]:
    """A section with images that the run trains on."""
    data, size = read_json(folder.config)["data"], folder.network().image_size
    source = open_source(data["name"], data["split"], size)
    return [
        heading(f"Images of {source.name}"),
        picture(figures.samples(source, size), f"sample images of {source.name}"),
    ]


def _results(folder: RunFolder) -> list[str]:
    if not folder.summary.is_file():
        return [heading("Results"), paragraph("This run has not finished.")]
    summary = read_json(folder.summary)
    rows = [
        ("steps", f"{summary['steps']:,}"),
        ("examples", f"{summary['examples']:,}"),
        ("seconds", f"{summary['seconds']:,}"),
        *((key, f"{value:.4g}") for key, value in summary["metrics"].items()),
    ]
    return [heading("Results"), table(("", "value"), rows)]


def _is_accuracy(key: str) -> bool:
    return not key.startswith("train/") and key.endswith(("/accuracy", "/10_shot"))
