"""Two real processes train as one does."""

import subprocess
import sys
import time

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


def test_dry_run_prints_what_would_run(tmp_path):
    result = launch(tmp_path / "none", 2, 3, "--dry-run")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and all("JAX_NUM_CPU_DEVICES=3" in line for line in lines)
    assert "VIT_JAX_PROCESS=1 " in lines[1] and "vit_jax.main" in lines[1]
    assert not (tmp_path / "none").exists()
