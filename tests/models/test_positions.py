"""Where a patch is: the tables of Table 8, and where they are added."""

import functools
import math

import jax
import numpy as np
import pytest
from flax import nnx

from tests.models.scrambled import call, random_normal, scrambled
from vit_jax.models.network import abstract_params
from vit_jax.models.positions import Positions, sincos2d
from vit_jax.models.variants import model_config
from vit_jax.models.vit import ViT

ROWS, COLUMNS, WIDTH, DEPTH = 2, 3, 16, 3
TINY = {
    "image_size": (4 * ROWS, 4 * COLUMNS),
    "width": WIDTH,
    "depth": DEPTH,
    "heads": 2,
    "mlp_dim": 24,
    "num_classes": 0,
}


def table(params, config):
    """[patch token, width] from one layer's parameters, in NumPy: what is to be added."""
    if config.positions == "1d":
        return params["table"][0]
    if config.positions == "sincos2d":
        patches = sincos2d(ROWS, COLUMNS, WIDTH).reshape(-1, WIDTH)
    else:
        patches = np.array(
            [
                np.concatenate([params["columns"][column], params["rows"][row]])
                for row in range(ROWS)
                for column in range(COLUMNS)
            ]
        )
    no_position = np.zeros((1 if config.pooling == "token" else 0, WIDTH), np.float32)
    return np.concatenate([no_position, patches])


def of_layer(params, layer):
    return jax.tree.map(lambda leaf: leaf[layer], params)


def test_sines_and_cosines_follow_the_formula():
    # Beyer et al. (2022): a quarter each for sin x, cos x, sin y, cos y; temperature 10,000.
    expected = np.zeros((3, 5, 24))
    for y, x, i in np.ndindex(3, 5, 6):
        frequency = 1 / 10_000 ** (i / 5)
        expected[y, x, i] = math.sin(x * frequency)
        expected[y, x, 6 + i] = math.cos(x * frequency)
        expected[y, x, 12 + i] = math.sin(y * frequency)
        expected[y, x, 18 + i] = math.cos(y * frequency)
    np.testing.assert_allclose(sincos2d(3, 5, 24), expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["token", "gap"])
@pytest.mark.parametrize("positions", ["1d", "2d", "sincos2d"])
def test_the_table_is_added_to_the_tokens_of_the_stem(positions, pooling):
    config = model_config("B/4", **TINY, positions=positions, pooling=pooling, registers=2)
    model, params = scrambled(lambda: ViT(config, rngs=nnx.Rngs(0)))
    params = params["embedding"]
    images = random_normal(0, 2, *config.image_size, 3)

    before = call(model.embedding.patches, images)
    if pooling == "token":
        class_token = np.broadcast_to(params["class_token"], (2, 1, WIDTH))
        before = np.concatenate([class_token, before], axis=1)
    expected = before + table(params.get("positions"), config)
    np.testing.assert_allclose(call(model.embedding, images)[:, :-2], expected, atol=1e-5)


def test_two_dimensional_tables_say_the_column_first_and_then_the_row():
    config = model_config("B/4", **TINY, positions="2d", pooling="gap")
    positions, params = scrambled(lambda: Positions(config, rngs=nnx.Rngs(0)))
    assert params["columns"].shape == (COLUMNS, WIDTH // 2)
    assert params["rows"].shape == (ROWS, WIDTH // 2)
    grid = positions().reshape(ROWS, COLUMNS, WIDTH)
    for row, column in np.ndindex(ROWS, COLUMNS):
        np.testing.assert_array_equal(grid[row, column, : WIDTH // 2], params["columns"][column])
        np.testing.assert_array_equal(grid[row, column, WIDTH // 2 :], params["rows"][row])


@pytest.mark.parametrize("place", ["shared", "every_layer"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("B/4", {"positions": "1d"}),
        ("B/4", {"positions": "2d", "registers": 2}),
        ("B/4", {"positions": "sincos2d", "registers": 2, "pooling": "gap"}),
        ("Axial-B/4", {"positions": "1d"}),
        ("Axial-B/4", {"positions": "2d"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_positions_in_the_layers_equal_a_loop_that_adds_them_before_each_block(
    name, options, place
):
    config = model_config(name, **TINY, **options, positions_at=place)
    model, params = scrambled(lambda: ViT(config, rngs=nnx.Rngs(0)))
    assert "positions" not in params["embedding"]
    params = params["encoder"]
    x = random_normal(1, 2, config.tokens, WIDTH)
    result = call(model.encoder, x)

    block = jax.jit(lambda params, x: nnx.merge(nnx.graphdef(model.encoder.blocks), params)(x))
    for layer in range(DEPTH):
        if place == "shared":
            added = table(params.get("positions"), config)
        else:
            added = table(of_layer(params.get("layer_positions"), layer), config)
        # Registers come last, and have no positions.
        x = x + np.pad(added, ((0, config.registers), (0, 0)))
        if config.axial:
            x = x.reshape(2, ROWS, COLUMNS, WIDTH)
        x = block(of_layer(params["blocks"], layer), x)
        x = np.asarray(x).reshape(2, config.tokens, WIDTH)
    np.testing.assert_allclose(result, call(model.encoder.norm, x), atol=2e-5)


def test_every_layer_has_a_table_of_its_own_and_shared_is_one():
    own, shared = (
        abstract_params(model_config("B/4", **TINY, positions_at=place))["encoder"]
        for place in ("every_layer", "shared")
    )
    tokens = ROWS * COLUMNS + 1
    assert own["layer_positions"]["table"].shape == (DEPTH, 1, tokens, WIDTH)
    assert shared["positions"]["table"].shape == (1, tokens, WIDTH)


@pytest.mark.parametrize("pooling", ["gap", "map", "token"])
def test_without_positions_the_order_of_the_patches_does_not_matter(pooling):
    features = feature_function(positions="none", pooling=pooling, registers=2)
    images = random_normal(1, 2, *TINY["image_size"], 3)
    assert np.abs(features(images) - features(images[::-1])).max() > 1e-2  # it sees something
    np.testing.assert_allclose(features(images), features(shuffled(images)), atol=1e-5)


@pytest.mark.parametrize("positions", ["1d", "2d", "sincos2d", "relative"])
def test_with_positions_the_order_of_the_patches_matters(positions):
    features = feature_function(positions=positions, pooling="gap")
    images = random_normal(1, 2, *TINY["image_size"], 3)
    assert np.abs(features(images) - features(shuffled(images))).max() > 1e-3


def feature_function(**options):
    config = model_config("B/4", **TINY, **options)
    return functools.partial(call, scrambled(lambda: ViT(config, rngs=nnx.Rngs(0)))[0])


def shuffled(images):
    """The same patches of 4 x 4 pixels, in another order."""
    batch, (height, width) = len(images), TINY["image_size"]
    patches = images.reshape(batch, ROWS, 4, COLUMNS, 4, 3).swapaxes(2, 3)
    order = np.array([4, 0, 3, 5, 1, 2])
    patches = patches.reshape(batch, ROWS * COLUMNS, 4, 4, 3)[:, order]
    patches = patches.reshape(batch, ROWS, COLUMNS, 4, 4, 3).swapaxes(2, 3)
    return patches.reshape(batch, height, width, 3)
