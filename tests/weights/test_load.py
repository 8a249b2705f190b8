"""Weights into models, adapted where they differ."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.train.small_run import small_config
from vit_jax.errors import UsageError
from vit_jax.models.network import init_params
from vit_jax.models.variants import model_config
from vit_jax.train.config import run_config
from vit_jax.train.loop import train
from vit_jax.weights.adapt import adapt

OLD = model_config("Pico/8", image_size=32, num_classes=5, representation_size=16, depth=1)


def adapted(**changes):
    new = dataclasses.replace(OLD, **changes)
    old_params, fresh = (init_params(c, jax.random.key(k)) for k, c in ((0, OLD), (1, new)))
    return old_params, adapt(old_params, OLD, new, fresh)


def test_the_same_network_keeps_everything():
    params, result = adapted()
    jax.tree.map(np.testing.assert_array_equal, result.params, params)
    assert result.changes == ()


def test_another_task_at_another_resolution():
    params, result = adapted(image_size=(48, 64), num_classes=3, representation_size=0)
    assert result.changes == (
        "positions resized from 4x4 to 6x8",
        "pre_logits dropped",
        "new head for 3 classes (had 5)",
    )
    assert result.params["embedding"]["positions"].shape == (1, 49, 128)
    assert not result.params["head"]["kernel"].any()
    jax.tree.map(np.testing.assert_array_equal, result.params["encoder"], params["encoder"])


def test_weights_of_another_shape_are_refused_with_what_differs():
    with pytest.raises(UsageError, match="depth 1 -> 2"):
        adapted(depth=2)
    with pytest.raises(UsageError, match="pooling token -> gap"):
        adapted(pooling="gap")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    train(run_config(small_config(total="3 steps")), workdir)
    return workdir


def test_a_run_folder_becomes_the_model_it_trained(run):
    model = vit_jax.load(run)
    assert model.config.num_classes == 10
    assert np.abs(model.head.kernel[...]).max() > 0  # trained, not fresh
    larger = vit_jax.load(run, image_size=32)
    assert larger(np.zeros((1, 32, 32, 3))).shape == (1, 10)
    np.testing.assert_array_equal(larger.head.kernel[...], model.head.kernel[...])


def test_a_name_becomes_a_fresh_model():
    model = vit_jax.load("Pico/8", image_size=16, num_classes=3)
    assert nnx.to_pure_dict(nnx.state(model))["head"]["kernel"].shape == (128, 3)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("./nowhere", "no such file or folder"),
        ("B_16", "Did you mean B/16?"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(path, says):
    with pytest.raises(UsageError) as error:
        vit_jax.load(path)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is no run folder"):
        vit_jax.load(tmp_path)
