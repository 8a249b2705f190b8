"""What the training loop costs besides the step itself, and whether devices wait for it.

    python -m benchmarks.loop [--steps=1000] [--rounds=5] [--write]

Networks of a millisecond or less a step are trained by the trainer itself. In the same process,
just before, the same compiled step is called on one batch again and again, as far ahead of the
device as the loop goes. The difference of the medians is what the loop adds to each step: with
batches that are there already, which is Python's part, and with images that are read and cropped.
Data wait is the share of its time that the loop waited for a batch.

Then a network of some 50 ms a step is trained under JAX's profiler. A step that was handed over
before the device was done with the one before did not let it wait.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks import results
from vit_jax.train import loop
from vit_jax.train.config import RunConfig, default_config, run_config
from vit_jax.train.program import Program

PROGRAM = "loop.py"
WARM = 50  # steps that are not counted
PROFILED = 200  # steps
HANDED_OVER = "a step is handed over"


@dataclasses.dataclass(frozen=True)
class Turn:
    """Of one run; seconds are medians over its steps."""

    bare: float
    looped: float
    data_wait: float  # share


@dataclasses.dataclass(frozen=True)
class Profile:
    """Of consecutive steps of one run; in seconds."""

    steps: int
    late: int  # steps that the device had to wait for
    step: float  # median
    pause: float  # of the device between two steps, median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    arguments = parser.parse_args()
    trivial, usual = (
        config_of(arguments.steps, heads=1, width=8, depth=1, mlp_dim=8),
        config_of(400),
    )
    kinds = {
        "8 channels, batches that are there": (trivial, ready_batches),
        "8 channels, digits": (trivial, contextlib.nullcontext),
        "Pico/8, digits": (usual, contextlib.nullcontext),
    }
    turns: dict[str, list[Turn]] = {name: [] for name in kinds}
    for _ in range(arguments.rounds):
        for name, (config, data) in kinds.items():
            with data():
                turns[name].append(turn(config))
    profiles = {every: profile(busy_config(every)) for every in (1, 100)}
    section = f"{document(turns, arguments.steps)}\n\n{in_a_profile(profiles)}"
    print(section)
    if arguments.write:
        results.write(PROGRAM, section)


def config_of(steps: int, **network: int) -> RunConfig:
    """A run on small images."""
    config = default_config(
        image_size=16,
        batch_size=8,
        total=f"{steps} steps",
        log_every="100 steps",
        checkpoint_every=f"{steps} steps",
    )
    config.model.update(name="Pico/8", **network)
    config.data.update(name="digits", crop="resize", flip=False)
    return run_config(config)


def turn(config: RunConfig) -> Turn:
    """One run, with the bare step measured where the loop would start."""
    calls: list[float] = []
    bare: list[float] = []
    compile_step = loop._compile

    def compiled(program: Program, progress: Any) -> Any:
        step = compile_step(program, progress)
        bare.append(bare_seconds(program, step))

        def timed(*values: Any) -> Any:
            calls.append(time.perf_counter())
            return step(*values)

        return timed

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(loop, "_compile", compiled),
    ):
        summary = loop.train(config, folder)
    seconds = summary["goodput"]["seconds"]
    periods = [b - a for a, b in itertools.pairwise(calls[WARM:])]
    waited = seconds["data_wait"] / (seconds["data_wait"] + seconds["step"])
    return Turn(bare[0], statistics.median(periods), waited)


def bare_seconds(program: Program, step: Any) -> float:
    """Of the step alone, called as far ahead of the device as the loop goes."""
    state, batch = program.init(jax.random.key(0)), one_batch(program)
    calls, in_flight = [], collections.deque()
    for _ in range(500):
        calls.append(time.perf_counter())
        state, metrics = step(state, batch, {})
        in_flight.append(metrics)
        if len(in_flight) > loop._STEPS_IN_FLIGHT:
            int(in_flight.popleft()["bad_in_a_row"])
    jax.block_until_ready(state)
    return statistics.median(b - a for a, b in itertools.pairwise(calls[WARM:]))


def busy_config(log_every: int) -> RunConfig:
    """Enough for the device to do, little to read."""
    config = config_of(PROFILED + 2 * WARM, heads=3, width=96, depth=6, mlp_dim=384)
    return dataclasses.replace(config, image_size=32, batch_size=32, log_every=f"{log_every} steps")


def profile(config: RunConfig) -> Profile:
    """Of steps in the middle of a run."""
    compile_step, calls = loop._compile, itertools.count()

    with tempfile.TemporaryDirectory() as folder:

        def compiled(program: Program, progress: Any) -> Any:
            step = compile_step(program, progress)

            def traced(*values: Any) -> Any:
                call = next(calls)
                if call in (WARM, WARM + PROFILED):
                    jax.block_until_ready(values)  # all steps of the trace are whole
                if call == WARM:
                    options = jax.profiler.ProfileOptions()
                    options.python_tracer_level = 0  # which would slow down the host
                    jax.profiler.start_trace(f"{folder}/trace", profiler_options=options)
                elif call == WARM + PROFILED:
                    jax.profiler.stop_trace()
                with jax.profiler.TraceAnnotation(HANDED_OVER):
                    return step(*values)

            return traced

        with mock.patch.object(loop, "_compile", compiled):
            loop.train(config, f"{folder}/run")
        [file] = pathlib.Path(folder, "trace").rglob("*.xplane.pb")
        return read_profile(jax.profiler.ProfileData.from_file(str(file)))


def read_profile(data: jax.profiler.ProfileData) -> Profile:
    """When steps were handed over, and when the device began and ended them."""
    handed_over: list[float] = []
    runs: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)
    for event in (e for plane in data.planes for line in plane.lines for e in line.events):
        stats = dict(event.stats)
        if event.name == HANDED_OVER:
            handed_over.append(event.end_ns)
        elif "step" in stats.get("hlo_module", ""):
            runs[stats["run_id"]].append((event.start_ns, event.end_ns))
    spans = sorted((min(a for a, _ in run), max(b for _, b in run)) for run in runs.values())
    pairs = itertools.pairwise(zip(sorted(handed_over), spans, strict=True))
    late = [call > before[1] for (_, before), (call, _) in pairs]
    return Profile(
        len(late),
        sum(late),
        statistics.median(b - a for a, b in spans) / 1e9,
        statistics.median(b[0] - a[1] for a, b in itertools.pairwise(spans)) / 1e9,
    )


def one_batch(program: Program) -> dict[str, jax.Array]:
    return jax.tree.map(
        lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), program.batch
    )


@contextlib.contextmanager
def ready_batches() -> Iterator[None]:
    """No images are read: the same batch at every step."""

    def batches(run: Any, *_: Any) -> Iterator[dict[str, jax.Array]]:
        batch = one_batch(run.program)
        while True:
            yield batch

    with mock.patch.object(loop, "_batches", batches):
        yield


def document(turns: dict[str, list[Turn]], steps: int) -> str:
    """The section of RESULTS.md."""
    lines = [
        "## What the loop costs",
        "",
        f"{results.origin(PROGRAM, 'jax', 'jaxlib')} Batches of 8 images of 16 px, {steps} "
        f"steps in each of {len(next(iter(turns.values())))} runs (400 of Pico/8); medians over "
        "the steps, then over the runs.",
        "",
        "| | bare step, ms | in the loop, ms | the loop adds, ms | data wait |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, found in turns.items():
        bare, looped, added, waited = (
            statistics.median(values)
            for values in zip(
                *((t.bare, t.looped, t.looped - t.bare, t.data_wait) for t in found), strict=True
            )
        )
        lines.append(
            f"| {name} | {1000 * bare:.2f} | {1000 * looped:.2f} | {1000 * added:.2f} | "
            f"{waited:.1%} |"
        )
    return "\n".join(lines)


def in_a_profile(profiles: dict[int, Profile]) -> str:
    """The rest of the section."""
    lines = [
        f"Under JAX's profiler, {PROFILED} steps of 6 layers of 96 channels on 32 digits at 32 px:",
        "",
        "| logged | step, ms | between two steps, ms | steps that the device waited for |",
        "|---|--:|--:|--:|",
    ]
    for every, found in profiles.items():
        lines.append(
            f"| every {f'{every} steps' if every > 1 else 'step'} | {1000 * found.step:.2f} | "
            f"{1000 * found.pause:.2f} | {found.late} of {found.steps} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
