"""A run's folder, on disk or in a bucket: where its files are, and how to read its network."""

import dataclasses
import json
import pathlib
from typing import Any

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, config_from_dict
from vit_jax.weights.best import best_of
from vit_jax.weights.kind import kind_of
from vit_jax.weights.lora import Lora
from vit_jax.weights.paths import exists, write_bytes


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Paths inside a --workdir, and its JSON files."""

    path: pathlib.Path

    @property
    def config(self) -> pathlib.Path:
        return self.path / "config.json"

    @property
    def environment(self) -> pathlib.Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> pathlib.Path:
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> pathlib.Path:
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> pathlib.Path:
        return self.path / "tensorboard"

    @property
    def plots(self) -> pathlib.Path:
        return self.path / "plots"

    @property
    def plan(self) -> pathlib.Path:
        return self.path / "plan.json"

    @property
    def report(self) -> pathlib.Path:
        return self.path / "report.html"

    def is_run(self) -> bool:
        return exists(self.config) and kind_of(self.path) == "run"

    def check(self) -> None:
        """Raises where it is no run."""
        if not self.is_run():
            found = "a config.json of another library" if exists(self.config) else "no config.json"
            raise UsageError(
                f"{self.path} is no run folder: it has {found}; give the --workdir of a run"
            )

    def network(self) -> NetworkConfig:
        """The network that this run trains."""
        self.check()
        try:
            return config_from_dict(read_json(self.config)["network"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self.config} describes no run of this version of vit_jax ({error!r}): give the "
                f"--workdir of one"
            ) from error

    def class_names(self) -> tuple[str, ...]:
        """Of the data that it was trained on; nothing where that is not known."""
        return tuple(read_json(self.config).get("class_names", ())) if self.is_run() else ()

    def lora(self) -> Lora:
        """How the network's parameters are kept in this run's checkpoints."""
        return Lora(**read_json(self.config).get("lora", {}))

    def best_step(self) -> int | None:
        """The step whose weights the run is for, where its config says by which metric."""
        metric = read_json(self.config).get("best_by")
        best = best_of(self.metrics_records(), metric) if metric else None
        return best.step if best else None

    def metrics_records(self) -> list[dict[str, Any]]:
        """What the run has logged so far, oldest first."""
        if not exists(self.metrics):
            return []
        *lines, _ = self.metrics.read_text().split("\n")  # what a crash cut off is no record
        return [json.loads(line) for line in lines]


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """One JSON object."""
    return json.loads(path.read_text())


def write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
    """One JSON object, indented for people."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: pathlib.Path, text: str) -> None:
    """Replaces the file in one move, so that nobody ever finds half of it."""
    write_bytes(path, text.encode())
