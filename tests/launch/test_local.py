"""Two real processes train as one does."""

import signal
import subprocess
import sys
import time

import pytest

from vit_jax.weights.run_folder import RunFolder

FLAGS = [
    "--config=configs/demo.py:stage=finetune", "--config.total=6 steps", "--config.batch_size=8",
    "--config.image_size=16", "--config.optimizer.warmup=2 steps", "--config.log_every=2 steps",
    "--config.evaluators.digits.every=100%",
]  # fmt: skip


def launch(workdir, processes, devices, *options):
    command = [sys.executable, "launch/local.py", f"--processes={processes}"]
    command += [f"--devices-per-process={devices}", *options, "--"]
    command += [sys.executable, "-m", "vit_jax.main", *FLAGS, f"--workdir={workdir}"]
    return subprocess.run(command, capture_output=True, text=True)


def test_two_processes_train_as_one_does(tmp_path):
    records = {}
    for name, processes, devices in (("one", 1, 4), ("two", 2, 2)):
        result = launch(tmp_path / name, processes, devices)
        assert result.returncode == 0, result.stderr[-2000:]
        records[name] = RunFolder(tmp_path / name).metrics_records()
    assert [r["step"] for r in records["two"]] == [2, 4, 6]
    for one, two in zip(records["one"], records["two"], strict=True):
        assert abs(one["train/loss"] - two["train/loss"]) < 1e-5 * one["train/loss"]
        assert one.get("digits/accuracy") == two.get("digits/accuracy")
    assert (tmp_path / "two" / "summary.json").is_file()


def test_a_failing_process_ends_the_job_with_its_exit_code(tmp_path):
    (tmp_path / "file").write_text("")
    result = launch(tmp_path / "file", 2, 1)
    assert result.returncode == 2
    assert "is no folder to write to" in result.stderr


def test_a_child_that_will_not_stop_is_killed():
    script = (
        "import os, signal, sys, time\n"
        "if os.environ['VIT_JAX_PROCESS'] == '0': time.sleep(1); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(60)\n"
    )
    started = time.monotonic()
    command = [sys.executable, "launch/local.py", "--processes=2", "--", sys.executable, "-c"]
    assert subprocess.run([*command, script]).returncode == 3
    assert time.monotonic() - started < 30


def supervise(script, *options, processes=2, **keywords):
    command = [sys.executable, "launch/local.py", f"--processes={processes}", "--pause=0.01"]
    return subprocess.Popen(
        [*command, *options, "--", sys.executable, "-u", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords,
    )  # fmt: skip


# Counts its starts in a file, and ends as its n-th argument says.
COUNT = """
import os, pathlib, signal, sys, time
if os.environ["VIT_JAX_PROCESS"] != "0":
    time.sleep(60)
path = pathlib.Path({path!r})
starts = len(path.read_text()) if path.exists() else 0
path.write_text("x" * (starts + 1))
code = {codes}[starts]
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""


@pytest.mark.parametrize(
    ("codes", "options", "starts", "ends_with"),
    [
        ([-9, 42, 134, 255, 1], (), 5, 1),  # all of these are restarted, 1 is not
        ([-9, 2], (), 2, 2),
        ([3], (), 1, 3),
        ([-9] * 9, ("--restarts=2",), 3, 137),
        ([42] * 9, ("--restarts=0",), 1, 42),
    ],
)
def test_exit_codes_decide_on_a_restart(tmp_path, codes, options, starts, ends_with):
    script = COUNT.format(path=str(tmp_path / "starts"), codes=codes)
    job = supervise(script, *options, processes=1)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == ends_with
    assert len((tmp_path / "starts").read_text()) == starts
    assert said.count(": restart ") == starts - 1


def test_the_others_of_a_dead_process_are_restarted_with_it(tmp_path):
    script = COUNT.format(path=str(tmp_path / "starts"), codes=[-9, 1])
    began = time.monotonic()
    assert supervise(script).wait(timeout=30) == 1
    assert time.monotonic() - began < 20  # and not the minute for which the other sleeps


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_once_and_end_the_job(number):
    script = (
        "import os, signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('asked'), sys.exit(42)))\n"
        "os.write(1, b'ready\\n')\n"  # in one piece: the other one writes to the same pipe
        "time.sleep(60)\n"
    )
    job = supervise(script)
    assert [job.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    job.send_signal(number)
    said = job.communicate(timeout=30)[0]
    assert job.returncode == 42 and said.count("asked") == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--processes=0", "--", "true"], "--processes must be 1 or more"),
        (["--processes=2", "--", "no-such-program"], "no such program: no-such-program"),
    ],
)
def test_mistakes_are_told(flags, says):
    command = [sys.executable, "launch/local.py", *flags]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.splitlines()[-1].endswith(says)


def test_dry_run_prints_what_would_run(tmp_path):
    result = launch(tmp_path / "none", 2, 3, "--dry-run")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and all("JAX_NUM_CPU_DEVICES=3" in line for line in lines)
    assert "VIT_JAX_PROCESS=1 " in lines[1] and "vit_jax.main" in lines[1]
    assert not (tmp_path / "none").exists()
