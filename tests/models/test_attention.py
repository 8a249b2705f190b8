"""Everything that attends, against loops over pairs of tokens in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.scrambled import call, random_normal, scrambled
from vit_jax.models.attention import SelfAttention, attend
from vit_jax.models.axial_attention import AxialAttention, AxialMixer
from vit_jax.models.encoder import AxialBlock, Block
from vit_jax.models.heads import AttentionPooling
from vit_jax.models.variants import model_config
from vit_jax.models.vit import ViT

WIDTH, HEADS = 12, 3
ROWS, COLUMNS = 3, 4
TINY = {"width": WIDTH, "heads": HEADS, "depth": 2, "mlp_dim": 20, "num_classes": 0}


def self_attention_layer(**options):
    return scrambled(
        lambda: SelfAttention(WIDTH, HEADS, 5, **options, dtype=jnp.float32, rngs=nnx.Rngs(0))
    )


# ---- in NumPy


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def layer_norm(x, params):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * params["scale"] + params.get("bias", 0)


def group_norm(x, params):
    """x: [batch, ..., channel], each image's 32 groups on their own."""
    groups = x.reshape(len(x), -1, 32, x.shape[-1] // 32)
    mean, variance = (f(groups, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    normal = ((groups - mean) / np.sqrt(variance + 1e-6)).reshape(x.shape)
    return normal * params["scale"] + params["bias"]


def mlp(x, params):
    hidden = x @ params["up"]["kernel"] + params["up"]["bias"]
    hidden = hidden / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    return hidden @ params["down"]["kernel"] + params["down"]["bias"]


def self_attention(x, params, offset=None):
    """x: [token, width]. `offset(i, j)` is between two tokens, None where i does not see j."""
    offset = offset or (lambda i, j: i - j)
    query, key, value = (
        np.einsum("nd,dphc->pnhc", x, params["qkv"]["kernel"]) + (params["qkv"]["bias"][:, None])
    )
    if "query_norm" in params:
        query, key = layer_norm(query, params["query_norm"]), layer_norm(key, params["key_norm"])
    n, heads, channels = query.shape
    mixed = np.zeros_like(query)
    for head in range(heads):
        for i in range(n):
            logits = np.full(n, -np.inf)
            for j in range(n):
                if offset(i, j) is None:
                    continue
                logits[j] = query[i, head] @ key[j, head]
                if "offsets" in params:
                    table = params["offsets"]
                    logits[j] += query[i, head] @ table[offset(i, j) + len(table) // 2]
            mixed[i, head] = softmax(logits / np.sqrt(channels)) @ value[:, head]
    return np.einsum("nhc,hcd->nd", mixed, params["out"]["kernel"]) + params["out"]["bias"]


def block(x, params, offset=None):
    attended = self_attention(layer_norm(x, params["attention_norm"]), params["attention"], offset)
    x = x + attended * params.get("attention_scale", 1)
    return x + mlp(layer_norm(x, params["mlp_norm"]), params["mlp"]) * params.get("mlp_scale", 1)


def along_rows(i, j):
    return i % COLUMNS - j % COLUMNS if i // COLUMNS == j // COLUMNS else None


def along_columns(i, j):
    return i // COLUMNS - j // COLUMNS if i % COLUMNS == j % COLUMNS else None


# ---- plain


@pytest.mark.parametrize(
    "options",
    [{}, {"relative": True}, {"qk_norm": True}, {"relative": True, "qk_norm": True}],
    ids=["plain", "relative", "qk_norm", "both"],
)
def test_self_attention_equals_a_loop_over_queries_and_keys(options):
    layer, params = self_attention_layer(**options)
    x = random_normal(1, 2, 5, WIDTH)
    expected = np.stack([self_attention(image, params) for image in x])
    np.testing.assert_allclose(call(layer, x), expected, atol=1e-5)


def test_relative_positions_tell_before_from_after():
    layer, params = self_attention_layer(relative=True)
    assert params["offsets"].shape == (2 * 5 - 1, WIDTH // HEADS)  # one table for all heads
    x = random_normal(1, 1, 5, WIDTH)
    assert np.abs(call(layer, x) - call(layer, x[:, ::-1])[:, ::-1]).max() > 1e-2
    layer.offsets[...] = layer.offsets[...] + layer.offsets[...][::-1]
    np.testing.assert_allclose(call(layer, x), call(layer, x[:, ::-1])[:, ::-1], atol=1e-5)


def test_qk_norm_takes_the_scale_out_of_queries_and_keys():
    x = random_normal(1, 2, 5, WIDTH)

    def changes_with_scale(qk_norm):
        layer, _ = self_attention_layer(qk_norm=qk_norm)
        before = call(layer, x)
        for leaf in (layer.qkv.kernel, layer.qkv.bias):  # [..., part, head, channel]
            leaf[...] = leaf[...].at[..., :2, :, :].multiply(30.0)
        return np.abs(call(layer, x) - before).max()

    assert changes_with_scale(qk_norm=True) < 1e-3
    assert changes_with_scale(qk_norm=False) > 0.1


def test_the_softmax_is_in_float32_even_when_all_else_is_not():
    # Logits 128 and 128.5 are one number in bfloat16, whose steps are 1 wide there.
    query = jnp.ones((1, 1, 2), jnp.bfloat16)
    key = jnp.array([[[128, 0]], [[128, 0.5]]], jnp.bfloat16)
    value = jnp.array([[[0]], [[1]]], jnp.bfloat16)
    mixed = attend(query, key, value, scale=1.0)
    assert mixed.dtype == jnp.bfloat16
    assert float(mixed[0, 0, 0]) == pytest.approx(1 / (1 + np.exp(-0.5)), abs=0.005)


# ---- blocks


@pytest.mark.parametrize(
    "options",
    [{}, {"layer_scale": 0.1, "qk_norm": True, "positions": "relative"}],
    ids=["plain", "with everything"],
)
def test_a_block_is_attention_and_mlp_behind_norms(options):
    config = model_config("B/16", **TINY, **options)
    layer, params = scrambled(lambda: Block(config, 5, rngs=nnx.Rngs(0)))
    x = random_normal(1, 2, 5, WIDTH)
    expected = np.stack([block(image, params) for image in x])
    np.testing.assert_allclose(call(layer, x), expected, atol=1e-5)


def test_with_a_layer_scale_blocks_start_near_the_identity():
    x = random_normal(1, 2, 5, WIDTH)
    scaled, plain = (model_config("B/16", **TINY, layer_scale=scale) for scale in (1e-5, 0.0))
    layer = nnx.jit(lambda: Block(scaled, 5, rngs=nnx.Rngs(0)))()
    assert 0 < np.abs(call(layer, x) - x).max() < 1e-4

    # The scale is all that keeps it there: at 1, it is a block that has none.
    for scale in (layer.attention_scale, layer.mlp_scale):
        scale[...] = jnp.ones(WIDTH)
    without, _ = scrambled(lambda: Block(plain, 5, rngs=nnx.Rngs(0)))
    params = nnx.to_pure_dict(nnx.state(layer))
    nnx.update(without, {k: v for k, v in params.items() if not k.endswith("_scale")})
    np.testing.assert_allclose(call(layer, x), call(without, x), atol=1e-6)
    assert np.abs(call(layer, x) - x).max() > 0.1


# ---- axial


@pytest.fixture(scope="module", params=["1d", "relative"])
def axial(request):
    """An axial block, its parameters, and tokens [batch, row, column, width]."""
    size = (8 * ROWS, 8 * COLUMNS)
    config = model_config("Axial-B/8", **TINY, positions=request.param, image_size=size)
    layer, params = scrambled(lambda: AxialBlock(config, rngs=nnx.Rngs(0)))
    return layer, params, random_normal(1, 2, ROWS, COLUMNS, WIDTH)


def brute_force(x, params, offset):
    """Attention over all tokens of an image, minus infinity in the logits where `offset` is None.

    x: [batch, row, column, width].
    """
    tokens = x.reshape(len(x), ROWS * COLUMNS, WIDTH)
    return np.stack([block(image, params, offset) for image in tokens]).reshape(x.shape)


def test_a_row_block_is_full_attention_masked_to_the_row(axial):
    layer, params, x = axial
    expected = brute_force(x, params["row"], along_rows)
    np.testing.assert_allclose(call(layer.row, x), expected, atol=1e-5)


def test_a_column_block_is_full_attention_masked_to_the_column(axial):
    layer, params, x = axial
    expected = brute_force(x, params["column"], along_columns)
    result = call(layer.column, x.swapaxes(1, 2)).swapaxes(1, 2)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_an_axial_block_goes_along_rows_and_then_along_columns(axial):
    layer, params, x = axial
    after_rows = brute_force(x, params["row"], along_rows)
    expected = brute_force(after_rows, params["column"], along_columns)
    np.testing.assert_allclose(call(layer, x), expected, atol=1e-5)


def axial_attention(x, params, heads):
    """x: [batch, line, place, channel]; Wang et al. (2020), equation 4."""
    batch, lines, places, channels = x.shape
    qkv = group_norm(x @ params["qkv"]["kernel"], params["qkv_norm"])
    qkv = qkv.reshape(batch, lines, places, heads, -1)
    half = channels // heads // 2  # of a head's values: queries and keys are half as wide
    q, k, v = qkv[..., :half], qkv[..., half : 2 * half], qkv[..., 2 * half :]
    table = params["offsets"]
    r_q, r_k, r_v = table[:, :half], table[:, half : 2 * half], table[:, 2 * half :]
    mixed = np.zeros((batch, lines, places, heads, 2 * half))
    for b, line, i, head in np.ndindex(batch, lines, places, heads):
        query = q[b, line, i, head]
        logits, values = np.zeros(places), np.zeros((places, 2 * half))
        for j in range(places):
            key, offset = k[b, line, j, head], i - j + places - 1
            logits[j] = query @ key + query @ r_q[offset] + key @ r_k[offset]
            values[j] = v[b, line, j, head] + r_v[offset]
        mixed[b, line, i, head] = softmax(logits) @ values
    return group_norm(mixed.reshape(x.shape), params["norm"])


def test_position_sensitive_attention_equals_a_loop_over_places():
    layer, params = scrambled(lambda: AxialAttention(5, 32, 4, dtype=jnp.float32, rngs=nnx.Rngs(0)))
    x = random_normal(1, 2, 3, 5, 32)
    np.testing.assert_allclose(call(layer, x), axial_attention(x, params, heads=4), atol=2e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_what_replaces_a_convolution_attends_along_height_then_width_then_shrinks(stride):
    layer, params = scrambled(
        lambda: AxialMixer((3, 5), 32, 4, stride=stride, dtype=jnp.float32, rngs=nnx.Rngs(0))
    )
    x = random_normal(1, 2, 3, 5, 32)
    expected = axial_attention(x.swapaxes(1, 2), params["height"], heads=4).swapaxes(1, 2)
    expected = axial_attention(expected, params["width"], heads=4)
    if stride == 2:  # means of 2 x 2, and of what there is at the odd edges
        rows, columns = ((0, 2), (2, 3)), ((0, 2), (2, 4), (4, 5))
        means = [[expected[:, a:b, c:d].mean((1, 2)) for c, d in columns] for a, b in rows]
        expected = np.array(means).transpose(2, 0, 1, 3)
    # Not closer: where a group's mean is far above its deviation, flax's E[x^2] - E[x]^2 loses
    # digits.
    np.testing.assert_allclose(call(layer, x), expected, atol=3e-4)


# ---- registers and pooling


@pytest.mark.parametrize("pooling", ["token", "gap", "map"])
def test_registers_are_seen_by_the_patches_but_not_pooled(pooling):
    config = model_config("B/4", **TINY, image_size=(8, 12), pooling=pooling, registers=3)
    model, params = scrambled(lambda: ViT(config, rngs=nnx.Rngs(0)))
    definition, images = nnx.graphdef(model), random_normal(2, 2, 8, 12, 3)

    @jax.jit
    def run(params):
        model = nnx.merge(definition, params)
        tokens = model.embedding(images)
        return tokens, model.encoder(tokens), model.features(images)

    embedded, tokens, features = run(params)
    patches = 2 * 3 + (pooling == "token")
    assert tokens.shape == (2, patches + 3, WIDTH)
    expected = {
        "token": lambda patches: patches[:, 0],
        "gap": lambda patches: patches.mean(axis=1),
        "map": lambda patches: call(model.pooling, patches),
    }[pooling](tokens[:, :patches])
    np.testing.assert_allclose(features, expected, atol=1e-5)

    registers = params["embedding"]["registers"]
    for image in embedded:  # the registers are last, and have no positions
        np.testing.assert_array_equal(image[patches:], registers[0])
    params["embedding"]["registers"] = registers + random_normal(3, *registers.shape)
    assert np.abs(run(params)[2] - features).max() > 1e-3


def test_attention_pooling_equals_a_loop_over_heads():
    layer, params = scrambled(
        lambda: AttentionPooling(model_config("B/16", **TINY, pooling="map"), rngs=nnx.Rngs(0))
    )
    x = random_normal(1, 2, 5, WIDTH)

    def pooled(tokens):
        query = np.einsum("d,dhc->hc", params["probe"][0, 0], params["query"]["kernel"][:, 0])
        query = query + params["query"]["bias"][0]
        key, value = (
            np.einsum("nd,dphc->pnhc", tokens, params["key_value"]["kernel"])
            + (params["key_value"]["bias"][:, None])
        )
        mixed = np.stack(
            [
                softmax(key[:, head] @ query[head] / np.sqrt(WIDTH // HEADS)) @ value[:, head]
                for head in range(HEADS)
            ]
        )
        result = np.einsum("hc,hcd->d", mixed, params["out"]["kernel"]) + params["out"]["bias"]
        return result + mlp(layer_norm(result, params["norm"]), params["mlp"])

    np.testing.assert_allclose(call(layer, x), np.stack([pooled(image) for image in x]), atol=1e-5)
