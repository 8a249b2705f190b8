"""Ctrl-C once saves and stops, twice stops at once; SIGTERM saves. In real processes."""

import signal
import subprocess
import sys
import time

from tests.chaos.job import ENVIRONMENT, FLAGS, last_step
from vit_jax.weights.checkpoint import latest_step
from vit_jax.weights.run_folder import RunFolder


def run_until_step(workdir, step, *flags):
    """A process of its own that trains, once it has come so far."""
    command = [sys.executable, "-m", "vit_jax.main", *FLAGS, *flags, f"--workdir={workdir}"]
    process = subprocess.Popen(
        command, env=ENVIRONMENT | {"JAX_NUM_CPU_DEVICES": "1"}, stderr=subprocess.PIPE, text=True
    )
    while last_step(RunFolder(workdir)) < step:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    return process


def test_asked_once_it_saves_and_asks_for_a_restart(tmp_path):
    for number, (how, more) in enumerate(((signal.SIGINT, 2), (signal.SIGTERM, 10)), 1):
        process = run_until_step(tmp_path, more, "--config.checkpoint_every=1 hour")
        process.send_signal(how)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 42, said
        step = latest_step(tmp_path / "checkpoints")
        assert step >= more and f"saved at step {step}; start again to go on" in said
        assert ("resuming at step" in said) == (number > 1)
    assert len(RunFolder(tmp_path).metrics_records()) == step


def test_asked_twice_it_stops_at_once(tmp_path):
    script = (
        "import time\n"
        "from vit_jax.train.signals import StopSignals\n"
        "with StopSignals():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert "once more to stop at once" in process.stderr.readline() + process.stderr.readline()
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
