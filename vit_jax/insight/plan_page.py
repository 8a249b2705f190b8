"""A plan as a page: the same tables as in the terminal, and the learning rate drawn."""

from collections.abc import Sequence

import numpy as np

from vit_jax.insight.curves import Run, chart_data
from vit_jax.insight.page import Section, charts, code, page, table
from vit_jax.tpu.advice import Trial
from vit_jax.tpu.plan import GIB, Plan
from vit_jax.tpu.text import memory_rows, run_lines, time_lines, trials_text


def plan_page(plan: Plan, trials: Sequence[Trial] = (), price: float | None = None) -> str:
    """Everything that `vit-jax plan` knows of a run."""
    verdict = "fits" if plan.fits else "does not fit"
    rows = [[what, f"{size / GIB:.3f}"] for what, size in memory_rows(plan)]
    rows.append([f"in all, of {plan.hbm / GIB:.0f}", f"{plan.memory.total / GIB:.3f}"])
    steps = np.linspace(0, plan.total_steps - 1, len(plan.curve)).astype(int)
    records = [
        {"step": int(step), "train/learning_rate": rate}
        for step, rate in zip(steps, plan.curve, strict=True)
    ]
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    settings = [
        ["mesh", mesh],
        ["batch", f"{plan.batch_size}, in {plan.accumulation} microbatches"],
        ["remat", plan.remat],
        ["compiled", "by the TPU compiler" if plan.is_compiled else "no: estimated"],
    ]
    time = code("\n".join([*time_lines(plan), *run_lines(plan, price)]))
    curve = charts(chart_data([Run(plan.model, records, plan.batch_size)], clocks=False))
    sections = [
        Section("settings", "What is planned", [table(["", ""], settings)]),
        Section("memory", "Memory per device", [table(["part", "GiB"], rows)]),
        Section("time", "Time", [time]),
        Section("rate", "Learning rate", [curve]),
    ]
    if trials:
        sections.append(Section("help", "What would help", [code(trials_text(trials))]))
    return page(f"{plan.model} on {plan.topology.text()}: {verdict}", [], sections)
