"""Runs that are killed, stopped, starved and lied to end as the run that nobody touched."""

import pathlib
import random
import resource
import shutil
import signal
import time

import pytest

from tests.chaos.job import TOTAL, Job, as_if_killed, assert_same_run, last_step, records
from vit_jax.train.checkpoint import SET_ASIDE
from vit_jax.weights.checkpoint import finished_steps
from vit_jax.weights.run_folder import RunFolder, read_json

pytestmark = pytest.mark.slow

KILLS = 20


def test_kill_9_at_any_moment_costs_no_more_than_the_steps_since_the_last_checkpoint(
    untouched, tmp_path
):
    draw = random.Random(0)
    kills, during_saves = 0, 0
    with Job(tmp_path / "run", pace=0.03) as job:
        while kills < KILLS and job.wait_for(lambda: len(job.processes()) == 2, 10):
            before = last_step(job.folder)
            kind = draw.choice(("start", "step", "save", "save"))
            if kind == "start":
                time.sleep(draw.uniform(0, 4))
            elif kind == "step":
                job.wait_for_record(before + draw.randint(1, 6))
                time.sleep(draw.uniform(0, 0.05))
            else:
                job.wait_for_record(before + 1)
                job.wait_for(lambda: any(job.folder.checkpoints.glob("*tmp*")))
                time.sleep(draw.uniform(0, 0.02))
                during_saves += any(job.folder.checkpoints.glob("*tmp*"))
            victims = job.processes()
            kills += job.kill(draw.randrange(2))
            # Until both are gone: the next round is for the next start.
            job.wait_for(lambda victims=victims: not set(victims) & set(job.processes()), 30)
        assert job.wait() == 0, job.story()
    assert kills == KILLS and during_saves >= 3
    assert_same_run(job.folder, untouched)
    goodput = read_json(job.folder.summary)["goodput"]["seconds"]
    assert goodput["lost"] > 0 and goodput["down"] > 0
    print(f"killed {kills} times, {during_saves} of them during a save")


@pytest.mark.parametrize("moment", ["compiling", "training"])
def test_sigterm_to_one_process_saves_in_all_and_the_job_goes_on(moment, untouched, tmp_path):
    folder = as_if_killed(untouched, tmp_path / "run", 200)
    with Job(folder.path, pace=0.05) as job:
        if moment == "compiling":
            assert job.wait_for(lambda: "compiling the train step" in job.log())
        else:
            assert job.wait_for_record(206)
        assert job.kill(1, signal.SIGTERM)
        assert job.wait() == 0, job.story()
    assert "saved at step" in job.log() and "exit code 42: restart 1" in job.log()
    assert_same_run(folder, untouched)


def damage_truncate(step):
    for path in numbers(step):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_bit(step):
    for path in numbers(step):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(data)


def damage_missing(step):
    for path in numbers(step):
        path.unlink()


def damage_empty_file(step):
    for path in numbers(step):
        path.write_bytes(b"")


def damage_empty_folder(step):
    shutil.rmtree(step)
    step.mkdir()


def damage_manifest(step):
    path = step / "manifest" / "metadata"
    path.write_text(path.read_text().replace("1", "2", 1))


def numbers(step):
    """The files with most of the parameters: one of each process."""
    return [
        max((folder / "d").iterdir(), key=lambda path: path.stat().st_size)
        for folder in (step / "params").glob("ocdbt.process_*")
    ]


def test_damaged_checkpoints_are_named_and_set_aside(untouched, tmp_path):
    """All kinds at once: each step is damaged in another way, the run goes on from the oldest."""
    damages = (
        damage_truncate, damage_bit, damage_missing, damage_empty_file, damage_empty_folder,
        damage_manifest,
    )  # fmt: skip
    folder = as_if_killed(untouched, tmp_path / "run", 232)
    steps = [232 - 4 * number for number in range(len(damages))]
    for step, damage in zip(steps, damages, strict=True):
        damage(folder.checkpoints / str(step))
    with Job(folder.path) as job:
        assert job.wait() == 0, job.story()
    for step in steps:
        assert f"the checkpoint of step {step} cannot be used" in job.log()
        assert (folder.path / SET_ASIDE / str(step)).is_dir()
    assert f"resuming at step {min(steps) - 4}" in job.log()
    assert_same_run(folder, untouched)


def test_a_full_disk_ends_the_run_with_code_1_and_it_goes_on_when_there_is_room(
    untouched, tmp_path
):
    folder = as_if_killed(untouched, tmp_path / "run", 200)
    with Job(folder.path, pace=0.05) as job:
        assert job.wait_for_record(206)
        for pid in job.processes():  # from now on no file may grow
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
        assert job.wait() == 1, job.story()
    step = max(finished_steps(folder.checkpoints))
    assert f"the checkpoint of step {step} is good. Make room" in job.log()
    with Job(folder.path) as job:
        assert job.wait() == 0, job.story()
    assert f"resuming at step {step}" in job.log()
    assert_same_run(folder, untouched)


def test_two_processes_then_one_then_four_train_the_same_network(untouched, tmp_path):
    (tmp_path / "batches").mkdir()
    record = {"BATCH_RECORD": str(tmp_path / "batches")}
    folder = as_if_killed(untouched, tmp_path / "run", 100)
    for processes, fsdp, pace in ((2, 2, 0.1), (1, 1, 0.1), (4, 2, 0)):
        before, mesh = last_step(folder), f"--config.mesh.fsdp={fsdp}"
        with Job(folder.path, mesh, processes=processes, pace=pace, environment=record) as job:
            if pace:
                assert job.wait_for_record(before + 5), job.story()
                assert job.stop() == 42, job.story()
            else:
                assert job.wait() == 0, job.story()
    assert [r["step"] for r in folder.metrics_records()] == list(range(1, TOTAL + 1))
    for ours, theirs in zip(records(folder), records(untouched), strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-5)
    expected, seen = (rows(path.parent) for path in (untouched.path, folder.path))
    assert {(step, row) for step, row, _ in seen} == {
        (step, row) for step in range(100, TOTAL) for row in range(8)
    }
    assert seen <= expected


def rows(place: pathlib.Path) -> set[tuple[int, int, int]]:
    """(step, row of the batch, checksum of its image) of all that any process was given."""
    lines = [
        line for path in (place / "batches").iterdir() for line in path.read_text().splitlines()
    ]
    return {tuple(map(int, line.split())) for line in lines}


def test_a_second_job_in_the_same_folder_refuses(untouched, tmp_path):
    folder = as_if_killed(untouched, tmp_path / "run", 100)
    with Job(folder.path, processes=1, pace=0.2) as first:
        assert first.wait_for_record(110)
        with Job(folder.path) as second:
            assert second.wait() == 2, second.story()
        assert "is in use by process" in second.log()
        assert first.is_running()
    assert RunFolder(folder.path).metrics_records()


def test_a_process_that_hangs_is_told_by_the_others(untouched, tmp_path):
    folder = as_if_killed(untouched, tmp_path / "run", 200)
    # Nothing is saved meanwhile: in a checkpoint, too, the others would wait, and would say that.
    flags = ("--config.alarm_seconds=1", "--config.checkpoint_every=100%")
    with Job(folder.path, *flags, pace=0.05) as job:
        assert job.wait_for_record(206)
        assert job.kill(1, signal.SIGSTOP)
        told = "process 0 has been in 'step' for"
        assert job.wait_for(lambda: told in job.log(), 60), job.story()
        assert job.kill(1, signal.SIGCONT)
        assert job.wait() == 0, job.story()
    assert "usually" in job.log() and "in _run_steps" in job.log()
    assert_same_run(folder, untouched)
