"""A learning rate chosen on held-out images, then training on all of them (appendix B.1.1).

Every trial is a run of its own below the sweep's folder; started again, a sweep goes on where it
was, since finished runs are.
"""

import dataclasses
import pathlib
import statistics
from typing import Any

from vit_jax.errors import Diverged, UsageError
from vit_jax.train.cluster import is_lead
from vit_jax.train.config import RunConfig
from vit_jax.train.loop import train
from vit_jax.weights.best import best_of
from vit_jax.weights.paths import as_path
from vit_jax.weights.run_folder import write_json


def sweep(config: RunConfig, workdir: str | pathlib.Path) -> dict[str, Any]:
    """Tries `config.sweep.rates`, trains with the best one for each seed.

    Returns what sweep.json holds: the metric at each rate, the rate that was chosen, and mean and
    deviation of the final runs.
    """
    _check(config)
    folder = as_path(workdir)
    tried = {rate: _try(config, rate, folder / f"rate_{rate:g}") for rate in config.sweep.rates}
    # Lower rates come first, so that of equals the more careful one is chosen.
    found = [
        {"step": number, config.sweep.metric: tried[rate]}
        for number, rate in enumerate(sorted(tried))
        if tried[rate] is not None
    ]
    best = best_of(found, config.sweep.metric)
    if best is None:
        raise Diverged(f"{folder}: no learning rate of {config.sweep.rates} led anywhere")
    rate = sorted(tried)[best.step]
    finals = [
        train(final_config(config, rate, seed), folder / f"seed_{seed}")["metrics"]
        for seed in range(config.seed, config.seed + config.sweep.seeds)
    ]
    result = {
        "metric": config.sweep.metric,
        "tried": {f"{rate:g}": value for rate, value in tried.items()},
        "learning_rate": rate,
        "seeds": config.sweep.seeds,
        "results": _mean_and_deviation(finals),
    }
    if is_lead():
        write_json(folder / "sweep.json", result)
    return result


def final_config(config: RunConfig, rate: float, seed: int) -> RunConfig:
    """All training images, the rate that was chosen; nothing is left to validate on."""
    validation = config.sweep.metric.partition("/")[0]
    watches = config.best_by.partition("/")[0] != validation
    return dataclasses.replace(
        _with_rate(config, rate),
        data=dataclasses.replace(config.data, split=config.sweep.final_split),
        evaluators={k: v for k, v in config.evaluators.items() if k != validation},
        best_by=config.best_by if watches else "",
        patience=config.patience if watches else 0,
        seed=seed,
    )


def sweep_text(result: dict[str, Any]) -> str:
    """A few lines."""
    lines = [f"{'learning rate':24} {result['metric']}"]
    for rate, value in result["tried"].items():
        chosen = "  <- chosen" if float(rate) == result["learning_rate"] else ""
        lines.append(f"{rate:24} {'diverged' if value is None else f'{value:.4f}'}{chosen}")
    for key, found in result["results"].items():
        spread = f" ± {found['std']:.4f}" if result["seeds"] > 1 else ""
        lines.append(f"{key:24} {found['mean']:.4f}{spread}")
    return "\n".join(lines)


def _check(config: RunConfig) -> None:
    if not config.sweep.rates:
        raise UsageError(
            "--sweep: config.sweep.rates is empty; give learning rates to try, as in "
            "--config.sweep.rates=0.003,0.01,0.03"
        )
    if config.sweep.metric.partition("/")[0] not in config.evaluators:
        raise UsageError(
            f"--sweep: config.sweep.metric={config.sweep.metric!r} needs an evaluator of that name "
            f"on images that are not trained on; there are "
            f"{', '.join(config.evaluators) or 'none'}. configs/finetune.py has one unless "
            f"held_out=0"
        )


def _try(config: RunConfig, rate: float, folder: pathlib.Path) -> float | None:
    """The metric that a rate leads to; None where it leads nowhere."""
    try:
        summary = train(_with_rate(config, rate), folder)
    except Diverged:
        return None
    metrics = summary.get("best", summary)["metrics"]
    if config.sweep.metric not in metrics:
        raise UsageError(
            f"config.sweep.metric={config.sweep.metric!r}: expected one of "
            f"{', '.join(key for key in metrics if not key.startswith('train/'))}"
        )
    return metrics[config.sweep.metric]


def _with_rate(config: RunConfig, rate: float) -> RunConfig:
    return dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, learning_rate=rate)
    )


def _mean_and_deviation(finals: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Of all that evaluators measured."""
    return {
        key: {
            "mean": statistics.fmean(values := [final[key] for final in finals]),
            "std": statistics.pstdev(values),
            "runs": values,
        }
        for key in finals[0]
        if not key.startswith("train/")
    }
