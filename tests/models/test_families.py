"""Every family trains: tiny ones, on four images that they learn by heart."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.models.scrambled import random_normal
from vit_jax.errors import UsageError
from vit_jax.models.network import abstract_params, graphdef, init_params
from vit_jax.models.variants import model_config

VIT = {"width": 32, "depth": 2, "heads": 2, "mlp_dim": 64}
FAMILIES = {
    "token": ("B/4", VIT),
    "gap": ("B/4", VIT | {"pooling": "gap", "representation_size": 24}),
    "map": ("B/4", VIT | {"pooling": "map"}),
    "relative": ("B/4", VIT | {"positions": "relative"}),
    "later practice": (
        "B/4",
        VIT
        | {"positions": "2d", "positions_at": "every_layer"}
        | {"registers": 2, "layer_scale": 0.1, "qk_norm": True},
    ),
    "hybrid": ("R50+B/16", VIT | {"stem_stages": (1, 2), "stem_width": 32}),
    "hybrid of a root": ("R+Ti/16", VIT | {"patch_size": 2, "stem_width": 32}),
    "bit": ("BiT-R50x1", {"stages": (2, 1), "width": 32}),
    "axial vit": ("Axial-B/4", VIT),
    "axial resnet": ("AxialResNet50", {"stages": (2, 1), "width": 32, "heads": 4}),
}
# The plain ViTs with other heads and positions are left out: they compute with the same blocks.
BFLOAT16 = ("map", "later practice", "hybrid", "bit", "axial vit", "axial resnet")
IMAGES, LABELS, STEPS = random_normal(0, 4, 16, 16, 3), np.arange(4), 50
OPTIMIZER = optax.adamw(3e-3)


def tiny(family, **options):
    name, shape = FAMILIES[family]
    return model_config(name, **shape, image_size=16, num_classes=len(LABELS), **options)


@functools.cache
def fresh_params(family):
    config = tiny(family)
    return jax.jit(lambda key: init_params(config, key))(jax.random.key(0))


@functools.cache
def scrambled_params(family):
    """Fresh ones plus noise: no head and no last norm of a unit is zero, so gradients pass."""
    generator = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: np.float32(leaf + 0.2 * generator.normal(size=leaf.shape)),
        jax.tree.map(np.asarray, fresh_params(family)),
    )


def loss_function(config):
    definition = graphdef(config)

    def loss(params):
        logits = nnx.merge(definition, params)(IMAGES)
        return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()

    return loss


@functools.cache
def train_step(config):
    """(params, state) -> (params, state, loss, gradient), compiled once for all tests."""

    @jax.jit
    def step(params, state):
        loss, gradient = jax.value_and_grad(loss_function(config))(params)
        updates, state = OPTIMIZER.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss, gradient

    return step


def fresh_state(params):
    """What the optimizer starts from, which is all zeros, without compiling each of them."""
    shapes = jax.eval_shape(OPTIMIZER.init, params)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def losses(family, **options):
    params, step = fresh_params(family), train_step(tiny(family, **options))
    state, history = fresh_state(params), []
    for _ in range(STEPS):
        params, state, loss, _ = step(params, state)
        history.append(float(loss))
    return history


def gradient(family, **options):
    params = scrambled_params(family)
    step = train_step(tiny(family, **options))
    return jax.tree.map(np.asarray, step(params, fresh_state(params))[3])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_a_batch_by_heart(family):
    history = losses(family, remat="full")
    assert history[0] == pytest.approx(math.log(4), rel=1e-5)  # a fresh head knows nothing
    assert history[-1] < history[0] / 2


@pytest.mark.parametrize("family", BFLOAT16)
def test_every_family_learns_in_bfloat16(family):
    history = losses(family, dtype="bfloat16")
    assert history[-1] < history[0] / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_reaches_every_parameter_of_every_layer(family):
    leaves, _ = jax.tree.flatten_with_path(gradient(family, remat="full"))
    assert len(leaves) == len(jax.tree.leaves(abstract_params(tiny(family))))
    unreached = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert np.isfinite(leaf).all(), name
        stacked = any(part in name for part in ("blocks/", "rest/", "layer_positions/"))
        for layer, share in enumerate(leaf if stacked else leaf[None]):
            # The smallest is 0.02; what is zero but for rounding, as a key's bias is, 1e-7.
            if np.abs(share).max() < 1e-3:
                unreached.append(f"{name}, layer {layer}")
    assert not unreached


def test_without_kernels_every_policy_keeps_less_than_none():
    def kept(remat):
        loss = loss_function(tiny("hybrid", remat=remat, attention="plain"))
        backward = jax.eval_shape(lambda p: jax.vjp(loss, p)[1], scrambled_params("hybrid"))
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    assert kept("full") <= kept("qkv") == kept("dots") < kept("none")


@pytest.mark.parametrize("family", ["hybrid", "bit"])
def test_rematerialisation_of_a_resnet_keeps_less_and_computes_the_same_gradient(family):
    def kept(remat):
        """Numbers that the backward pass needs from the forward pass."""
        loss = loss_function(tiny(family, remat=remat))
        backward = jax.eval_shape(lambda p: jax.vjp(loss, p)[1], scrambled_params(family))
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    assert kept("full") <= kept("dots") < kept("none") / 2
    expected = gradient(family, remat="none")
    for remat in ("qkv", "dots", "full"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
            gradient(family, remat=remat),
            expected,
        )


@pytest.mark.parametrize("name", ["BiT-R50x1", "AxialResNet50", "R50+B/32"])
def test_odd_image_sizes_round_up_at_each_halving(name):
    options = {"stages": (1, 1), "width": 32}
    if name == "R50+B/32":
        options = VIT | {"stem_stages": (1, 1), "stem_width": 32}
    config = model_config(name, **options, image_size=(17, 33), num_classes=0)
    assert config.grid == (3, 5)
    images = jnp.zeros((1, 17, 33, 3))

    def feature_map(params):
        model = nnx.merge(graphdef(config), params)
        trunk = model.embedding.stem if name == "R50+B/32" else model.trunk
        return trunk(images), model(images)

    shape, _ = jax.eval_shape(feature_map, abstract_params(config))
    assert shape.shape == (1, 3, 5, 256)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("R50+B/16", {"stem_stages": (0, 1)}),
        ("R50+B/16", {"stem_width": 48}),
        ("BiT-R50x1", {"width": 48}),
        ("BiT-R50x1", {"width": 0}),
        ("BiT-R50x1", {"stages": (3, 0)}),
        ("BiT-R50x1", {"kind": "v3"}),
        ("AxialResNet50", {"heads": 7}),
        ("AxialResNet50", {"heads": 64}),  # which leaves queries without a channel
        ("AxialResNet50", {"heads": 0}),
        ("Axial-B/16", {"pooling": "token"}),
        ("Axial-B/16", {"registers": 4}),
        ("B/16", {"positions": "relative", "positions_at": "shared"}),
        ("B/16", {"positions": "sincos2d", "width": 30, "heads": 3}),
        ("B/16", {"representation_size": -1}),
    ],
)
def test_networks_that_cannot_be_built_are_refused_in_one_line(name, options):
    with pytest.raises(UsageError) as error:
        model_config(name, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "field"), [("BiT-R50x1", "stages"), ("R50+B/16", "stem_stages")])
def test_stages_may_be_a_list_as_sizes_may(name, field):
    config = model_config(name, **{field: [1, 2]}, image_size=[32, 32])
    assert getattr(config, field) == (1, 2)
