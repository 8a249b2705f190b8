"""npz files: written and read again, in every dialect, for every family; and broken ones."""

import pickle
import zipfile

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.reference import bit_logits, vit_logits
from vit_jax.errors import UsageError
from vit_jax.models.config import NOT_IN_WEIGHTS, differences
from vit_jax.models.network import create_from_config
from vit_jax.models.variants import model_config
from vit_jax.weights.dialects import DIALECTS, Dialect
from vit_jax.weights.files import NOTE, save_npz
from vit_jax.weights.load import read_weights

SMALL = {
    "image_size": 32, "num_classes": 5, "width": 32, "depth": 2, "mlp_dim": 64, "heads": 4,
}  # fmt: skip
PLAIN = {
    "token": ("B/8", SMALL),
    "pre_logits": ("B/8", SMALL | {"representation_size": 24}),
    "gap": ("B/8", SMALL | {"pooling": "gap"}),
    "headless": ("B/8", SMALL | {"num_classes": 0}),
    "hybrid": ("R50+B/16", SMALL | {"stem_stages": (2, 1), "stem_width": 32}),
    "root_only": ("R+Ti/16", SMALL | {"stem_width": 32, "image_size": 64}),
    "grey": ("B/8", SMALL | {"channels": 1}),
}
OTHERS = {
    "map": ("B/8", SMALL | {"pooling": "map"}),
    "sincos": ("B/16", SMALL | {"pooling": "gap", "positions": "sincos2d", "image_size": 224}),
    "not_square": ("B/8", SMALL | {"image_size": (32, 48)}),
    "no_positions": ("B/8", SMALL | {"positions": "none"}),
    "two_d": ("B/8", SMALL | {"positions": "2d", "positions_at": "every_layer"}),
    "relative": ("B/8", SMALL | {"positions": "relative", "registers": 2, "qk_norm": True}),
    "axial": ("Axial-B/8", SMALL | {"layer_scale": 0.1}),
    "bit": ("BiT-R50x1", {"stages": (2, 1), "width": 32, "image_size": 224, "num_classes": 5}),
    "axial_resnet": (
        "AxialResNet26",
        {"stages": (2, 1), "width": 32, "heads": 4, "image_size": 32, "num_classes": 5},
    ),
}


def random_model(which):
    """A model none of whose parameters is zero or one, as fresh ones are."""
    name, options = (PLAIN | OTHERS)[which]
    model = create_from_config(model_config(name, **options))
    graphdef, params = nnx.split(model)
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    noisy = [leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]
    return nnx.merge(graphdef, jax.tree.unflatten(tree, noisy))


def images_for(model):
    shape = (2, *model.config.image_size, model.config.channels)
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def arrays_in(path):
    """As another program sees the file, which has no use for the note."""
    with np.load(path) as file:
        return {key: file[key] for key in file.files if key != NOTE}


def params_of(model):
    return nnx.to_pure_dict(nnx.state(model))


@pytest.mark.parametrize("which", [*PLAIN, *OTHERS])
def test_what_was_written_is_read_again_bit_by_bit(which, tmp_path):
    model = random_model(which)
    save_npz(model, tmp_path / "model.npz")
    again = vit_jax.load(tmp_path / "model.npz")
    jax.tree.map(np.testing.assert_array_equal, params_of(again), params_of(model))
    assert not differences(again.config, model.config).keys() - NOT_IN_WEIGHTS
    assert again.config.name == model.config.name


@pytest.mark.parametrize("which", [*PLAIN, "map", "bit"])
def test_published_layouts_need_no_note(which, tmp_path):
    save_npz(random_model(which), tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        assert NOTE not in file.files
        assert any(key.startswith(("Transformer/", "resnet/")) for key in file.files)


@pytest.mark.parametrize("which", [w for w in PLAIN if w not in ("headless", "grey")])
def test_logits_equal_an_independent_forward_pass(which, tmp_path):
    model = random_model(which)
    save_npz(model, tmp_path / "model.npz")
    images = images_for(model)
    expected = vit_logits(arrays_in(tmp_path / "model.npz"), images)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(model(images), expected, atol=1e-5)


@pytest.mark.parametrize("size", [64, 61])
def test_bit_logits_equal_an_independent_forward_pass(size, tmp_path):
    options = {"stages": (2, 1, 1), "width": 32, "image_size": size, "num_classes": 5}
    model = create_from_config(model_config("BiT-R50x1", **options))
    model.head.kernel[...] = jax.random.normal(jax.random.key(1), model.head.kernel.shape) / 10
    save_npz(model, tmp_path / "model.npz")
    images = images_for(model)
    expected = bit_logits(arrays_in(tmp_path / "model.npz"), images)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(model(images), expected, atol=1e-5)


DIALECT_CASES = {
    **DIALECTS,
    "params": Dialect(prefix="params/"),
    "opt_target": Dialect(prefix="opt/target/", newer_counters=True),
    "two_towers": Dialect(prefix="params/img/", stacked=True),
    "squeezed": Dialect(squeezed_norms=True),
}


@pytest.mark.parametrize("which", ["token", "hybrid", "map"])
@pytest.mark.parametrize("name", DIALECT_CASES)
def test_every_dialect_is_written_and_read(which, name, tmp_path):
    model = random_model(which)
    save_npz(model, tmp_path / "model.npz", DIALECT_CASES[name])
    again = vit_jax.load(tmp_path / "model.npz")
    assert again.config.pooling == model.config.pooling
    images = images_for(model)
    np.testing.assert_allclose(again(images), model(images), atol=2e-6)
    if not DIALECT_CASES[name].folded_class_token:
        jax.tree.map(np.testing.assert_array_equal, params_of(again), params_of(model))


def test_dialects_differ_as_their_names_say(tmp_path):
    model = random_model("hybrid")

    def keys(name):
        save_npz(model, tmp_path / f"{name}.npz", DIALECT_CASES[name])
        with np.load(tmp_path / f"{name}.npz") as file:
            return {key: file[key].shape for key in file.files}

    published, stacked, prefixed = (
        keys(name) for name in ("published", "big_vision_stacked", "opt_target")
    )
    block = "Transformer/encoderblock"
    assert published["gn_root/scale"] == (1, 1, 1, 32)
    assert f"{block}_0/MultiHeadDotProductAttention_1/out/kernel" in published
    assert stacked["gn_root/scale"] == (32,) and stacked["pos_embedding"] == (1, 16, 32)
    assert stacked[f"{block}/LayerNorm_1/scale"] == (2, 32)
    assert f"opt/target/{block}_1/MlpBlock_0/Dense_0/kernel" in prefixed


def test_bfloat16_is_stored_as_void_and_read_exactly(tmp_path):
    model = random_model("token")
    save_npz(model, tmp_path / "model.npz", Dialect(bfloat16=True))
    with np.load(tmp_path / "model.npz") as file:
        assert file["cls"].dtype == np.dtype("V2")
    again = vit_jax.load(tmp_path / "model.npz")
    rounded = jax.tree.map(
        lambda leaf: np.asarray(leaf).astype(ml_dtypes.bfloat16).astype(np.float32),
        params_of(model),
    )
    jax.tree.map(np.testing.assert_array_equal, params_of(again), rounded)


def test_what_is_no_part_of_the_network_is_named(tmp_path):
    save_npz(random_model("token"), tmp_path / "model.npz", Dialect(prefix="params/img/"))
    arrays = dict(np.load(tmp_path / "model.npz"))
    np.savez(tmp_path / "more.npz", **arrays, **{"params/t": np.ones(1), "opt/count": np.ones(1)})
    stored = read_weights(tmp_path / "more.npz")
    assert set(stored.unused) == {"params/t", "opt/count"}


def test_a_grid_that_is_no_square_is_asked_for(tmp_path):
    save_npz(random_model("not_square"), tmp_path / "model.npz")
    np.savez(tmp_path / "foreign.npz", **arrays_in(tmp_path / "model.npz"))
    with pytest.raises(UsageError, match=r"24 patches, which are no square: say its own"):
        vit_jax.load(tmp_path / "foreign.npz", image_size=64)
    sizes = {"file_image_size": (32, 48), "image_size": 64}
    assert vit_jax.load(tmp_path / "foreign.npz", **sizes).config.grid == (8, 8)


def test_what_a_file_holds_besides_is_warned_of(good_file, tmp_path, caplog):
    np.savez(tmp_path / "more.npz", **np.load(good_file), gamma=np.ones(3))
    vit_jax.load(tmp_path / "more.npz")
    assert "left out gamma" in caplog.text and caplog.records[0].levelname == "WARNING"


@pytest.fixture(scope="module")
def good_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("npz") / "good.npz"
    save_npz(random_model("token"), path)
    return path


def broken_files(path, folder):
    """(file, what is said of it)"""
    content = path.read_bytes()
    for part in (0, 100, len(content) // 2, len(content) - 10):
        cut = folder / f"cut{part}.npz"
        cut.write_bytes(content[:part])
        yield cut, "is no complete npz"
    flipped = folder / "flipped.npz"
    middle = content.index(b"\x93NUMPY") + 5000
    flipped.write_bytes(content[:middle] + b"\x00\x01\x02\x03" + content[middle + 4 :])
    yield flipped, "Bad CRC-32"
    (folder / "pickle.npz").write_bytes(pickle.dumps({"cls": 1}))
    yield folder / "pickle.npz", "pickled Python objects"
    np.savez(folder / "objects.npz", cls=np.asarray([{}], dtype=object))
    yield folder / "objects.npz", "pickled Python objects"
    np.save(folder / "one.npy", np.zeros(3))
    yield folder / "one.npy", "is one array"
    (folder / "text.npz").write_text("<html>not found</html>")
    yield folder / "text.npz", "does not start as one"
    np.savez(folder / "foreign.npz", conv1=np.zeros(3), fc=np.zeros(4))
    yield folder / "foreign.npz", "holds no network known here: expected embedding/kernel"
    np.savez(folder / "empty.npz")
    yield folder / "empty.npz", "holds no network known here"
    np.savez(folder / "flat.npz", **{"embedding/kernel": np.zeros((4, 4))})
    yield folder / "flat.npz", "expected embedding/kernel of 4 axes, not of shape (4, 4)"
    with zipfile.ZipFile(folder / "model.pth", "w") as archive:
        archive.writestr("model/data.pkl", b"\x80")
    yield folder / "model.pth", "a PyTorch file"
    for key, value, says in (
        ("Transformer/posembed_input/pos_embedding", np.zeros(4), "of 3 axes"),
        ("head/kernel", np.zeros(()), "of 2 axes"),
        ("head/bias", np.asarray(["a"] * 5), "expected real numbers"),
        ("head/bias", np.ones(5, complex), "expected real numbers"),
        (NOTE, np.asarray("{"), "does not understand"),
        (NOTE, np.asarray('{"layout": "native", "network": {"family": "rnn"}}'), "rnn"),
    ):
        changed = folder / f"changed{len(list(folder.iterdir()))}.npz"
        np.savez(changed, **{**dict(np.load(path)), key: value})
        yield changed, says


def test_broken_files_get_one_clear_line(good_file, tmp_path):
    for path, says in broken_files(good_file, tmp_path):
        with pytest.raises(UsageError) as error:
            vit_jax.load(path)
        assert says in str(error.value), path
        assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_all_that_is_missing_or_misshapen_is_listed_at_once(good_file, tmp_path):
    arrays = dict(np.load(good_file))
    del arrays["Transformer/encoderblock_0/LayerNorm_2/bias"]
    del arrays["embedding/bias"]
    arrays["Transformer/encoder_norm/scale"] = np.zeros(7, np.float32)
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(UsageError) as error:
        vit_jax.load(tmp_path / "bad.npz")
    for says in (
        "encoderblock_0/LayerNorm_2/bias (32,) is missing",
        "embedding/bias (32,) is missing",
        "Transformer/encoder_norm/scale has shape (7,), expected (32,)",
    ):
        assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_failed_write_leaves_the_old_file(good_file, tmp_path, monkeypatch):
    target = tmp_path / "model.npz"
    target.write_bytes(good_file.read_bytes())

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(UsageError, match="no space"):
        save_npz(random_model("token"), target)
    assert target.read_bytes() == good_file.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


def test_networks_without_a_published_layout_have_no_dialects(tmp_path):
    with pytest.raises(UsageError, match="written in one way only"):
        save_npz(random_model("axial"), tmp_path / "model.npz", "big_vision")
    with pytest.raises(UsageError, match="Did you mean big_vision"):
        save_npz(random_model("token"), tmp_path / "model.npz", "bigvision")
