"""A step with a loss or gradient that is not finite is not applied, and many end the run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.train.small_run import small_config
from vit_jax.cli import run_verb
from vit_jax.data.batches import train_batches, train_indices
from vit_jax.data.sources import open_source
from vit_jax.train import program
from vit_jax.train.config import run_config
from vit_jax.train.loop import train
from vit_jax.weights.run_folder import RunFolder


@pytest.fixture
def poison(monkeypatch):
    """poison(steps): the loss of these steps, counted from 0, is NaN."""

    def put(steps):
        base = jax.random.key(0)  # the seed of small_config
        keys = [jax.random.split(jax.random.fold_in(base, step))[1] for step in steps]
        poisoned = np.stack([jax.random.key_data(key) for key in keys])

        def poisoned_classification(*arguments):
            objective = classification(*arguments)

            def spoiled(model, images, targets, key, frozen):
                loss, metrics = objective(model, images, targets, key, frozen)
                is_bad = (jax.random.key_data(key) == poisoned).all(axis=-1).any()
                return jnp.where(is_bad, jnp.nan, loss), metrics

            return spoiled

        classification = program.classification
        monkeypatch.setattr(program, "classification", poisoned_classification)

    return put


def test_bad_steps_are_counted_and_not_applied(poison, tmp_path, capsys):
    poison([0, 3])
    summary = train(run_config(small_config(total="6 steps", log_every="1 steps")), tmp_path)
    records = RunFolder(tmp_path).metrics_records()
    assert [int(r["train/bad_steps"]) for r in records] == [1, 1, 1, 2, 2, 2]
    assert ["train/loss" in r for r in records] == [False, True, True, False, True, True]
    assert np.isfinite([v for r in records for v in r.values()]).all()
    assert summary["metrics"]["train/bad_steps"] == 2
    error = capsys.readouterr().err
    indices = train_indices(open_source("digits", "train", 16), batch_size=16, seed=0, step=3)
    assert "step 4 was not applied: loss nan" in error
    assert f"examples {', '.join(map(str, indices[:8]))}, ... (16 in all)" in error
    params = jax.tree.leaves(nnx.state(vit_jax.load(tmp_path)))
    assert all(np.isfinite(leaf).all() for leaf in params)


def test_a_run_that_only_fails_ends_with_code_1_and_its_last_good_checkpoint(
    poison, tmp_path, capsys
):
    poison(range(5, 100))
    config = small_config(total="100 steps", checkpoint_every="5 steps")
    config.bad_steps_allowed = 3
    code = run_verb(lambda _: train(run_config(config), tmp_path), [])
    assert code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "3 steps in a row, up to step 8" in last and "checkpoint of step 5 is good" in last
    model = vit_jax.load(tmp_path)
    assert np.isfinite(model(np.zeros((1, 16, 16, 3)))).all()


def test_spikes_can_be_skipped_too(tmp_path):
    config = small_config(total="3 steps", log_every="1 steps")
    config.spike_norm = 1e-6
    config.bad_steps_allowed = 10
    summary = train(run_config(config), tmp_path)
    assert summary["metrics"]["train/bad_steps"] == 3


def test_indices_of_a_batch_are_those_of_its_examples():
    source = open_source("digits", "train", 16)
    batch = train_batches(source, batch_size=16, image_size=(16, 16), seed=7)[120]
    indices = train_indices(source, batch_size=16, seed=7, step=120)
    np.testing.assert_array_equal(batch["label"], [source[i]["label"] for i in indices])
