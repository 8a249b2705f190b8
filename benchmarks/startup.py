"""How long until something happens: an import, a help text, the first step of a run.

    python -m benchmarks.startup [--rounds=3] [--write]

The run is `vit-jax train` on built-in data, of one step, into a new folder: first where nothing was
compiled before, then again with the compiled programs of the first. Both are whole commands, from
their start to their end, a checkpoint and an evaluation included.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import results
from vit_jax.startup import CACHE_FOLDER

PROGRAM = "startup.py"
CLI = (sys.executable, "-m", "vit_jax.cli")
TRAIN = (
    sys.executable, "-m", "vit_jax.main", "--config=configs/demo.py", "--config.total=1 steps",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, taken in one_round().items():
            seconds.setdefault(name, []).append(taken)
    section = document(seconds, arguments.rounds)
    print(section)
    if arguments.write:
        results.write(PROGRAM, section)


def one_round() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        cache = os.environ | {CACHE_FOLDER: str(place / "compiled")}
        return {
            "python -c pass": timed(sys.executable, "-c", "pass"),
            "import vit_jax": timed(sys.executable, "-c", "import vit_jax"),
            "vit-jax --help": timed(*CLI, "--help"),
            "vit-jax train, one step, nothing compiled before": timed(
                *TRAIN, f"--workdir={place / 'first'}", environment=cache
            ),
            "the same in a new folder, compiled before": timed(
                *TRAIN, f"--workdir={place / 'second'}", environment=cache
            ),
        }


def timed(*command: str, environment: dict[str, str] | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def document(seconds: dict[str, list[float]], rounds: int) -> str:
    """The section of RESULTS.md."""
    return "\n".join([
        "## Start-up",
        "",
        f"{results.origin(PROGRAM, 'jax', 'jaxlib', 'flax')} Seconds, {rounds} rounds.",
        "",
        "| | median | least |",
        "|---|--:|--:|",
        *(
            f"| {name} | {statistics.median(taken):.2f} | {min(taken):.2f} |"
            for name, taken in seconds.items()
        ),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
