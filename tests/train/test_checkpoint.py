"""Checkpoints: what is kept, what is set aside, and what is said when nothing fits."""

import logging
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import multihost_utils

import vit_jax
from tests.train.small_run import small_config
from vit_jax.errors import CannotWrite, RunFailed, UsageError
from vit_jax.train import checkpoint
from vit_jax.train.checkpoint import SET_ASIDE, Checkpoints, Retention
from vit_jax.train.config import run_config
from vit_jax.train.loop import train
from vit_jax.train.step import TrainState
from vit_jax.weights.checkpoint import all_steps, latest_step
from vit_jax.weights.load import find_weights
from vit_jax.weights.paths import as_path, split_bucket


def state_of(step, size=4):
    scalar = jnp.asarray(step, jnp.int32)
    params = {"kernel": jnp.full((size, size), step, jnp.float32)}
    return TrainState(scalar, params, {"mu": params}, {}, scalar, scalar)


def abstract(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def save(folder, *steps, **options):
    with Checkpoints(folder, keep=10, **options) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_of(step), {"at": step})


def restore(folder, size=4):
    said = []
    with Checkpoints(folder, keep=10, note=said.append) as checkpoints:
        return checkpoints.restore_newest(abstract(state_of(0, size))), said


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path):
    """An empty folder."""
    return as_path(tmp_path if request.param == "disk" else request.getfixturevalue("bucket"))


def test_a_state_comes_back_with_its_notes(place):
    assert restore(place / "c") == (None, [])
    save(place / "c", 3, 5)
    (state, notes), said = restore(place / "c")
    assert notes == {"at": 5} and said == []
    jax.tree.map(np.testing.assert_array_equal, state, state_of(5))


@pytest.mark.parametrize(
    ("newest", "every", "kept"),
    [
        (1, 0, {95}),
        (3, 0, {85, 90, 95}),
        (1, 30, {30, 60, 90, 95}),
        (2, 32, {35, 65, 90, 95}),  # the first of each period: none falls on it
    ],
)
def test_retention_keeps_the_newest_and_some_of_all(newest, every, kept):
    retention, steps = Retention(newest, every), []
    for step in range(5, 100, 5):
        steps = sorted(retention.kept([*steps, step]))
    assert set(steps) == kept


def test_what_is_not_kept_is_deleted(place):
    with Checkpoints(place / "c", keep=2, keep_every=4) as checkpoints:
        for step in range(1, 8):
            checkpoints.save(step, state_of(step))
    assert all_steps(place / "c") == [4, 6, 7]


def test_damaged_steps_are_set_aside_under_names_that_are_free(tmp_path):
    folder = tmp_path / "c"
    for _ in range(2):
        save(folder, *{3, 5} - set(all_steps(folder)))
        shutil.rmtree(folder / "5" / "params")
        (folder / "9").mkdir()
        (state, _), said = restore(folder)
        assert int(state.step) == 3
        assert "the checkpoint of step 9 cannot be used: it is incomplete" in said[0]
        assert "the checkpoint of step 5 cannot be used: it cannot be read" in said[1]
    names = {path.name for path in (tmp_path / SET_ASIDE).iterdir()}
    assert names == {"5", "9", "5-2", "9-2"}


def test_when_none_is_good_nothing_is_moved(tmp_path):
    save(tmp_path / "c", 3)
    (tmp_path / "c" / "3" / "manifest" / "metadata").unlink()
    with pytest.raises(RunFailed, match=r"has no good checkpoint.*step 3.*nothing was moved"):
        restore(tmp_path / "c")
    assert all_steps(tmp_path / "c") == [3] and not (tmp_path / SET_ASIDE).exists()


def test_empty_folders_alone_are_no_loss(tmp_path):
    (tmp_path / "c" / "7").mkdir(parents=True)
    restored, said = restore(tmp_path / "c")
    assert restored is None and "step 7 cannot be used" in said[0]
    assert (tmp_path / SET_ASIDE / "7").is_dir()


def test_another_shape_is_no_damage(tmp_path):
    save(tmp_path / "c", 3)
    with pytest.raises(UsageError, match=r"params/kernel is float32\[4, 4\], expected .*\[5, 5\]"):
        restore(tmp_path / "c", size=5)
    assert all_steps(tmp_path / "c") == [3]


def test_what_cannot_be_written_is_tried_again_and_then_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.01)
    said = []
    with Checkpoints(tmp_path / "c", keep=3, note=said.append) as checkpoints:
        checkpoints.save(1, state_of(1), wait=True)
        (tmp_path / "c").rename(tmp_path / "away")
        (tmp_path / "c").write_text("a file in the way")
        checkpoints.save(2, state_of(2))
        assert "could not be written, will try again" in said[-1]
        (tmp_path / "c").unlink()
        (tmp_path / "away").rename(tmp_path / "c")
        checkpoints.save(3, state_of(3), wait=True)
        assert all_steps(tmp_path / "c") == [1, 3]
        shutil.move(tmp_path / "c", tmp_path / "away")
        (tmp_path / "c").write_text("a file in the way")
        with pytest.raises(CannotWrite, match="Make room or repair the folder"):
            checkpoints.save(4, state_of(4), wait=True)
    assert latest_step(tmp_path / "away") == 3


def delete(server, path):
    """All objects at or below it."""
    bucket, prefix = split_bucket(path)
    names = server.names(bucket, prefix)
    assert names
    for name in names:
        server.delete(bucket, name, {})


def test_damaged_steps_in_a_bucket_are_set_aside(bucket, bucket_server):
    folder = as_path(bucket) / "run" / "checkpoints"
    for _ in range(2):
        save(folder, *{3, 5} - set(all_steps(folder)))
        delete(bucket_server, folder / "5" / "params")
        (state, _), said = restore(folder)
        assert int(state.step) == 3
        assert "the checkpoint of step 5 cannot be used: it cannot be read" in said[0]
    assert all_steps(folder) == [3]
    assert {path.name for path in (folder.parent / SET_ASIDE).iterdir()} == {"5", "5-2"}


@pytest.mark.parametrize("steps", [(5,), (3, 5)], ids=["the first of all", "a later one"])
def test_a_save_to_a_bucket_that_was_cut_off_is_no_damage(steps, bucket, bucket_server):
    folder = as_path(bucket) / "checkpoints"
    save(folder, *steps)
    delete(bucket_server, folder / "5" / "commit_success.txt")
    delete(bucket_server, folder / "5" / "progress")
    restored, said = restore(folder)
    assert ([int(restored.state.step)] if restored else []) == list(steps[:-1])
    assert said == ["the save of step 5 was cut off"]
    save(folder, 5)
    assert all_steps(folder) == list(steps) and not (folder.parent / SET_ASIDE).exists()
    assert int(restore(folder)[0].state.step) == 5


def test_a_save_to_a_bucket_that_was_killed_before_its_mark_is_good(bucket, bucket_server):
    folder = as_path(bucket) / "checkpoints"
    save(folder, 3, 5)
    delete(bucket_server, folder / "5" / "commit_success.txt")
    assert latest_step(folder) == 3  # it may be under way, to those who only read
    (state, _), said = restore(folder)
    assert int(state.step) == 5 and said == []
    assert latest_step(folder) == 5


def test_checkpoints_that_were_copied_into_a_bucket_are_taken_up(tmp_path, bucket, bucket_server):
    save(tmp_path / "c", 3, 5)
    folder = as_path(bucket) / "c"
    for path in (tmp_path / "c").rglob("*"):
        if path.is_file():
            name = str(path.relative_to(tmp_path))
            bucket_server.put(bucket.removeprefix("gs://"), name, path.read_bytes(), {})
    assert latest_step(folder) == 5
    assert int(restore(folder)[0].state.step) == 5
    save(folder, 7)
    assert all_steps(folder) == [3, 5, 7]


def test_a_bucket_that_gives_no_answer_is_no_damage(bucket, bucket_server):
    folder = as_path(bucket) / "checkpoints"
    save(folder, 3)
    bucket_server.refuse = lambda method, bucket, name: 403 if "manifest" in name else None
    with pytest.raises(OSError, match="Forbidden"):
        restore(folder)
    bucket_server.refuse = lambda method, bucket, name: None
    assert int(restore(folder)[0].state.step) == 3


# Orbax closes its event loop while TensorStore has more failures to tell.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_bucket_that_takes_no_more_ends_the_run(bucket, bucket_server, monkeypatch):
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.01)
    folder, said = as_path(bucket) / "c", []
    with (
        pytest.raises(CannotWrite, match=r"step 1 is good\. Make room or repair the folder"),
        Checkpoints(folder, keep=3, note=said.append) as checkpoints,
    ):
        checkpoints.save(1, state_of(1), wait=True)
        bucket_server.refuse = lambda method, bucket, name: 403 if method == "POST" else None
        checkpoints.save(2, state_of(2), wait=True)
    assert "could not be written, will try again" in said[-1]
    bucket_server.refuse = lambda method, bucket, name: None
    save(folder, 3)
    assert all_steps(folder) == [1, 3]


def flip_bit(step):
    path = max(
        (p for p in (step / "params").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_loading_a_run_verifies_it_and_takes_the_newest_good_one(tmp_path, caplog):
    config = small_config(total="2 steps", checkpoint_every="1 steps")
    train(run_config(config), tmp_path)
    newest = jax.tree.leaves(nnx.state(vit_jax.load(tmp_path)))
    flip_bit(tmp_path / "checkpoints" / "2")
    with caplog.at_level(logging.WARNING):
        older = jax.tree.leaves(nnx.state(vit_jax.load(tmp_path)))
    assert "2 is damaged" in caplog.text
    assert any((a != b).any() for a, b in zip(newest, older, strict=True))
    assert all_steps(tmp_path / "checkpoints") == [1, 2]  # a reader moves nothing
    with pytest.raises(UsageError, match="step 2: "):
        place = find_weights(tmp_path)  # a teacher: this very step
        place.read(vit_jax_target(place))
    flip_bit(tmp_path / "checkpoints" / "1")
    with pytest.raises(UsageError, match="has no good checkpoint"):
        vit_jax.load(tmp_path)


def vit_jax_target(place):
    from vit_jax.models.network import abstract_params

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        abstract_params(place.network),
    )


def test_orbax_says_nothing_of_steps_to_those_who_agree_on_a_preemption(tmp_path, monkeypatch):
    """Its thread does so when the loop is past them: the signal would be lost."""
    said = []
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", said.append)
    save(tmp_path / "c", 3, 5)
    assert latest_step(tmp_path / "c") == 5 and said == []


def test_orbax_asks_for_retention():
    infos = [types.SimpleNamespace(step=step) for step in (2, 4, 6)]
    assert Retention(1, 4).should_preserve(infos, context=None) == [False, True, True]
