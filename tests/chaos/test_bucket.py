"""A run in a bucket that is killed, stopped or damaged ends as one on disk that nobody touched."""

import json
import random
import signal
import time

import pytest

from tests.chaos.job import Job, as_if_killed, assert_same_run, last_step
from vit_jax.train.checkpoint import SET_ASIDE
from vit_jax.weights.checkpoint import all_steps, is_marked
from vit_jax.weights.paths import as_path, split_bucket, write_bytes
from vit_jax.weights.run_folder import RunFolder, read_json

pytestmark = pytest.mark.slow

KILLS = 6


@pytest.fixture
def start(bucket, bucket_server):
    """start(): a job whose workdir is in the bucket."""
    return lambda **options: Job(f"{bucket}/run", environment=bucket_server.environment, **options)


@pytest.fixture
def stopped(untouched, tmp_path, bucket, bucket_server):
    """stopped(step): a run in the bucket that died two steps after that checkpoint."""

    def make(step, *, are_marked=True):
        local = as_if_killed(untouched, tmp_path / "run", step)
        remote = RunFolder(as_path(bucket) / "run")
        for path in local.path.rglob("*"):
            if path.is_file() and path.name != ".lock":
                name = f"run/{path.relative_to(local.path)}"
                bucket_server.put(bucket.removeprefix("gs://"), name, path.read_bytes(), {})
        for step in all_steps(remote.checkpoints) if are_marked else ():
            write_bytes(remote.checkpoints / str(step) / "commit_success.txt", b"")
        return remote

    return make


def is_saving(folder):
    """Whether a save is under way."""
    steps = all_steps(folder.checkpoints)
    return bool(steps) and not is_marked(folder.checkpoints / str(steps[-1]))


def test_kill_9_costs_no_more_than_the_steps_since_the_last_checkpoint(untouched, start, stopped):
    draw = random.Random(0)
    kills, during_saves = 0, 0
    stopped(160)  # a save takes as long as many steps
    with start(pace=0.05) as job:
        while kills < KILLS and job.wait_for(lambda: len(job.processes()) == 2, 10):
            saved = max(all_steps(job.folder.checkpoints), default=0)
            if draw.random() < 0.3:
                time.sleep(draw.uniform(0, 4))
            else:  # a later step than what is there, which may be left over from the last kill
                job.wait_for(lambda s=saved: max(all_steps(job.folder.checkpoints), default=0) > s)
                during_saves += is_saving(job.folder)
            victims = job.processes()
            kills += job.kill(draw.randrange(2))
            job.wait_for(lambda victims=victims: not set(victims) & set(job.processes()), 30)
        assert job.wait() == 0, job.story()
    assert kills == KILLS and during_saves
    assert_same_run(job.folder, untouched)
    goodput = read_json(job.folder.summary)["goodput"]["seconds"]
    assert goodput["lost"] > 0 and goodput["down"] > 0
    print(f"killed {kills} times, {during_saves} of them during a save")


def test_damage_is_set_aside_and_sigterm_saves(untouched, start, stopped, bucket_server):
    folder = stopped(212)
    bucket, prefix = split_bucket(folder.checkpoints)
    for step in (212, 208):
        names = bucket_server.names(bucket, f"{prefix}/{step}/params/ocdbt.process_0/d/")
        name = max(names, key=lambda name: len(bucket_server.get(bucket, name, {}).data))
        data = bytearray(bucket_server.get(bucket, name, {}).data)
        data[len(data) // 2] ^= 16
        bucket_server.put(bucket, name, bytes(data if step == 212 else data[: len(data) // 2]), {})
    with start(pace=0.1) as job:
        assert job.wait_for(lambda: "resuming at step 204" in job.log())
        assert job.wait_for(lambda: 204 < max(all_steps(folder.checkpoints)) < 230)
        assert job.kill(1, signal.SIGTERM)
        assert job.wait() == 0, job.story()
    for step in (212, 208):
        assert f"the checkpoint of step {step} cannot be used" in job.log()
        assert (folder.path / SET_ASIDE / str(step)).is_dir()
    assert "saved at step" in job.log() and "exit code 42: restart 1" in job.log()
    assert_same_run(folder, untouched)


def test_a_bucket_that_takes_nothing_for_a_while_costs_a_restart(
    untouched, start, stopped, bucket_server
):
    folder = stopped(212)
    with start(pace=0.05) as job:
        assert job.wait_for(lambda: "resuming at step 212" in job.log()), job.story()
        bucket_server.refuse = lambda method, bucket, name: 403 if "/params/" in name else None
        assert job.wait_for(lambda: "restart 1 in" in job.log()), job.story()
        bucket_server.refuse = lambda method, bucket, name: None
        assert job.wait() == 0, job.story()
    assert "a checkpoint could not be written: " in job.log()
    assert_same_run(folder, untouched)


def test_a_second_job_is_refused_and_a_copied_run_goes_on(untouched, start, stopped):
    folder = stopped(200, are_marked=False)
    with start(processes=2, pace=0.3) as first:
        assert first.wait_for(lambda: last_step(folder) > 203), first.story()
        with start() as second:
            assert second.wait() == 2, second.story()
        assert "is in use by process" in second.log()
        assert first.wait() == 0, first.story()
    assert_same_run(folder, untouched)


def test_the_lease_of_a_machine_that_is_gone_runs_out(untouched, start, stopped):
    folder = stopped(232)
    holder = {"holder": "process 1 on gone", "machine": "gone", "process": 1, "started": "1"}
    write_bytes(folder.path / ".lock", json.dumps(holder).encode())
    began = time.monotonic()
    with start() as job:
        assert job.wait() == 0, job.story()
    assert "is in use by process 1 on gone, or was" in job.log()
    assert time.monotonic() - began > 60
    assert_same_run(folder, untouched)
