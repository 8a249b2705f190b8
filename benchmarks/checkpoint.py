"""What a checkpoint costs: how long training stands still, how long until it is on disk.

    python -m benchmarks.checkpoint [--model=S/16] [--image-size=224] [--batch-size=16] [--rounds=7]

Each round takes a few steps, saves the state as the trainer does, waits for it, writes the same
bytes to one plain file (with fsync), and computes the checksums alone, one after the other, so that
a change of the machine's load hits all. Prints medians over rounds.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import results
from vit_jax.data.sources import open_source
from vit_jax.train.checkpoint import Checkpoints
from vit_jax.train.config import default_config, run_config
from vit_jax.train.program import make_program
from vit_jax.train.sharding import make_mesh
from vit_jax.weights.manifest import make_manifest

STEPS = 3  # in each round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="S/16")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=pathlib.Path, help="where to write; default: a new one")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    arguments = parser.parse_args()

    step, state, batch = _training(arguments)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    seconds: dict[str, list[float]] = {
        name: [] for name in ("step", "blocking", "total", "raw write", "checksums")
    }
    place = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        with Checkpoints(place / "checkpoints", keep=1) as checkpoints:
            for number in range(arguments.rounds + 1):  # the first compiles and is not counted
                for _ in range(STEPS):
                    (state, _), taken = _timed(lambda state=state: step(state, batch, {}))
                began = time.perf_counter()
                checkpoints.save(number, state)
                blocking = time.perf_counter() - began
                checkpoints.wait()
                total = time.perf_counter() - began
                _, raw = _timed(lambda state=state: _write(place / "raw", state))
                _, checksums = _timed(lambda state=state: make_manifest({"state": state}, {}))
                if number:
                    measured = (taken, blocking, total, raw, checksums)
                    for values, value in zip(seconds.values(), measured, strict=True):
                        values.append(value)
    finally:
        shutil.rmtree(place)

    median = {name: statistics.median(values) for name, values in seconds.items()}
    what = f"{arguments.model}, {size / 1e6:.0f} MB of state, {jax.devices()[0].device_kind}"
    lines = [f"{name:24} {1000 * value:10.0f} ms" for name, value in median.items()]
    for name, part, whole in (
        ("blocking / step", "blocking", "step"),
        ("total / raw write", "total", "raw write"),
        ("checksums / total", "checksums", "total"),
    ):
        ratio = statistics.median(a / b for a, b in zip(seconds[part], seconds[whole], strict=True))
        lines.append(f"{name:24} {ratio:10.3f}")
    print("\n".join([what, *lines]))
    if arguments.write:
        results.write_lines("checkpoint.py", "Checkpoints", what, lines, "jax", "orbax-checkpoint")


def _training(arguments: argparse.Namespace) -> tuple[Callable[..., Any], Any, Any]:
    """A compiled train step, and what it takes."""
    config = default_config(image_size=arguments.image_size, batch_size=arguments.batch_size)
    config.total = "1000 steps"
    config.model.name = arguments.model
    config.data.name = "visual_atoms_1k"
    run = run_config(config)
    source = open_source(run.data.name, "train", run.image_size)
    program = make_program(run, source, make_mesh(run.mesh))
    batch = jax.tree.map(
        lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), program.batch
    )
    return program.lower().compile(), program.init(jax.random.key(0)), batch


def _timed(act: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = jax.block_until_ready(act())
    return result, time.perf_counter() - began


def _write(path: pathlib.Path, state: Any) -> None:
    with path.open("wb") as file:
        for leaf in jax.tree.leaves(state):
            file.write(np.ascontiguousarray(leaf))
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
