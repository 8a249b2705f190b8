"""A real job of several processes under launch/local.py, small enough to be killed many times."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import cv2
import jax
import numpy as np

from vit_jax.train.usage import MEASURED
from vit_jax.weights.load import read_weights
from vit_jax.weights.manifest import read_manifest
from vit_jax.weights.paths import as_path
from vit_jax.weights.run_folder import RunFolder

TOTAL = 240


def _images():
    """A folder of noise in four classes. Digits would do, but importing scikit-learn is a fifth of
    the time that a process takes to start, and these start often."""
    folder = pathlib.Path(__file__).parents[2] / ".pytest_cache" / "noise"
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        new = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))
        rng = np.random.default_rng(0)
        for number in range(80):
            path = new / str(number % 4) / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            cv2.imwrite(str(path), rng.integers(0, 255, (16, 16, 3), np.uint8))
        with contextlib.suppress(OSError):  # another worker was faster
            new.rename(folder)
    return folder


DATA = _images()
FLAGS = (
    "--config=configs/demo.py:stage=finetune", f"--config.data.name={DATA}",
    f"--config.evaluators.digits.data={DATA}", "--config.model.width=16",
    "--config.model.depth=2", "--config.model.heads=2", "--config.model.mlp_dim=32",
    "--config.image_size=16", "--config.batch_size=8", f"--config.total={TOTAL} steps",
    "--config.log_every=1 steps", "--config.checkpoint_every=4 steps",
    "--config.checkpoints_kept=3", "--config.evaluators.digits.every=50%",
)  # fmt: skip
# Compiled once for all that are started: most of a start would be compiling otherwise.
ENVIRONMENT = os.environ | {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}


class Job:
    """The supervisor and its processes. A context manager that leaves none of them behind."""

    def __init__(self, workdir, *flags, processes=2, devices=1, pace=0.0, environment=None):
        """`pace`: seconds that a step takes at least, so that there is time to disturb it."""
        command = [sys.executable, "launch/local.py", f"--processes={processes}"]
        command += [f"--devices-per-process={devices}", "--pause=0", "--restarts=40", "--"]
        command += [sys.executable, "-m", "tests.chaos.recorded", *FLAGS, *flags]
        self.folder = RunFolder(as_path(workdir))
        # Through a pipe: a log file could not grow either when the disk is full.
        self._supervisor = subprocess.Popen(
            [*command, f"--workdir={workdir}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT | {"SECONDS_PER_BATCH": str(pace)} | (environment or {}),
        )
        self._lines = []
        self._reader = threading.Thread(target=lambda: self._lines.extend(self._supervisor.stdout))
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._supervisor.poll() is None:
            for pid in self.processes():
                _kill(pid, signal.SIGKILL)
            self._supervisor.kill()
            for pid in self.processes():
                _kill(pid, signal.SIGKILL)
        self._supervisor.wait()
        self._reader.join()
        self._supervisor.stdout.close()

    def is_running(self):
        return self._supervisor.poll() is None

    def processes(self):
        """Their ids, in the order of their numbers."""
        pid = self._supervisor.pid
        try:
            return [
                int(child)
                for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            ]
        except OSError:
            return []

    def kill(self, number, how=signal.SIGKILL):
        """One of the processes; whether there was one."""
        processes = self.processes()
        return number < len(processes) and _kill(processes[number], how)

    def stop(self):
        """As Ctrl-C or a scheduler would."""
        self._supervisor.terminate()
        return self.wait()

    def wait(self, seconds=300):
        """Its exit code."""
        return self._supervisor.wait(timeout=seconds)

    def log(self):
        """All that it has said."""
        if not self.is_running():
            self._reader.join(10)
        return "".join(self._lines)

    def story(self):
        """What to read where it ended otherwise than expected: all that was told in one line, then
        the end of the log. (One that fails takes others along, whose traces are longer.)"""
        told = [line for line in self.log().splitlines() if line.startswith(("vit-jax:", "launch"))]
        return "\n".join([*told, "...", self.log()[-3000:]])

    def wait_for(self, condition, seconds=120):
        """Until it holds, or the job is over; whether it holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.is_running():
            if condition():
                return True
            time.sleep(0.005)
        return condition()

    def wait_for_record(self, step):
        """Until metrics.jsonl has this step."""
        return self.wait_for(lambda: last_step(self.folder) >= step)


def _kill(pid, how):
    try:
        os.kill(pid, how)
        return True
    except ProcessLookupError:
        return False


def last_step(folder):
    return max((record["step"] for record in folder.metrics_records()), default=0)


def records(folder):
    """What was learned, without what was measured."""
    return [
        {k: v for k, v in record.items() if k.removeprefix("train/") not in MEASURED}
        for record in folder.metrics_records()
    ]


def assert_same_run(folder, untouched):
    """Parameters and moments bit for bit, and every step recorded once, with the same values."""
    assert [r["step"] for r in folder.metrics_records()] == list(range(1, TOTAL + 1))
    assert records(folder) == records(untouched)
    assert json.loads(folder.summary.read_text())["steps"] == TOTAL
    ours, theirs = (read_weights(f.path).params for f in (folder, untouched))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    leaves, expected = (
        read_manifest(f.checkpoints / str(TOTAL))["leaves"] for f in (folder, untouched)
    )
    assert leaves == expected and any(name.startswith("progress/opt_state") for name in leaves)


def as_if_killed(untouched, workdir, step):
    """The folder of a run that died two steps after its checkpoint of `step`."""
    shutil.copytree(untouched.path, workdir)
    folder = RunFolder(pathlib.Path(workdir))
    folder.summary.unlink()
    lines = folder.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(lines[: step + 2]) + '{"step": ')
    for path in folder.checkpoints.iterdir():
        if path.name.isdecimal() and int(path.name) > step:
            shutil.rmtree(path)
    return folder
