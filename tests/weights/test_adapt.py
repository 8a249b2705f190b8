"""Parameters made to fit another network, and the report of what became of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.models.config import as_size
from vit_jax.models.network import abstract_params, graphdef, init_params
from vit_jax.models.variants import model_config
from vit_jax.weights.adapt import adapt

SMALL = {"image_size": 32, "num_classes": 5, "width": 32, "depth": 2, "mlp_dim": 64, "heads": 4}
OLD = model_config("B/8", **SMALL, representation_size=16)


def adapted(old=OLD, *, keep_head=True, unused=(), **changes):
    changes = {k: as_size(v) if k.endswith("_size") and k != "representation_size" else v
               for k, v in changes.items()}  # fmt: skip
    new = dataclasses.replace(old, **changes)
    old_params = init_params(old, jax.random.key(1))
    result = adapt(old_params, old, new, keep_head=keep_head, unused=unused)
    expected = jax.tree.map(lambda leaf: leaf.shape, abstract_params(new))
    assert jax.tree.map(lambda leaf: leaf.shape, result.params) == expected
    return old_params, result, new


def output(network, params, images):
    return nnx.merge(graphdef(network), jax.tree.map(jnp.asarray, params)).features(images)


def test_the_same_network_keeps_everything():
    params, result, _ = adapted()
    jax.tree.map(np.testing.assert_array_equal, result.params, params)
    assert result.loaded == len(jax.tree.leaves(params))
    assert result.report() == f"loaded {result.loaded} arrays"


def test_another_task_at_another_resolution():
    params, result, _ = adapted(
        image_size=(48, 64), num_classes=3, representation_size=0, unused=("opt/count",)
    )
    assert result.report() == (
        f"loaded {result.loaded} arrays; resized positions 4x4 -> 6x8; "
        "created head for 3 classes; left out pre_logits, head for 5 classes, opt/count"
    )
    assert not result.params["head"]["kernel"].any()
    jax.tree.map(np.testing.assert_array_equal, result.params["encoder"], params["encoder"])


def test_the_head_is_new_where_fine_tuning_wants_it_so():
    _, result, _ = adapted(keep_head=False)
    assert result.created == ("head for 5 classes",)
    assert "pre_logits" in result.params and not result.params["head"]["kernel"].any()


def test_a_head_appears_and_disappears():
    assert adapted(num_classes=0)[1].left_out == ("head for 5 classes",)
    headless = dataclasses.replace(OLD, num_classes=0)
    assert adapted(headless, num_classes=5)[1].created == ("head for 5 classes",)


def test_a_grid_of_as_many_patches_but_another_shape_is_resized_too():
    params, result, _ = adapted(image_size=(16, 64))
    assert result.resized == ("positions 4x4 -> 2x8",)
    before = params["embedding"]["positions"]["table"]
    assert not np.array_equal(result.params["embedding"]["positions"]["table"], before)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "2d"},
        {"positions": "2d", "positions_at": "every_layer"},
        {"positions_at": "every_layer"},
        {"positions_at": "shared"},
        {"positions": "relative", "registers": 3},
        {"positions": "relative", "axial": True, "pooling": "gap"},
        {"positions": "sincos2d"},
        {"axial": True, "pooling": "map"},
    ],
    ids=str,
)
def test_all_kinds_of_positions_follow_the_grid(options):
    old = dataclasses.replace(OLD, **options)
    _, result, new = adapted(old, image_size=(40, 64))
    resized = {"relative": ("relative positions 4x4 -> 5x8",), "sincos2d": ()}
    assert result.resized == resized.get(old.positions, ("positions 4x4 -> 5x8",))
    assert output(new, result.params, np.zeros((1, 40, 64, 3))).shape == (1, 16)


def test_one_channel_sees_what_three_equal_ones_saw():
    params, result, new = adapted(channels=1)
    assert result.resized == ("channels 3 -> 1",)
    grey = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 1)).astype(np.float32)
    before = output(OLD, params, grey.repeat(3, axis=-1))
    np.testing.assert_allclose(output(new, result.params, grey), before, atol=1e-5)
    for channels in (2, 4, 6):
        _, result, new = adapted(channels=channels)
        after = output(new, result.params, grey.repeat(channels, axis=-1))
        np.testing.assert_allclose(after, before, atol=1e-5)


def test_larger_patches_of_a_larger_image_keep_their_tokens():
    gap = dataclasses.replace(OLD, pooling="gap")
    params, result, new = adapted(gap, image_size=64, patch_size=16)
    assert result.resized == ("patches 8x8 -> 16x16",)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)
    # Patch by patch: what lies beyond a patch's edge must not leak into it.
    patches = images.reshape(2, 4, 8, 4, 8, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 8, 8, 3)
    grown = jax.image.resize(patches, (len(patches), 16, 16, 3), "bilinear", antialias=False)
    grown = grown.reshape(2, 4, 4, 16, 16, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 64, 64, 3)
    before, after = output(gap, params, images), output(new, result.params, grown)
    np.testing.assert_allclose(after, before, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("R50+B/16", SMALL | {"stem_stages": (1, 1), "stem_width": 32}),
        ("BiT-R50x1", {"stages": (1, 1), "width": 32, "image_size": 32, "num_classes": 5}),
        ("AxialResNet26", {"stages": (2, 1), "width": 32, "image_size": 32, "num_classes": 5}),
    ],
)
def test_networks_with_convolutions_adapt_as_well(name, options):
    old = model_config(name, **options)
    _, result, new = adapted(old, image_size=(48, 44), channels=4, num_classes=2)
    assert "channels 3 -> 4" in result.resized and result.created == ("head for 2 classes",)
    assert np.isfinite(output(new, result.params, np.ones((1, 48, 44, 4)))).all()


def test_feature_maps_that_were_rounded_up_are_resized_to_their_true_size():
    options = {"stages": (1, 1, 1), "width": 32, "num_classes": 5}
    old = model_config("AxialResNet26", image_size=(44, 40), **options)  # 11, then 6, then 3 places
    adapted(old, image_size=(96, 72))  # compares all shapes


def test_weights_of_another_shape_are_refused_with_all_that_differs():
    with pytest.raises(UsageError, match=r"depth 2 -> 3, .*mlp_dim 64 -> 128"):
        adapted(depth=3, mlp_dim=128)
    with pytest.raises(UsageError, match="cannot be changed in pooling token -> gap"):
        adapted(pooling="gap")
    resnet = model_config("BiT-R50x1", num_classes=5)
    with pytest.raises(UsageError, match="weights of 32x2/8 do not fit BiT-R50x1"):
        adapt({}, OLD, resnet)
    scaled, other = (dataclasses.replace(OLD, layer_scale=scale) for scale in (0.1, 1e-5))
    assert adapted(scaled, layer_scale=other.layer_scale)[1].created == ()


def test_many_foreign_arrays_are_told_by_where_they_lie():
    unused = tuple(f"opt/{i}" for i in range(9))
    assert adapted(unused=unused)[1].left_out == ("opt/... (9 arrays)",)
