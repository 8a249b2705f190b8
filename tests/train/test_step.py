"""One step: microbatches, averages, and what the batch becomes on the device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.train.small_run import small_config
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.models.network import abstract_params
from vit_jax.train.config import run_config
from vit_jax.train.loop import train
from vit_jax.train.program import make_program
from vit_jax.train.sharding import make_mesh
from vit_jax.train.step import accumulated, prepared
from vit_jax.weights.checkpoint import PARAMS, read_items
from vit_jax.weights.manifest import read_manifest
from vit_jax.weights.run_folder import RunFolder


def test_microbatches_have_their_own_keys_and_every_row_once():
    seen = []

    def function(params, images, targets, key):
        seen.append(images.shape)
        return (images.sum() * params, {"key": jax.random.key_data(key)[1].astype(jnp.float32)})

    images = jnp.arange(24.0).reshape(12, 2)
    total, metrics = accumulated(function, 4)(2.0, images, images, jax.random.key(3))
    assert float(total) == pytest.approx(2.0 * images.sum() / 4)
    keys = [jax.random.key_data(k)[1] for k in jax.random.split(jax.random.key(3), 4)]
    assert float(metrics["key"]) == pytest.approx(np.mean(np.float32(keys)), rel=1e-6)
    assert seen[0] == (3, 2)


def test_a_batch_that_does_not_divide_into_microbatches_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"over 8 devices x 3 microbatches: use 24"):
        train(run_config(small_config(accumulation=3)), tmp_path)


def test_all_augmentations_together():
    config = small_config()
    config.augment.update(mixup=0.2, cutmix=1.0, erasing=0.25, randaugment_layers=2)
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.integers(0, 256, (8, 16, 16, 3), dtype=np.uint8),
        "label": rng.integers(0, 10, 8),
    }
    run = jax.jit(lambda key: prepared(batch, key, config=run_config(config), num_classes=10))
    images, targets = run(jax.random.key(0))
    assert images.shape == (8, 16, 16, 3) and images.dtype == jnp.float32
    np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-5)
    assert not np.array_equal(images, run(jax.random.key(1))[0])


def test_polyak_averages_what_is_evaluated_and_loaded(tmp_path):
    config = small_config(total="4 steps", checkpoint_every="2 steps")
    config.optimizer.polyak = 0.5
    train(run_config(config), tmp_path)
    newest = RunFolder(tmp_path).checkpoints / "4"
    assert (newest / "average").is_dir()
    averaged = vit_jax.load(tmp_path).head.kernel[...]
    target = {PARAMS: abstract_params(RunFolder(tmp_path).network())}
    plain = read_items(newest, read_manifest(newest), target)[PARAMS]["head"]["kernel"]
    assert 0 < np.abs(averaged).max() < np.abs(plain).max()  # it lags behind, from zero


def test_parameters_and_moments_are_written_where_they_lay():
    config = run_config(small_config())
    mesh = make_mesh(config.mesh, jax.devices()[:1])  # on more, arguments have no names
    source = open_source(config.data.name, "train", config.image_size)
    compiled = make_program(config, source, mesh).lower().compile()
    copied = re.findall(r" = (\S+) copy\(%(state_[\w.]+)\)", compiled.as_text())
    assert [shape for shape, name in copied if "[]" not in shape] == []


def test_new_moments_are_not_kept_beside_the_old_ones():
    config = small_config(batch_size=1)
    config.model.update(width=256, mlp_dim=1024, heads=4)  # much more than an image needs
    config.optimizer.clip_norm = 0.0  # clipped gradients are kept beside the others
    config = run_config(config)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    source = open_source(config.data.name, "train", config.image_size)
    program = make_program(config, source, mesh)
    temporaries = program.lower().compile().memory_analysis().temp_size_in_bytes
    parameters = 4 * sum(leaf.size for leaf in jax.tree.leaves(program.state.params))
    assert temporaries < 2.5 * parameters, temporaries / parameters  # gradients, and updates
