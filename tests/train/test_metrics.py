"""metrics.jsonl only ever grows, and has every step once."""

import json
import resource
import threading
import time

import pytest

from vit_jax.errors import CannotWrite
from vit_jax.train import records
from vit_jax.train.metrics import MetricsWriter, drop_records_after
from vit_jax.weights.paths import as_path
from vit_jax.weights.run_folder import RunFolder


def write(folder, steps, resume_step=0, value=1.0):
    with MetricsWriter(folder, resume_step) as writer:
        for step in steps:
            writer.write(step, {"train/loss": value})


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
    """An empty one."""
    return RunFolder(
        as_path(tmp_path if request.param == "disk" else request.getfixturevalue("bucket"))
    )


def test_steps_that_are_taken_again_are_not_written_again(folder):
    write(folder, [1, 2, 3])
    before = folder.metrics.read_text()
    folder.metrics.write_text(before + '{"step": 4, "tra')  # cut off by a crash
    write(folder, [2, 3, 4], resume_step=1)
    assert folder.metrics.read_text().startswith(before)
    assert [record["step"] for record in folder.metrics_records()] == [1, 2, 3, 4]


def test_steps_of_a_run_that_has_changed_are(folder):
    write(folder, [1, 2, 3])
    drop_records_after(folder, 1)
    write(folder, [2, 3, 4], resume_step=1, value=5.0)
    assert [(r["step"], r["train/loss"]) for r in folder.metrics_records()] == [
        (1, 1.0), (2, 5.0), (3, 5.0), (4, 5.0),
    ]  # fmt: skip


@pytest.fixture
def full_disk():
    """full_disk(True): no file of this process may grow."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_full(is_full):
        limit = (0, unlimited[1]) if is_full else unlimited
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    yield set_full
    set_full(False)


def test_a_disk_that_is_full_for_a_moment_is_waited_for(tmp_path, full_disk):
    folder = RunFolder(tmp_path)
    with MetricsWriter(folder, 0) as writer:
        writer.write(1, {"a": 1.0})
        full_disk(True)
        threading.Thread(target=lambda: (time.sleep(0.3), full_disk(False))).start()
        writer.write(2, {"a": 2.0})
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [1, 2]


def test_a_disk_that_stays_full_ends_the_run(tmp_path, full_disk, monkeypatch):
    monkeypatch.setattr(records, "_PAUSES", (0.01,))
    folder = RunFolder(tmp_path)
    with pytest.raises(CannotWrite, match="Make room"), MetricsWriter(folder, 0) as writer:
        writer.write(1, {"a": 1.0})
        full_disk(True)
        writer.write(2, {"a": 2.0})
    full_disk(False)
    assert [record["step"] for record in folder.metrics_records()] == [1]


def test_a_folder_that_is_gone_is_told(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(CannotWrite, match="could not be written"), MetricsWriter(folder, 0) as w:
        folder.metrics.unlink()
        w.write(1, {"a": 1.0})


def test_in_a_bucket_records_are_there_when_synced_or_after_a_while(bucket, monkeypatch):
    folder = RunFolder(as_path(bucket))
    with MetricsWriter(folder, 0) as writer:
        writer.write(1, {"a": 1.0})
        assert folder.metrics_records() == []
        writer.sync()
        assert folder.metrics_records() == [{"step": 1, "a": 1.0}]
        assert len(list(folder.tensorboard.iterdir())) == 1
        monkeypatch.setattr(writer._records, "_due", 0.0)
        writer.write(2, {"a": 2.0})
        writer.write(3, {"a": 3.0})
        end = time.monotonic() + 10
        while len(folder.metrics_records()) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert folder.metrics_records()[-1]["step"] >= 2
    assert [record["step"] for record in folder.metrics_records()] == [1, 2, 3]


def test_a_bucket_that_is_away_for_a_while_holds_nobody_up(bucket, bucket_server, monkeypatch):
    monkeypatch.setattr(records, "_PAUSES", (0.01,))
    folder = RunFolder(as_path(bucket))
    with MetricsWriter(folder, 0) as writer:
        bucket_server.refuse = lambda method, bucket, name: 403
        monkeypatch.setattr(writer._records, "_due", 0.0)
        writer.write(1, {"a": 1.0})  # its upload fails
        writer.write(2, {"a": 2.0})
        bucket_server.refuse = lambda method, bucket, name: 403 if method == "POST" else None
        with pytest.raises(CannotWrite, match="could not be written"):
            writer.sync()
        refusals = [403]
        bucket_server.refuse = lambda method, bucket, name: refusals.pop() if refusals else None
        writer.sync()
        assert not refusals
    assert [record["step"] for record in folder.metrics_records()] == [1, 2]


def test_tensorboard_gets_the_same_numbers(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    from vit_jax.data.tfrecord import find_records

    write(RunFolder(tmp_path), [1, 2])
    (file,) = (tmp_path / "tensorboard").iterdir()
    events = [Event.FromString(record) for record in find_records([(str(file), 0, -1)])]
    values = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert values == [(1, "train/loss", 1.0), (2, "train/loss", 1.0)]
