"""A plan in words, for the terminal."""

from collections.abc import Sequence

from vit_jax.tpu.advice import Trial
from vit_jax.tpu.plan import GIB, Plan
from vit_jax.tpu.search import Choice

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ROWS = 4


def plan_text(plan: Plan, price: float | None = None) -> str:
    """All that is known, line by line."""
    lines = [*_head(plan), "", *memory_lines(plan)]
    lines += ["", *time_lines(plan), "", *run_lines(plan, price), "", *curve_lines(plan)]
    return "\n".join(lines)


def trials_text(trials: Sequence[Trial]) -> str:
    """What to do about a plan that does not fit."""
    lines = ["What would help, each compiled as a whole step for this slice:"]
    for trial in trials:
        verdict = "fits" if trial.plan.fits else "does not fit either"
        rate = trial.plan.images_per_second
        speed = f", {rate:,.0f} images/s" if rate else ""
        lines.append(
            f"  {trial.knob + ':':13} {'saves' if trial.saved >= 0 else 'costs'} "
            f"{abs(trial.saved) / GIB:6.2f} GiB of a chip, "
            f"{trial.plan.memory.total / GIB:.2f} GiB: {verdict}{speed}\n"
            f"                {' '.join(trial.flags)}"
            + ("   (another run: its learning rate is for its batch)" * (trial.knob == "batch"))
        )
    if not any(trial.plan.fits for trial in trials):
        lines.append("Nothing tried is enough: take a larger slice.")
    return "\n".join(lines)


def choices_text(choices: Sequence[Choice]) -> str:
    """The ranking of a search."""
    if not choices:
        return "Nothing that was tried fits: take a larger slice, or a smaller batch."
    lines = [f"{'images/s':>12} {'utilisation':>12} {'GiB a chip':>11}  flags"]
    for choice in choices:
        plan = choice.plan
        flags = " ".join(choice.flags) or "(as the config says)"
        lines.append(
            f"{plan.images_per_second:12,.0f} {plan.utilization:12.1%} "
            f"{plan.memory.total / GIB:11.2f}  {flags}"
        )
    return "\n".join(lines)


def _head(plan: Plan) -> list[str]:
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    rows = plan.batch_size // (plan.mesh["replica"] * plan.mesh["fsdp"])
    shared = f", {plan.mesh['tensor']} devices share an image" if plan.mesh["tensor"] > 1 else ""
    parts = f" in {plan.accumulation} microbatches" if plan.accumulation > 1 else ""
    how = (
        f"compiled by the TPU compiler in {plan.compile_seconds:.0f} s"
        if plan.is_compiled
        else "ESTIMATED: no TPU compiler here, activations are rough and times unknown"
    )
    return [
        f"{plan.model} on {plan.topology.text()}: {'fits' if plan.fits else 'DOES NOT FIT'}",
        f"mesh {mesh}; batch {plan.batch_size} = {rows} per device{parts}{shared}; "
        f"remat {plan.remat}; {how}",
    ]


def memory_lines(plan: Plan) -> list[str]:
    """By part, against what there is."""
    memory, lines = plan.memory, []
    for label, size in memory_rows(plan):
        lines.append(f"  {label:44} {size / GIB:8.3f} GiB")
    free = (plan.hbm - memory.total) / GIB
    state = f"{free:.2f} GiB free" if free >= 0 else f"{-free:.2f} GiB too much"
    return [
        "memory per device",
        *lines,
        f"  {'in all':44} {memory.total / GIB:8.3f} of {plan.hbm / GIB:.0f} GiB HBM, {state}",
    ]


def memory_rows(plan: Plan) -> list[tuple[str, int]]:
    """(what, bytes), which add up to the total."""
    memory = plan.memory
    rows = [
        ("parameters", memory.parameters),
        ("optimizer moments", memory.moments),
        ("other state (average, teacher, counters)", memory.other_state),
        ("batch", memory.batch),
        ("activations kept for the backward pass, about", memory.activations),
        ("gradients and other temporaries", memory.temporaries - memory.activations),
    ]
    rest = memory.total - sum(size for _, size in rows)
    return [*rows, ("padding to tiles, results, code", rest)]


def time_lines(plan: Plan) -> list[str]:
    """From the compiler's cycles to images a second, with the formulas."""
    chip, per_image = plan.topology.chip, plan.flops_per_image
    lines = [
        f"FLOPs             {per_image / 1e9:,.1f} G an image (3 forward passes; what remat "
        f"computes again does not count), {plan.flops_per_step / 1e12:,.1f} T a step"
    ]
    if plan.cost is None:
        floor = plan.flops_per_step / plan.peak
        return [*lines, f"step time         not known; at the chips' peak {_time(floor)}"]
    cost = plan.cost
    lines += [
        f"step time         {_time(cost.seconds)} = {cost.cycles / 1e6:,.2f} M estimated cycles / "
        f"{chip.clock} GHz + {_time(cost.waiting)} waiting for collectives",
        f"images/s          {plan.images_per_second:,.0f} = batch / step time; "
        f"{plan.images_per_second / plan.topology.chips:,.1f} a chip",
        f"utilisation       {plan.utilization:.1%} = FLOPs per step / step time / "
        f"({plan.topology.devices} devices x {chip.peak:g} TFLOP/s)",
    ]
    if cost.without_estimate:
        lines.append(
            f"not counted       {cost.without_estimate} calls of Pallas kernels, which the "
            f"compiler does not estimate: the real step is longer"
        )
    if cost.unknown_loops:
        lines.append(
            f"not counted       {cost.unknown_loops} loops of unknown length, taken as one round"
        )
    lines.append(
        f"collectives       per step and device; ICI {chip.ici:g} GB/s each way over all links, "
        f"DCN {chip.dcn:g} GB/s"
    )
    for c in cost.collectives:
        lines.append(
            f"  {c.kind:18} {c.network}  {c.count:5} x   {c.bytes / 1e6:12,.2f} MB   "
            f"{_time(c.seconds)} on the wire"
        )
    return lines


def run_lines(plan: Plan, price: float | None) -> list[str]:
    """The whole schedule."""
    if plan.hours is None:
        return [f"the run           {plan.total_steps:,} steps"]
    cost = f", ${plan.chip_hours * price:,.0f} at ${price:g} a chip-hour" if price else ""
    return [
        f"the run           {plan.total_steps:,} steps, {plan.hours:,.1f} hours, "
        f"{plan.chip_hours:,.0f} chip-hours{cost} (steps alone: no evaluation, no restart)"
    ]


def curve_lines(plan: Plan) -> list[str]:
    """The learning rate over the run, as a picture of a few rows."""
    highest = max(plan.curve)
    levels = [round(value / highest * 8 * _ROWS) for value in plan.curve]
    rows = [
        "".join(_EIGHTHS[min(8, max(0, level - 8 * row))] for level in levels)
        for row in reversed(range(_ROWS))
    ]
    labels = [f"{highest:8.2g} ", *(" " * 9,) * (_ROWS - 2), f"{0:8} "]
    picture = [f"{label}|{row}|" for label, row in zip(labels, rows, strict=True)]
    end = f"{plan.total_steps:,} steps"
    return ["learning rate", *picture, f"{'':9} 0{end:>{len(levels)}}"]


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
