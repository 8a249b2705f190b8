"""The plain ViT: its outputs, its noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import vit_jax
from vit_jax.errors import UsageError
from vit_jax.models.variants import model_config

SMALL = {"image_size": 16, "num_classes": 7, "width": 32, "depth": 3, "mlp_dim": 64, "heads": 4}


def small_model(**overrides):
    model = vit_jax.create_model("Pico/8", **{**SMALL, **overrides})
    if "head" in nnx.to_pure_dict(nnx.state(model)):  # fresh heads are zero; see through this one
        kernel = jax.random.normal(jax.random.key(9), model.head.kernel.shape)
        model.head.kernel[...] = kernel
    return model


@pytest.fixture
def images():
    return jax.random.uniform(jax.random.key(1), (4, 16, 16, 3), minval=-1)


@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_logits_are_the_head_on_the_features(images, pooling):
    model = small_model(pooling=pooling, representation_size=24)
    features = model.features(images)
    assert features.shape == (4, 24)
    assert jnp.abs(features).max() < 1  # tanh
    np.testing.assert_allclose(model(images), model.head(features), rtol=1e-5)


def test_a_fresh_head_answers_with_its_bias(images):
    model = vit_jax.create_model("Pico/8", **SMALL, head_bias=-10.0)
    np.testing.assert_array_equal(model(images), np.full((4, 7), -10.0))


def test_without_classes_the_model_returns_its_features(images):
    model = small_model(num_classes=0)
    np.testing.assert_array_equal(model(images), model.features(images))


def test_non_square_images_and_patches():
    model = small_model(image_size=(16, 24), patch_size=(4, 8))
    assert model.config.grid == (4, 3)
    assert model(jnp.zeros((2, 16, 24, 3))).shape == (2, 7)


def test_patch_embedding_is_a_strided_convolution(images):
    patches = small_model(patch_size=4).embedding.patches
    expected = jax.lax.conv_general_dilated(
        images, patches.kernel[...], (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(patches(images), expected.reshape(4, 16, 32), atol=1e-5)


def test_scanned_blocks_equal_a_loop_over_them(images):
    model = small_model()
    tokens = model.embedding(images)
    graphdef, params = nnx.split(model.encoder.blocks)
    expected = tokens
    for layer in range(3):
        block = nnx.merge(graphdef, jax.tree.map(lambda leaf, n=layer: leaf[n], params))
        expected = block(expected)
    np.testing.assert_allclose(model.encoder(tokens), model.encoder.norm(expected), atol=1e-5)


@pytest.mark.parametrize("remat", ["qkv", "dots", "full"])
def test_rematerialisation_changes_neither_values_nor_gradients(images, remat):
    def loss_and_gradient(policy):
        graphdef, params = nnx.split(small_model(remat=policy, dropout=0.1))
        return jax.value_and_grad(
            lambda p: nnx.merge(graphdef, p)(images, jax.random.key(3)).var()
        )(nnx.to_pure_dict(params))

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        loss_and_gradient("none"),
        loss_and_gradient(remat),
    )


@pytest.mark.parametrize("noise", ["dropout", "stochastic_depth"])
def test_noise_comes_from_the_key_alone(images, noise):
    model = small_model(**{noise: 0.5})
    first, again, other = (model(images, jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    np.testing.assert_array_equal(model(images), small_model()(images))  # no key, no noise


def test_bfloat16_computes_what_float32_does_but_coarser(images):
    exact, coarse = small_model(), small_model(dtype="bfloat16")
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(coarse)))
    assert coarse.encoder(coarse.embedding(images)).dtype == jnp.bfloat16
    assert coarse(images).dtype == jnp.float32
    difference = jnp.abs(exact(images) - coarse(images)).max()
    assert 0 < difference < 0.3


def test_logits_are_exact_around_a_large_bias(images):
    exact, coarse = (small_model(dtype=d, head_bias=-10.0) for d in ("float32", "bfloat16"))
    for model in (exact, coarse):
        model.head.kernel[...] = 1e-3 * model.head.kernel[...]
    np.testing.assert_allclose(exact(images), coarse(images), atol=2e-3)
    assert len(np.unique(coarse(images))) > 20


def test_calling_a_model_twice_compiles_once(images):
    from vit_jax.models.heads import _compiled

    model = small_model()
    model(images)
    before = _compiled.jitted()._cache_size()
    model(images)
    small_model(seed=1)(images)
    assert _compiled.jitted()._cache_size() == before


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("B//16", {}, "Did you mean B/16?"),
        ("X/16", {}, "SHAPE one of"),
        ("B/16", {"image_size": 225}, "use 224 or 240"),
        ("B/16", {"image_size": 8}, "use 16 or"),
        ("B/16", {"pooling": "max"}, "expected one of token, gap"),
        ("B/16", {"poling": "gap"}, "Did you mean pooling?"),
        ("B/16", {"heads": 7}, "does not divide"),
        ("B/16", {"dropout": 1.5}, "expected 0 <= dropout < 1"),
    ],
)
def test_mistakes_are_told_in_one_line(name, options, says):
    with pytest.raises(UsageError) as error:
        model_config(name, **options)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"expected \[batch, 16, 16, 3\]"):
        small_model()(jnp.zeros((1, 32, 32, 3)))
