"""The same numbers on any mesh, and parameters laid out as the table says."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.train.small_run import small_config
from vit_jax.data.batches import train_batches
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.models import variants
from vit_jax.models.network import abstract_params, init_params
from vit_jax.models.variants import LISTED, listed_image_size, model_config
from vit_jax.train.config import MeshConfig, run_config
from vit_jax.train.program import make_program
from vit_jax.train.sharding import batch_sharding, make_mesh, param_shardings

QUIET = {"dropout": 0.0, "stochastic_depth": 0.0}  # microbatches have noise of their own
MODELS = {
    "vit": QUIET,
    "noisy": {"name": "Pico/8"},
    "hybrid": {"name": "R26+Pico/16", "depth": 1, **QUIET},
    "axial": {
        "name": "Axial-Pico/8", "depth": 1, "pooling": "map", "positions_at": "every_layer", **QUIET
    },
}  # fmt: skip
MODELS |= {"masked": {**QUIET, "pooling": "gap"}, "taught": QUIET}
TEACHER = model_config("Pico/8", image_size=16, num_classes=10, depth=1, pooling="map")
MESHES = {
    "8x1x1": {"replica": 8},
    "2x4x1": {"replica": 2, "fsdp": 4},
    "2x2x2": {"replica": 2, "fsdp": 2, "tensor": 2},
}


def loss_and_gradients(model, mesh_sizes, devices, accumulation=1):
    """One step of plain SGD with rate 1: the parameters move by the gradient."""
    config = small_config(accumulation=accumulation, batch_size=32)
    config.model.update(MODELS[model])
    config.optimizer.update(
        name="sgd", learning_rate=1.0, momentum=0.0, weight_decay=0.0, warmup="0 steps",
        clip_norm=0.0, schedule="constant",
    )  # fmt: skip
    config.mesh.update(mesh_sizes)
    config.loss = "masked_patch" if model == "masked" else "softmax"
    run = run_config(config)
    source = open_source("digits", "train", 16)
    teacher = TEACHER if model == "taught" else None
    program = make_program(run, source, make_mesh(run.mesh, devices), teacher=teacher)
    frozen = with_a_voice(init_params(TEACHER, jax.random.key(9)), "head") if teacher else {}
    frozen = jax.tree.map(lambda a, b: jax.device_put(a, b.sharding), frozen, program.frozen)
    state = program.init(jax.random.key(0))
    with_a_voice(state.params, "prediction/out" if model == "masked" else "head")
    before = jax.tree.map(np.asarray, state.params)
    batch = train_batches(source, batch_size=32, image_size=(16, 16), seed=0)[0]
    batch = {key: jax.device_put(batch[key], s.sharding) for key, s in program.batch.items()}
    state, metrics = program.step(state, batch, frozen)
    gradients = jax.tree.map(lambda a, b: a - np.asarray(b), before, state.params)
    return float(metrics["loss"]), gradients


def with_a_voice(params, head):
    """A fresh head is zero and hides the gradients of everything before it."""
    node = functools.reduce(dict.__getitem__, head.split("/"), params)
    kernel = 0.1 * jax.random.normal(jax.random.key(5), node["kernel"].shape)
    node["kernel"] = jax.device_put(kernel, node["kernel"].sharding)
    return params


@pytest.fixture(scope="module")
def small_resnet():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(variants.STAGES, 26, (1, 1))  # two units in a stage
        yield


@pytest.fixture(scope="module")
def on_one_device(small_resnet):
    return functools.cache(lambda model: loss_and_gradients(model, {}, jax.devices()[:1]))


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("model", ["vit", "hybrid", "axial"])
def test_loss_and_gradients_are_those_of_one_device(on_one_device, model, mesh, accumulation):
    check_same(
        loss_and_gradients(model, MESHES[mesh], jax.devices(), accumulation), on_one_device(model)
    )


@pytest.mark.parametrize("model", ["vit", "hybrid", "axial"])
def test_microbatches_equal_the_whole_batch(on_one_device, model):
    check_same(loss_and_gradients(model, {}, jax.devices()[:1], 4), on_one_device(model))


@pytest.mark.parametrize("model", ["masked", "taught"])
def test_other_objectives_agree_too(on_one_device, model):
    check_same(loss_and_gradients(model, MESHES["2x2x2"], jax.devices()), on_one_device(model))


def test_noise_is_the_same_on_any_mesh(on_one_device):
    check_same(loss_and_gradients("noisy", MESHES["2x2x2"], jax.devices()), on_one_device("noisy"))
    with pytest.raises(AssertionError):
        check_same(on_one_device("noisy"), on_one_device("vit"))


def check_same(actual, expected):
    """To 1e-5: the loss, the gradient as a whole, and each large part of it."""
    assert actual[0] == pytest.approx(expected[0], rel=1e-5)
    difference = jax.tree.map(lambda a, b: np.linalg.norm(a - b), actual[1], expected[1])
    norms = jax.tree.map(np.linalg.norm, expected[1])
    whole = np.linalg.norm(jax.tree.leaves(norms))
    assert whole > 0.1
    assert np.linalg.norm(jax.tree.leaves(difference)) < 1e-5 * whole
    for (path, part), norm in zip(
        jax.tree_util.tree_leaves_with_path(difference), jax.tree.leaves(norms), strict=True
    ):
        assert part < 1e-5 * max(norm, 0.1 * whole), jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", LISTED)
def test_every_large_parameter_has_a_rule(name):
    mesh = make_mesh(MeshConfig(replica=1, fsdp=8))
    network = model_config(name, image_size=listed_image_size(name))
    shardings = param_shardings(abstract_params(network), mesh)
    sizes = jax.tree.map(
        lambda leaf, sharding: (leaf.size, math.prod(sharding.shard_shape(leaf.shape))),
        abstract_params(network),
        shardings,
    )
    pairs = jax.tree.leaves(sizes, is_leaf=lambda node: isinstance(node, tuple))
    # What is copied to every device is small change: fsdp is there to share the rest.
    assert sum(shard for _, shard in pairs) < 0.17 * sum(size for size, _ in pairs)


VARIANTS = {
    "pooled": ("B/16", {"pooling": "map", "representation_size": 768}),
    "every_layer": ("B/16", {"positions_at": "every_layer", "registers": 4, "qk_norm": True}),
    "shared": ("B/16", {"positions_at": "shared", "layer_scale": 0.1}),
    "relative": ("B/16", {"positions": "relative"}),
    "two_d": ("B/16", {"positions": "2d", "positions_at": "every_layer"}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_option_has_rules_too(name):
    model, options = VARIANTS[name]
    params = abstract_params(model_config(model, **options))
    param_shardings(params, make_mesh(MeshConfig(replica=1, fsdp=4, tensor=2)))


def test_moments_lie_as_their_parameters_do():
    run = run_config(small_config())
    mesh = make_mesh(MeshConfig(replica=2, fsdp=2, tensor=2))
    program = make_program(run, open_source("digits", "train", 16), mesh)
    adam = next(s for s in jax.tree.leaves(program.state.opt_state, is_leaf=_has_mu) if _has_mu(s))
    kernel = adam.mu["encoder"]["blocks"]["mlp"]["up"]["kernel"]
    assert kernel.sharding.spec == P(None, "fsdp", "tensor")
    state = program.init(jax.random.key(0))
    shard = state.params["encoder"]["blocks"]["mlp"]["up"]["kernel"].addressable_shards[0].data
    assert shard.shape == (4, 24, 48)


def test_a_factored_moment_is_copied_and_the_rest_follows():
    config = small_config()
    config.optimizer.update(name="adafactor", moment_dtype="bfloat16", polyak=0.9)
    mesh = make_mesh(MeshConfig(replica=1, fsdp=8))
    program = make_program(run_config(config), open_source("digits", "train", 16), mesh)
    kernel = P(None, "fsdp", "tensor")
    assert program.state.average["encoder"]["blocks"]["mlp"]["up"]["kernel"].sharding.spec == kernel
    state = program.init(jax.random.key(0))
    batch = {k: np.zeros(v.shape, v.dtype) for k, v in program.batch.items()}
    batch = jax.device_put(batch, program.batch["image"].sharding)
    state, metrics = program.step(state, batch, {})
    assert np.isfinite(float(metrics["loss"]))


def test_the_fsdp_step_holds_an_eighth_of_the_state_on_each_device():
    mesh = make_mesh(MeshConfig(replica=1, fsdp=8))
    program = make_program(run_config(small_config()), open_source("digits", "train", 16), mesh)
    compiled = program.lower().compile()

    def on_a_device(leaf):
        return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    leaves = jax.tree.leaves((program.state, program.batch))
    expected = sum(map(on_a_device, leaves))
    assert compiled.memory_analysis().argument_size_in_bytes == pytest.approx(expected, rel=0.02)
    sizes = [(leaf.size * leaf.dtype.itemsize, leaf.sharding) for leaf in leaves]
    copied = sum(size for size, sharding in sizes if sharding.is_fully_replicated)
    total = sum(size for size, _ in sizes)
    assert expected == pytest.approx((total - copied) / 8 + copied, rel=1e-6)
    assert copied < 0.05 * total


def test_a_large_parameter_without_a_rule_is_an_error_that_names_it():
    params = {"novel": {"weights": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)}}
    with pytest.raises(UsageError, match=r"no sharding rule for parameter novel/weights"):
        param_shardings(params, make_mesh(MeshConfig()))


def test_a_parameter_that_does_not_divide_is_an_error_that_names_it():
    params = abstract_params(model_config("Pico/8", image_size=16, width=36, heads=4))
    with pytest.raises(UsageError, match=r"36 over mesh axis fsdp=8"):
        param_shardings(params, make_mesh(MeshConfig(replica=1, fsdp=8)))


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        (MeshConfig(replica=3), "does not fit 8 devices"),
        (MeshConfig(replica=-1, fsdp=3), "does not fit 8 devices"),
        (MeshConfig(replica=-1, fsdp=-1), "at most one of them -1"),
        (MeshConfig(replica=0), "must be positive"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(mesh, says):
    with pytest.raises(UsageError, match=says):
        make_mesh(mesh)


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do():
    mesh = make_mesh(MeshConfig())
    with pytest.raises(UsageError, match="use 96 or 104"):
        batch_sharding(mesh, 100)
    with pytest.raises(UsageError, match=r"use 8$"):
        batch_sharding(mesh, 3)


def _has_mu(node):
    return hasattr(node, "mu")
