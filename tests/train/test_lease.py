"""One job per folder in a bucket: who holds it, who waits, and who takes over."""

import json
import subprocess
import sys
import threading
import time

import pytest

from vit_jax.errors import UsageError
from vit_jax.train import lease as module
from vit_jax.train.lease import lease
from vit_jax.weights.paths import as_path, exists, split_bucket, write_bytes


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.1)
    monkeypatch.setattr(module, "_LEASE_SECONDS", 1.0)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.05)


@pytest.fixture
def path(bucket):
    return as_path(bucket) / "run" / ".lock"


def hold(path):
    """Who else holds it, and the seconds that it took to find out."""
    began = time.monotonic()
    with lease(path) as other:
        return other, time.monotonic() - began


def test_it_is_given_back(path):
    with lease(path) as other:
        assert other is None and exists(path)
    assert not exists(path)
    assert hold(path)[0] is None


def test_the_second_is_refused_as_soon_as_the_first_gives_a_sign_of_life(path, capfd):
    with lease(path):
        other, seconds = hold(path)
        assert other.startswith("process ") and seconds < module._LEASE_SECONDS
        assert exists(path)  # a refused job leaves it alone
    assert "for a sign of life" in capfd.readouterr().err


def left_behind(path, **changes):
    """The lock of a job that is not there any more."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = {
        "holder": f"process {child.pid} on a", "machine": module._machine(), "process": child.pid,
        "started": module._started(child.pid), "lease": "1",
    }  # fmt: skip
    child.communicate(b"\n")
    write_bytes(path, json.dumps(holder | changes).encode())


def test_a_job_that_was_killed_on_this_machine_is_not_waited_for(path):
    left_behind(path)
    other, seconds = hold(path)
    assert other is None and seconds < module._LEASE_SECONDS


def test_nor_is_its_last_sign_of_life_which_arrives_late(path, bucket_server):
    left_behind(path)
    bucket, name = split_bucket(path)
    signs = [bucket_server.get(bucket, name, {}).data]

    def arrive(method, *_):
        if method == "POST" and signs:
            bucket_server.put(bucket, name, signs.pop(), {})

    bucket_server.refuse = arrive
    other, seconds = hold(path)
    assert other is None and seconds < module._LEASE_SECONDS and not signs


@pytest.mark.parametrize("text", [None, b"process 1 on a\n"], ids=["another machine", "a copy"])
def test_a_job_that_may_live_elsewhere_is_waited_for_and_then_followed(path, text, capfd):
    left_behind(path, machine="another")
    if text:  # of a run that was copied from a disk
        write_bytes(path, text)
    other, seconds = hold(path)
    assert other is None and seconds > module._LEASE_SECONDS
    assert "in use by process" in capfd.readouterr().err


def test_of_those_that_wait_one_gets_it(path):
    left_behind(path, machine="another")
    others = []
    release = threading.Event()

    def wait():
        with lease(path) as other:
            others.append(other)
            if other is None:
                release.wait(10)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(others) < 4:
        time.sleep(0.05)
    release.set()
    for thread in threads:
        thread.join()
    assert others.count(None) == 1


def test_one_that_was_faster_is_not_pushed_aside_whoever_it_is(path, monkeypatch):
    monkeypatch.setattr(module._Lease, "_write", lambda self, generation: False)  # and gone again
    assert hold(path)[0] == ""


def test_a_job_that_lost_it_ends(path, monkeypatch, capfd):
    codes = []
    ended = threading.Event()
    monkeypatch.setattr(module.os, "_exit", lambda code: (codes.append(code), ended.set()))
    with lease(path):
        left_behind(path, machine="another")  # as a job would that took it over
        assert ended.wait(5)
        monkeypatch.setattr(module, "_REFRESH_SECONDS", 60)
    assert codes[0] == 1 and "was taken over by another job" in capfd.readouterr().err
    assert exists(path)


def test_an_outage_is_sat_out(path, bucket_server, monkeypatch):
    monkeypatch.setattr(module.os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    with lease(path):
        bucket_server.refuse = lambda method, bucket, name: 503
        time.sleep(0.5)
        bucket_server.refuse = lambda method, bucket, name: None
        before = bucket_server.get(*split_bucket(path), {}).generation
        time.sleep(0.5)
        assert bucket_server.get(*split_bucket(path), {}).generation > before


def test_a_write_whose_answer_was_lost_was_ours_all_the_same(path, monkeypatch):
    mine = module._Lease(path)
    assert mine.take() is None
    generation = mine._generation
    assert mine._write(generation)  # the attempt whose answer never came
    assert mine._write(generation)  # and that which the client made after it
    mine.give_back()
    assert not exists(path)


def test_a_bucket_that_takes_nothing_is_told_in_one_line(path, bucket_server):
    bucket_server.refuse = lambda method, bucket, name: 403 if method == "POST" else None
    with pytest.raises(UsageError, match="is no folder to write to: 403"):
        hold(path)
