"""slurm.sbatch with an `srun` that starts its tasks here, told what SLURM tells: JAX finds them."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from tests.launch.test_local import FLAGS
from vit_jax.weights.run_folder import RunFolder

ROOT = pathlib.Path(__file__).parents[2]

# Two tasks on this host; the highest exit code counts, and the first bad one ends the others.
SRUN = """#!/usr/bin/env python3
import os, subprocess, sys, time
assert sys.argv[1] == "--kill-on-bad-exit=1"
tasks = [
    subprocess.Popen(
        sys.argv[2:],
        env=os.environ
        | {"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n), "SLURM_NTASKS": "2",
           "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1"},
    )
    for n in range(2)
]
while None in (codes := [task.poll() for task in tasks]):
    if any(codes):
        for task in tasks:
            task.kill()
    time.sleep(0.05)
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""


@pytest.fixture
def cluster(tmp_path):
    """A folder to submit from, and the environment of a batch script."""
    for name in ("bin", "venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    _program(tmp_path / "bin/srun", SRUN)
    _program(tmp_path / "bin/scontrol", f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\nexit 1\n')
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": str(_job_of_a_free_port()),
        "VIT_JAX_VENV": str(tmp_path / "venv"),
        "JAX_NUM_CPU_DEVICES": "1",
    }
    return tmp_path, environment


def submit(cluster, *flags, program=f'exec {sys.executable} -m vit_jax.cli "$@"'):
    folder, environment = cluster
    _program(folder / "venv/bin/vit-jax", f"#!/bin/bash\n{program}\n")
    return subprocess.run(
        ["bash", str(ROOT / "launch/slurm.sbatch"), *flags], cwd=folder, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip


def _program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def _job_of_a_free_port():
    """JAX meets at a port that follows from the number of the job, 61440 + number % 4096."""
    for number in range(os.getpid() % 4096, 4096):
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", 61440 + number)):
                return number
    raise AssertionError("no free port")


def test_the_tasks_of_a_job_train_together(cluster):
    folder, _ = cluster
    result = submit(cluster, *FLAGS, f"--workdir={folder / 'run'}")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "ok   data     digits train has" in result.stdout
    assert "global batch: 8 = 2 hosts x 1 device x 4 images" in result.stderr
    assert [r["step"] for r in RunFolder(folder / "run").metrics_records()] == [2, 4, 6]
    assert not (folder / "requeued").exists()


ENDS = 'if [ "$1" = train ]; then [ "$SLURM_PROCID" = 0 ] && exit {code}; sleep 5; fi'


@pytest.mark.parametrize(
    ("code", "is_requeued"), [(42, True), (134, True), (255, True), (1, False), (2, False)]
)
def test_exit_codes_decide_on_a_restart(cluster, code, is_requeued):
    """Also when the other task was killed for it, which srun would tell."""
    folder, environment = cluster
    if is_requeued:  # the batch script waits for its own end, which does not come here
        _program(folder / "bin/sleep", "#!/bin/sh\nexit 0\n")
    result = submit(cluster, program=ENDS.format(code=code))
    assert (folder / "requeued").exists() == is_requeued
    if is_requeued:
        assert (folder / "requeued").read_text() == f"requeue {environment['SLURM_JOB_ID']}\n"
    else:
        assert result.returncode == code


def test_sigterm_reaches_the_run_through_the_shell_alone(cluster):
    """As where SLURM signals nothing but the processes that it started itself."""
    folder, environment = cluster
    saves = f"trap 'echo saved > {folder}/saved; exit 42' TERM; touch {folder}/ready$SLURM_PROCID"
    program = f'if [ "$1" = train ]; then {saves}; while :; do sleep 0.1; done; fi'
    _program(folder / "venv/bin/vit-jax", f"#!/bin/bash\n{program}\n")
    kept = SRUN.replace("if any(codes):", "if any(codes) and 42 not in codes:")
    told = "while not all(os.path.exists(f'ready{n}') for n in range(2)): time.sleep(0.05)\n"
    told += "for task in tasks: task.terminate()\n"
    _program(folder / "bin/srun", kept.replace("while None", told + "while None"))
    environment["VIT_JAX_RESTARTS"] = "0"
    result = subprocess.run(
        ["bash", str(ROOT / "launch/slurm.sbatch")], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 42, result.stderr
    assert (folder / "saved").exists()


def test_a_job_is_not_queued_for_ever(cluster):
    cluster[1]["SLURM_RESTART_COUNT"] = "100"
    result = submit(cluster, program=ENDS.format(code=42))
    assert result.returncode >= 42 and not (cluster[0] / "requeued").exists()


def test_what_would_fail_is_found_before_the_tasks_start(cluster):
    result = submit(cluster, "--config=configs/demo.py", "--config.data.name=glyph", "--workdir=x")
    assert result.returncode == 2 and "Did you mean glyphs?" in result.stdout
    assert "srun" not in result.stderr


def test_a_dry_run_prints_what_would_run(cluster):
    result = submit(cluster, "--dry-run", "--config=configs/demo.py", "--config.total=3 steps")
    preflight, *run, then = result.stdout.strip().split("\n")
    assert re.fullmatch(r"\S*/venv/bin/vit-jax preflight --config=.* --config.total=3\\ steps ",
                        preflight)  # fmt: skip
    assert "srun --kill-on-bad-exit=1" in run[0] and "up to 100 times: scontrol requeue" in then
    assert not (cluster[0] / "x").exists()


def test_without_an_installation_there_is_one_line(cluster):
    folder, environment = cluster
    result = subprocess.run(
        ["bash", str(ROOT / "launch/slurm.sbatch")], cwd=folder, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "make demo" in result.stderr
