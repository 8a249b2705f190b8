"""Where time goes, over restarts too, and the alarm for what takes too long."""

import time

import pytest

from vit_jax.train.acts import COMPILE, DATA_WAIT, DOWN, LOST, START, STEP, Acts


def test_every_second_belongs_to_one_act():
    began = time.monotonic()
    with Acts() as acts:
        time.sleep(0.02)
        with acts.during(COMPILE):
            time.sleep(0.03)
        acts.begin(STEP)
        time.sleep(0.04)
        with acts.during(DATA_WAIT):
            time.sleep(0.01)
        seconds = acts.seconds()
    assert sum(seconds.values()) == pytest.approx(time.monotonic() - began, abs=0.005)
    least = {START: 0.02, COMPILE: 0.03, STEP: 0.04, DATA_WAIT: 0.01}
    assert all(seconds[act] >= value for act, value in least.items())
    assert seconds[LOST] == seconds[DOWN] == 0
    assert acts.goodput() == pytest.approx(0.4, abs=0.15)


def test_totals_survive_a_restart():
    notes = dict.fromkeys(Acts().seconds(), 0.0) | {"step": 100.0, "saved": time.time() - 50}
    acts = Acts()
    acts.resume(notes, last_sign=time.time() - 20)
    seconds = acts.seconds()
    assert seconds[STEP] == 100
    assert seconds[LOST] == pytest.approx(30, abs=0.5)  # from the checkpoint to the last sign
    assert seconds[DOWN] == pytest.approx(20, abs=0.5)
    assert acts.goodput() == pytest.approx(100 / 150, abs=0.02)
    again = Acts()
    again.resume(notes, last_sign=0.0)  # nothing was heard after the checkpoint
    assert again.seconds()[LOST] == 0 and again.seconds()[DOWN] == pytest.approx(50, abs=0.5)


def test_a_slow_act_is_told_with_the_stacks_of_all_threads(capfd):
    with Acts(alarm_seconds=0.2) as acts:
        for _ in range(5):
            acts.begin(STEP)
            time.sleep(0.01)
        assert "has been in" not in capfd.readouterr().err
        a_step_that_hangs()
    said = capfd.readouterr().err
    assert "process 0 has been in 'step' for 0 s, usually 0.01" in said
    assert "a_step_that_hangs" in said and "_watch" in said  # both threads
    assert said.count("has been in") <= 3  # again when it has doubled, not all the time


def a_step_that_hangs():
    time.sleep(1.0)


def test_no_alarm_while_nothing_is_usual(capfd):
    with Acts(alarm_seconds=0.1):
        time.sleep(0.4)  # the first start may well take long
    assert "has been in" not in capfd.readouterr().err
