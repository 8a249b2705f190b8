"""Masked patch prediction: what is corrupted, what is predicted, and that it is learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.train.small_run import small_config
from vit_jax.data.batches import train_batches
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.models.heads import Corruption
from vit_jax.models.network import create_model
from vit_jax.models.variants import model_config
from vit_jax.train.config import evaluator, run_config
from vit_jax.train.loop import train
from vit_jax.train.masked_patch import TARGETS, corrupt, patch_outputs, patch_targets
from vit_jax.train.program import make_program
from vit_jax.train.sharding import make_mesh
from vit_jax.weights.files import save_npz
from vit_jax.weights.run_folder import RunFolder


def test_half_of_the_patches_are_corrupted_in_the_papers_shares():
    corruption = jax.tree.map(np.asarray, corrupt(jax.random.key(0), 512, 196, 0.5))
    assert corruption.patches.shape == (512, 98)
    chosen = np.zeros((512, 196), bool)
    np.put_along_axis(chosen, corruption.patches, True, axis=1)
    assert (chosen.sum(axis=1) == 98).all()  # no patch twice
    own = np.arange(196)
    swapped = corruption.source != own
    assert not (corruption.is_masked & swapped).any()
    assert not ((corruption.is_masked | swapped) & ~chosen).any()
    assert corruption.is_masked[chosen].mean() == pytest.approx(0.8, abs=0.01)
    assert swapped[chosen].mean() == pytest.approx(0.1, abs=0.01)
    # Every place, and every other patch, is as likely as the next.
    assert chosen.mean(axis=0).std() < 0.03
    offsets = (corruption.source - own)[swapped] % 196
    assert offsets.min() == 1 and offsets.max() == 195
    other = corrupt(jax.random.key(1), 512, 196, 0.5)
    assert (np.asarray(other.patches) != corruption.patches).any()


def test_the_mean_colour_has_three_bits_for_each_channel():
    image = np.full((1, 4, 8, 3), -1.0, np.float32)  # two patches of 4x4
    image[0, :, 4:] = (1.0, -0.3, 0.01)  # levels 7, 2, 4
    image[0, :2, 4:, 0] = -1.0  # half black: the mean is in the middle, level 4
    colours = patch_targets(jnp.asarray(image), (4, 4), "mean_colour")
    np.testing.assert_array_equal(colours, [[[0], [4 * 64 + 2 * 8 + 4]]])


def test_a_miniature_has_sixteen_colours_in_raster_order():
    image = np.full((1, 8, 8, 3), -1.0, np.float32)
    image[0, 0:2, 6:8] = 1.0  # the last cell of the first row
    image[0, 2:4, 0:1] = (1.0, -1.0, -1.0)  # half of the first cell of the second row, red
    colours = patch_targets(jnp.asarray(image), (8, 8), "4x4_colours")
    expected = np.zeros(16, int)
    expected[3], expected[4] = 511, 4 * 64
    np.testing.assert_array_equal(colours[0, 0], expected)


def test_pixels_are_those_of_the_patch():
    image = np.arange(2 * 4 * 4 * 3, dtype=np.float32).reshape(2, 4, 4, 3)
    pixels = patch_targets(jnp.asarray(image), (2, 2), "pixels")
    assert pixels.shape == (2, 4, 12)
    np.testing.assert_array_equal(pixels[1, 3].reshape(2, 2, 3), image[1, 2:, 2:])


@pytest.mark.parametrize("options", [{"pooling": "token", "registers": 2}, {"pooling": "gap"}])
def test_corrupted_tokens_are_replaced_before_the_encoder(options):
    model = create_model(
        "Pico/8",
        image_size=16,
        num_classes=0,
        patch_outputs=5,
        depth=1,
        positions="none",
        **options,
    )
    model.prediction.out.kernel[...] = jax.random.normal(jax.random.key(1), (128, 5))
    images = jax.random.normal(jax.random.key(0), (1, 16, 16, 3))

    def predict(images, masked=(), swapped=(), predicted=(0, 1, 2, 3)):
        source = np.arange(4)
        for place, other in swapped:
            source[place] = other
        corruption = Corruption(
            np.asarray([predicted]), np.isin(np.arange(4), masked)[None], source[None]
        )
        return np.asarray(model.predict_patches(images, corruption))

    intact = predict(images)
    assert not np.allclose(predict(images, masked=[2])[0, 2], intact[0, 2], atol=1e-3)
    # What is under a mask cannot be seen.
    other = images.at[:, 8:, :8].set(0.0)  # patch 2
    assert not np.allclose(predict(other), intact, atol=1e-3)
    np.testing.assert_allclose(predict(other, masked=[2]), predict(images, masked=[2]), atol=1e-5)
    # Without positions a swapped token is its source's twin.
    twins = predict(images, swapped=[(1, 3)])
    np.testing.assert_allclose(twins[0, 1], twins[0, 3], atol=1e-5)
    # Only what was asked for is predicted, in that order.
    np.testing.assert_allclose(predict(images, predicted=(3, 0)), intact[:, [3, 0]], rtol=1e-5)


def test_how_many_numbers_are_predicted():
    network = model_config("B/16", num_classes=0)
    assert [patch_outputs(t, network) for t in TARGETS] == [512, 16 * 512, 16 * 16 * 3]


@pytest.mark.parametrize(
    ("target", "model", "says"),
    [
        ("color", {}, "expected one of mean_colour"),
        ("4x4_colours", {"name": "B/14", "pooling": "gap"}, "14x14 pixels does not divide"),
        ("mean_colour", {"name": "BiT-R50x1"}, "BiT-R50x1 has none"),
        ("mean_colour", {"name": "R50+B/16"}, "do not see each other before the encoder"),
        ("mean_colour", {"pooling": "map"}, "use model.pooling=gap"),
        ("mean_colour", {"representation_size": 8}, "trains no head and nothing before it"),
    ],
)
def test_what_cannot_be_predicted_is_refused(target, model, says):
    network = model_config(**({"name": "B/16", "num_classes": 0} | model))
    with pytest.raises(UsageError, match=says):
        patch_outputs(target, network)


def masked_config(target, **values):
    config = small_config(loss="masked_patch", **values)
    config.masked.target = target
    config.model.update(pooling="gap", position_std=0.3, depth=1)
    config.model.update(dropout=0.0, stochastic_depth=0.0)
    config.data.update(name="glyphs", crop="resize", flip=False)
    config.optimizer.update(learning_rate=3e-3, weight_decay=0.0)
    return config


@pytest.mark.parametrize("target", TARGETS)
def test_it_is_learned_beyond_the_best_constant_guess(target):
    config = masked_config(target, total="200 steps")
    config.optimizer.learning_rate = 1e-2
    run, source = run_config(config), open_source("glyphs", "train", 16)
    program = make_program(run, source, make_mesh(run.mesh, jax.devices()[:1]))
    # The same few images again and again, each time with other patches missing.
    batches = train_batches(source, batch_size=16, image_size=(16, 16), seed=0)
    batches = [{key: batches[n][key] for key in program.batch} for n in range(2)]
    state, records = program.init(jax.random.key(0)), []
    for step in range(program.total_steps):
        state, metrics = program.step(state, batches[step % 2], {})
        records.append(metrics)
    loss, constant = (
        np.mean([record[key] for record in records[-10:]]) for key in ("loss", "constant_loss")
    )
    assert loss < 0.9 * constant


def test_a_whole_run_and_what_becomes_of_its_weights(tmp_path):
    config = masked_config("mean_colour", total="3 steps")
    config.evaluators.digits = evaluator("digits", kind="fewshot", every="100%")
    summary = train(run_config(config), tmp_path)
    assert summary["metrics"]["digits/25_shot"] > 0.1
    network = RunFolder(tmp_path).network()
    assert (network.num_classes, network.patch_outputs) == (0, 512)
    model = vit_jax.load(tmp_path)
    save_npz(model, tmp_path / "weights.npz")
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype(np.float32)
    again = vit_jax.load(tmp_path / "weights.npz")
    np.testing.assert_array_equal(again.features(images), model.features(images))
    assert again.config.patch_outputs == 512
    tuned = vit_jax.load(tmp_path, num_classes=10, patch_outputs=0)
    np.testing.assert_array_equal(tuned.features(images), model.features(images))
    assert tuned(images).shape == (2, 10) and not hasattr(tuned, "prediction")
