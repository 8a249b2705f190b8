"""Distances with closed forms, and rollout against naive NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.scrambled import scrambled
from tests.models.test_attention import block, layer_norm
from vit_jax.data.augment import normalize
from vit_jax.insight import attention
from vit_jax.insight.attention import COLUMNS, ROWS
from vit_jax.models.network import create_from_config, create_model
from vit_jax.models.variants import model_config
from vit_jax.models.vit import ViT

TINY = {"width": 12, "heads": 3, "depth": 3, "mlp_dim": 20, "num_classes": 0}
POOLINGS = ["token", "gap", "map"]


def random_images(config, count=2):
    shape = (count, *config.image_size, 3)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def uniform(name, **options):
    """A network whose tokens attend to all that they see alike: queries and keys are zero."""
    model = create_model(name, **{**TINY, **options})
    blocks = model.encoder.blocks
    for part in (blocks.row, blocks.column) if model.config.axial else (blocks,):
        part.attention.qkv.kernel[...] *= 0
        part.attention.qkv.bias[...] *= 0
    return model


# ---- distances


def mean_on_line(places, pitch):
    """Between two places of a line, each chosen at random."""
    return pitch * (places**2 - 1) / (3 * places)


def test_who_looks_at_itself_looks_no_distance():
    apart = attention.grid_distances((3, 4), (16.0, 16.0))
    weights = jnp.broadcast_to(jnp.eye(12), (2, 5, 12, 12))
    np.testing.assert_allclose(attention.mean_distance(weights, apart), np.zeros(5))


@pytest.mark.parametrize(("places", "pitch"), [(7, 16.0), (14, 8.0)])
def test_who_looks_everywhere_looks_a_third_of_the_line(places, pitch):
    apart = attention.line_distances(places, pitch)
    weights = jnp.full((1, 2, places, places), 1 / places)
    expected = [mean_on_line(places, pitch)] * 2
    np.testing.assert_allclose(attention.mean_distance(weights, apart), expected, rtol=1e-6)


def test_on_a_square_of_four_patches():
    apart = attention.grid_distances((2, 2), (10.0, 10.0))
    weights = jnp.full((1, 1, 4, 4), 0.25)
    expected = 10 * (0 + 1 + 1 + np.sqrt(2)) / 4
    np.testing.assert_allclose(attention.mean_distance(weights, apart), [expected], rtol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_class_token_and_registers_are_at_no_distance(pooling):
    model = uniform("B/8", image_size=(8, 56), pooling=pooling, registers=2)
    (found,) = attention.distances(model, random_images(model.config, 3)).values()
    assert found.shape == (3, 3)  # layers and heads
    np.testing.assert_allclose(found, mean_on_line(7, 8), rtol=1e-5)


def test_distances_of_hybrids_are_in_pixels_of_the_image():
    model = uniform("R+Ti/16", stem_width=32, image_size=(32, 96))
    assert model.config.grid == (1, 3)
    (found,) = attention.distances(model, random_images(model.config)).values()
    np.testing.assert_allclose(found, mean_on_line(3, 32), rtol=1e-5)


def test_axial_networks_look_along_rows_and_along_columns():
    model = uniform("Axial-B/8", image_size=(24, 40))
    images = random_images(model.config)
    found = attention.distances(model, images)
    np.testing.assert_allclose(found[ROWS], np.full((3, 3), mean_on_line(5, 8)), rtol=1e-5)
    np.testing.assert_allclose(found[COLUMNS], np.full((3, 3), mean_on_line(3, 8)), rtol=1e-5)
    layers = attention.lines(model, images)
    assert len(layers) == 3
    np.testing.assert_allclose(layers[0][ROWS], np.full((5, 5), 1 / 5), rtol=1e-5)
    np.testing.assert_allclose(layers[0][COLUMNS], np.full((3, 3), 1 / 3), rtol=1e-5)


def test_axial_resnets_attend_on_the_grid_of_each_unit():
    config = model_config("AxialResNet26", stages=(1, 2), width=32, heads=2, image_size=(16, 24))
    model = create_from_config(config)
    layers = attention.lines(model, random_images(config))
    assert [layer[ROWS].shape for layer in layers] == [(6, 6), (6, 6), (3, 3)]
    for layer in layers:
        for matrix in layer.values():
            np.testing.assert_allclose(matrix.sum(axis=-1), 1, rtol=1e-5)
    found = attention.distances(model, random_images(config))
    assert found[ROWS].shape == (3, 2) and (found[ROWS] > 0).all()


def test_images_are_taken_some_at_a_time(monkeypatch):
    model = create_model("B/8", **TINY, image_size=16)
    images = random_images(model.config, 5)
    (together,) = attention.distances(model, images).values()
    monkeypatch.setattr(attention, "_MOST_IMAGES", 2)
    (in_parts,) = attention.distances(model, images).values()
    np.testing.assert_allclose(in_parts, together, rtol=1e-5)


# ---- rollout


def attention_weights(x, params):
    """x: [token, width] -> [head, query, key]."""
    x = layer_norm(x, params["attention_norm"])
    qkv = np.einsum("nd,dphc->phnc", x, params["attention"]["qkv"]["kernel"])
    query, key, _ = qkv + params["attention"]["qkv"]["bias"][:, :, None]
    logits = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def naive(tokens, blocks, depth):
    """One image's tokens -> (rollout [query, key], weights of the last layer)."""
    product = np.eye(len(tokens))
    for layer in range(depth):
        params = _layer(blocks, layer)
        weights = attention_weights(tokens, params)
        mixed = np.zeros_like(product)
        for i in range(len(tokens)):
            for j in range(len(tokens)):
                mixed[i, j] = 0.5 * weights[:, i, j].mean() + 0.5 * (i == j)
            mixed[i] /= mixed[i].sum()
        product = mixed @ product
        tokens = block(tokens, params)
    return product, weights


def _layer(tree, layer):
    return {k: _layer(v, layer) if isinstance(v, dict) else v[layer] for k, v in tree.items()}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_rollout_equals_a_naive_computation(pooling):
    config = model_config("B/8", **TINY, image_size=(16, 24), pooling=pooling, registers=1)
    model, params = scrambled(lambda: ViT(config, rngs=nnx.Rngs(0)))
    images = random_images(config)
    looks = attention.looks(model, images)
    assert looks.rollout.shape == (2, 2, 3) and looks.tokens.shape == (2, 6, 12)

    embedded = np.asarray(model.embedding(normalize(jnp.asarray(images))), np.float64)
    first = int(pooling == "token")
    patches = slice(first, first + 6)  # the register is last
    for tokens, rollout, heads in zip(embedded, looks.rollout, looks.heads, strict=True):
        product, last = naive(tokens, params["encoder"]["blocks"], config.depth)
        ask = (lambda w: w[..., 0, patches]) if first else (
            lambda w: w[..., patches, patches].mean(axis=-2)
        )  # fmt: skip
        np.testing.assert_allclose(rollout.ravel(), ask(product), atol=1e-5)
        np.testing.assert_allclose(heads.reshape(3, 6), ask(last), atol=1e-5)


def test_rollout_of_axial_blocks_goes_along_rows_then_along_columns():
    model = create_model("Axial-B/8", **TINY, image_size=(16, 24))
    images = random_images(model.config, 1)
    rows, columns = 2, 3
    product = np.eye(6)

    def see(seen, weights):
        return seen, weights

    *_, each = model.watched(normalize(jnp.asarray(images)), see, None)
    for layer in range(3):
        full = np.zeros((2, 6, 6))
        for i, j in np.ndindex(6, 6):
            (r, c), (s, d) = divmod(i, columns), divmod(j, columns)
            if r == s:
                full[0, i, j] = each.along_rows[layer, 0, r, :, c, d].mean()
            if c == d:
                full[1, i, j] = each.along_columns[layer, 0, c, :, r, s].mean()
        for weights in full:
            product = (0.5 * weights + 0.5 * np.eye(6)) @ product
    found = attention.looks(model, images).rollout
    np.testing.assert_allclose(found[0], product.mean(axis=0).reshape(rows, columns), atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"pooling": "gap", "positions_at": "every_layer"}])
def test_a_watched_network_computes_what_it_always_does(options):
    model = create_model("B/8", **TINY, image_size=16, **options)
    images = normalize(jnp.asarray(random_images(model.config)))
    tokens, _, _ = model.watched(images, lambda seen, weights: (seen, None), None)
    pooled = tokens[:, 0] if model.config.pooling == "token" else tokens.mean(axis=1)
    np.testing.assert_allclose(pooled, model.features(images), atol=1e-5)
