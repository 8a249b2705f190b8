"""Filters, positions and features, where it is known what must come out."""

import numpy as np
import pytest

from vit_jax.insight.embedding import as_colours, filters, position_similarity
from vit_jax.models.network import create_model

TINY = {"width": 64, "heads": 2, "depth": 2, "mlp_dim": 32, "num_classes": 0}


def test_components_of_filters_are_those_that_were_put_in():
    model = create_model("B/4", **TINY, image_size=8)
    rng = np.random.default_rng(0)
    patterns = np.linalg.qr(rng.normal(size=(4 * 4 * 3, 2)))[0].T
    kernel = 5 * np.outer(patterns[0], rng.normal(size=64))
    kernel += np.outer(patterns[1], rng.normal(size=64))
    model.embedding.patches.kernel[...] = kernel.reshape(4, 4, 3, 64).astype(np.float32)
    found = filters(model)
    assert found.shape == (28, 4, 4, 3) and found.min() >= 0 and found.max() <= 1
    for component, pattern in zip(found, patterns, strict=False):
        flat = component.ravel() - 0.5
        cosine = abs(flat @ pattern) / np.linalg.norm(flat)
        assert cosine > 0.95  # filters are centred, and few


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("R+Ti/16", {"stem_width": 32}, (28, 7, 7, 3)),
        ("BiT-R50x1", {"width": 32, "stages": (1, 1)}, (28, 7, 7, 3)),
        ("B/2", {"width": 8}, (8, 2, 2, 3)),  # there are no more
    ],
)
def test_behind_a_resnet_its_root_sees_pixels(name, options, shape):
    options = {**TINY, **options} if "BiT" not in name else {**options, "num_classes": 0}
    found = filters(create_model(name, image_size=64, **options))
    assert found.shape == shape and np.ptp(found) > 0.5


@pytest.mark.parametrize("pooling", ["token", "gap"])
@pytest.mark.parametrize("place", ["stem", "shared", "every_layer"])
def test_sine_cosine_positions_are_most_like_themselves(pooling, place):
    options = {"positions": "sincos2d", "positions_at": place, "pooling": pooling}
    model = create_model("B/8", **TINY, **options, image_size=(40, 56))
    found = position_similarity(model)
    assert found.shape == (5, 7, 5, 7)
    flat = found.reshape(35, 35)
    np.testing.assert_allclose(flat.diagonal(), 1, rtol=1e-6)
    others = flat - 2 * np.eye(35)
    assert others.max() < 1 - 1e-3  # the diagonal is the maximum, and the only one
    np.testing.assert_allclose(flat, flat.T, atol=1e-12)
    # The same for all patches: less like, the further away along a row.
    assert (np.diff(found[2, 0, 2, :4]) < 0).all()


def test_learned_positions_leave_the_class_token_out():
    model = create_model("B/8", **TINY, image_size=(16, 24))
    model.embedding.positions.table[...] = model.embedding.positions.table[...].at[0, 0].set(1e3)
    found = position_similarity(model)
    assert found.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(found.reshape(6, 6).diagonal(), 1, rtol=1e-6)


@pytest.mark.parametrize("positions", ["none", "relative"])
def test_where_nothing_is_added_there_is_nothing_to_compare(positions):
    model = create_model("B/8", **TINY, image_size=16, positions=positions)
    assert position_similarity(model) is None


def test_patches_that_mean_the_same_have_the_same_colour():
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(3, 16))
    which = rng.integers(3, size=(4, 9))
    colours = as_colours(kinds[which])
    assert colours.shape == (4, 9, 3) and colours.min() >= 0 and colours.max() <= 1
    for kind in range(3):
        assert np.ptp(colours[which == kind], axis=0).max() < 1e-6
    assert np.abs(colours[which == 0][0] - colours[which == 1][0]).max() > 0.3


def test_colours_of_networks_narrower_than_three():
    assert as_colours(np.random.default_rng(0).normal(size=(1, 4, 2))).shape == (1, 4, 3)
