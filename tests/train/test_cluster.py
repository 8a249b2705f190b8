"""Processes that wait for others say for whom, and give up."""

import os
import socket
import subprocess
import sys

from vit_jax.train.cluster import COORDINATOR, PROCESS, PROCESSES

JOIN = (
    "import sys; from vit_jax.cli import run_verb; from vit_jax.train import cluster\n"
    "cluster._REMIND_SECONDS = 1\n"
    "sys.exit(run_verb(lambda _: cluster.join(patience=float(sys.argv[1])), []))\n"
)


def start(port, number, patience):
    settings = {COORDINATOR: f"localhost:{port}", PROCESSES: "3", PROCESS: str(number)}
    return subprocess.Popen(
        [sys.executable, "-c", JOIN, str(patience)],
        env=os.environ | settings, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_a_start_names_the_processes_that_are_missing():
    port = free_port()
    lead, other = start(port, 0, patience=8), start(port, 2, patience=12)
    said = lead.communicate(timeout=60)[1]
    assert lead.returncode == 42
    assert "waiting for process 1 to start" in said
    assert "gave up after 8 s: process 1 did not start" in said
    said = other.communicate(timeout=60)[1]
    assert other.returncode == 42
    assert f"process 0 at localhost:{port} did not start" in said


def test_a_late_process_is_waited_for():
    port = free_port()
    early = [start(port, number, patience=60) for number in (2, 0)]
    assert "waiting for process 1" in early[1].stderr.readline()
    late = start(port, 1, patience=60)
    for process in (*early, late):
        process.communicate(timeout=120)
        assert process.returncode == 0
