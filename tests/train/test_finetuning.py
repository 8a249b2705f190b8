"""Ways to fine-tune: parts that stay as they are, LoRA, weighted classes, early ends, sweeps."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.train.small_run import small_config
from tests.weights.test_golden import CASES, TOLERANCE, inputs
from vit_jax.cli import dispatch
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.models.config import differences
from vit_jax.models.network import init_params
from vit_jax.train import loop
from vit_jax.train.class_weights import class_weights
from vit_jax.train.config import MeshConfig, evaluator, run_config
from vit_jax.train.flags import load_config
from vit_jax.train.objectives import classification
from vit_jax.train.program import make_program
from vit_jax.train.progress import Progress
from vit_jax.train.sharding import make_mesh
from vit_jax.train.sweep import final_config, sweep
from vit_jax.weights.layouts import flat
from vit_jax.weights.load import read_weights
from vit_jax.weights.lora import Lora
from vit_jax.weights.run_folder import RunFolder, read_json


def tuned(init, **values):
    """A short run that starts from another one."""
    config = small_config(init=str(init), total="4 steps", **values)
    config.optimizer.update(name="sgd", learning_rate=0.1, weight_decay=0.0, warmup="0 steps")
    return config


def program_of(config):
    run = run_config(config)
    return make_program(run, open_source("digits", "train", 16), make_mesh(run.mesh))


# Parts that stay as they are ------------------------------------------------------------------


def test_a_frozen_backbone_stays_and_costs_no_moments_and_no_gradient(trained_run, tmp_path):
    config = tuned(trained_run)
    config.optimizer.rate_multipliers = {"head/*": 1.0, "*": 0.0}
    loop.train(run_config(config), tmp_path)
    before, after = (flat(read_weights(path).params) for path in (trained_run, tmp_path))
    for path, value in after.items():
        assert np.array_equal(value, before[path]) != path.startswith("head/"), path

    program, everything = program_of(config), program_of(tuned(trained_run))
    moments = sum(leaf.size for leaf in jax.tree.leaves(program.state.opt_state))
    head = sum(leaf.size for leaf in jax.tree.leaves(program.state.params["head"]))
    assert moments == head + 1  # and the count of steps
    flops = [p.lower().cost_analysis()["flops"] for p in (program, everything)]
    assert flops[0] < 0.5 * flops[1]  # a forward pass, where there were three


def test_freezing_everything_is_a_mistake(trained_run):
    config = tuned(trained_run)
    config.optimizer.rate_multipliers = {"*": 0.0}
    with pytest.raises(UsageError, match="freezes every parameter"):
        program_of(config)


# LoRA -----------------------------------------------------------------------------------------


def lora_run(init, **values):
    config = tuned(init, **values)
    config.lora.update(rank=2, alpha=4.0, targets="*/kernel")
    return config


def test_lora_changes_kernels_by_a_low_rank_and_leaves_the_rest(trained_run, tmp_path):
    loop.train(run_config(lora_run(trained_run)), tmp_path)
    before, after = (flat(read_weights(path).params) for path in (trained_run, tmp_path))
    assert before.keys() == after.keys()  # merged: a plain network
    for path, value in after.items():
        change = np.asarray(value) - np.asarray(before[path])
        if path.startswith("head/"):
            continue
        if not (path.startswith("encoder/blocks/") and path.endswith("/kernel")):
            assert not change.any(), path
            continue
        outputs = change.shape[-1] if "/out/" in path else int(np.prod(change.shape[2:]))
        layers = change.reshape(len(change), -1, outputs)
        assert [np.linalg.matrix_rank(layer, tol=1e-6) for layer in layers] == [2] * len(layers)


def test_a_lora_run_resumes_loads_and_converts(trained_run, tmp_path):
    config = lora_run(trained_run, checkpoint_every="2 steps")
    whole = loop.train(run_config(config), tmp_path / "whole")
    config.total = "2 steps"
    config.optimizer.schedule = "constant"
    first = lora_run(trained_run, checkpoint_every="2 steps")
    first.optimizer.schedule = "constant"
    loop.train(run_config(first), tmp_path / "straight")
    loop.train(run_config(config), tmp_path / "resumed")
    config.total = "4 steps"
    loop.train(run_config(config), tmp_path / "resumed")
    straight, resumed = (
        flat(read_weights(tmp_path / name).params) for name in ("straight", "resumed")
    )
    for path, value in straight.items():
        np.testing.assert_array_equal(value, resumed[path])
    npz = tmp_path / "merged.npz"
    assert dispatch(["convert", str(tmp_path / "whole"), str(npz)]) == 0
    images = jax.random.uniform(jax.random.key(0), (2, 16, 16, 3), minval=-1)
    np.testing.assert_allclose(
        vit_jax.load(npz)(images), vit_jax.load(tmp_path / "whole")(images), atol=1e-5
    )
    assert whole["steps"] == 4


def test_factors_that_have_learned_nothing_change_nothing():
    params = init_params(vit_jax.create_model("Pico/8", image_size=16).config, jax.random.key(0))
    lora = Lora(rank=2)
    merged = lora.merged(lora.with_factors(params, jax.random.key(1)))
    for path, value in flat(params).items():
        np.testing.assert_array_equal(value, flat(merged)[path])


def test_lora_on_a_mesh_is_lora_on_one_device(trained_run):
    losses = []
    for devices in (1, 8):
        config = lora_run(trained_run)
        config.mesh.update(replica=devices // 4 or 1, fsdp=2 if devices > 1 else 1)
        config.mesh.tensor = 2 if devices > 1 else 1
        config.model.update(dropout=0.0, stochastic_depth=0.0)
        run = run_config(config)
        source = open_source("digits", "train", 16)
        program = make_program(run, source, make_mesh(run.mesh, jax.devices()[:devices]))
        params = jax.device_get(read_weights(trained_run).params)
        state = program.start_from(params)
        batch = {
            "image": np.full((16, 16, 16, 3), 100, np.uint8),
            "label": np.arange(16, dtype=np.int32) % 10,
        }
        for _ in range(3):
            placed = {k: jax.device_put(batch[k], s.sharding) for k, s in program.batch.items()}
            state, metrics = program.step(state, placed, {})
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"init": ""}, "LoRA changes the trained kernels"),
        ({"targets": "*/kern"}, "matches no kernel of the encoder's blocks"),
    ],
)
def test_lora_where_it_cannot_be(trained_run, values, message):
    config = lora_run(values.get("init", str(trained_run)))
    config.lora.targets = values.get("targets", "*/kernel")
    with pytest.raises(UsageError, match=message):
        program_of(config)


# Weighted classes -----------------------------------------------------------------------------


class Rare:
    """Nine images of the class "common", three of "rare"."""

    name, class_names, num_classes = "rare", ("common", "rare"), 2
    labels = np.array([0] * 9 + [1] * 3, np.int32)


def test_balanced_weights_make_up_for_rarity():
    weights = class_weights("balanced", Rare())
    np.testing.assert_allclose(weights, [12 / 18, 12 / 6])
    assert weights[Rare.labels].mean() == pytest.approx(1)
    np.testing.assert_allclose(class_weights("rare=3", Rare()), [1, 3])
    assert class_weights("", Rare()) is None
    for text, message in (
        ("rae=3", "Did you mean rare"),
        ("rare=x", "no number"),
        ("rare=-1", "0 or more"),
    ):
        with pytest.raises(UsageError, match=message):
            class_weights(text, Rare())


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_weights_multiply_the_loss_of_their_class(loss):
    weights = np.array([0.5, 3.0], np.float32)
    logits = jnp.array([[0.3, -0.2], [1.0, 0.4]])
    targets = jnp.eye(2)
    value, _ = classification(loss, class_weights=weights)(
        lambda images, key: logits, None, targets, None, {}
    )
    if loss == "softmax":
        expected = -(weights * np.diag(jax.nn.log_softmax(logits))).mean()
    else:
        signs = 2 * targets - 1
        expected = -(weights * jax.nn.log_sigmoid(signs * logits)).sum(axis=-1).mean()
    assert float(value) == pytest.approx(float(expected), rel=1e-6)


# The best step, and early ends ----------------------------------------------------------------


def watched(**values):
    config = small_config(total="8 steps", checkpoint_every="100%", checkpoints_kept=1, **values)
    config.evaluators.validation = evaluator("digits", split="train[:64]", every="1 steps")
    config.evaluators.test = evaluator("digits", split="test[:64]", every="100%")
    return config


def scripted(monkeypatch, accuracies):
    """Evaluations that say this, one after the other; what happens with it is real."""
    remaining = iter(accuracies)

    def measure(self, model):
        return {"accuracy": next(remaining) if len(self.source) == 64 else 0.5}

    monkeypatch.setattr("vit_jax.evaluate.classification.Classification.__call__", measure)


def test_the_best_step_is_kept_and_used(monkeypatch, tmp_path):
    scripted(monkeypatch, [0.1, 0.2, 0.6, 0.3, 0.6, 0.5, 0.1, 0.4, 0.0, 0.0, 0.0])
    config = watched(best_by="validation/accuracy")
    summary = loop.train(run_config(config), tmp_path)
    assert (summary["steps"], summary["best"]["step"]) == (8, 3)
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
    assert kept == [3, 8]
    assert RunFolder(tmp_path).best_step() == 3
    best = flat(read_weights(tmp_path).params)
    monkeypatch.setattr(RunFolder, "best_step", lambda self: None)
    last = flat(read_weights(tmp_path).params)
    assert not np.array_equal(best["head/kernel"], last["head/kernel"])


def test_a_run_stops_when_patience_runs_out_and_stays_stopped(monkeypatch, tmp_path, capsys):
    scripted(monkeypatch, [0.1, 0.3, 0.2, 0.3, 0.9, 0.9, 0.9, 0.9])
    config = watched(best_by="validation/accuracy", patience=2)
    summary = loop.train(run_config(config), tmp_path)
    assert summary["steps"] == 4 and summary["best"]["step"] == 2
    assert "test/accuracy" in summary["metrics"]  # due at the end, which came early
    assert "stopping at step 4: validation/accuracy was best at step 2" in capsys.readouterr().err
    assert loop.train(run_config(config), tmp_path) == summary
    assert "finished before, 4 steps" in capsys.readouterr().err


def test_a_metric_that_nobody_measures_is_a_mistake(tmp_path):
    with pytest.raises(UsageError, match="with one of the evaluators test, validation"):
        run_config(watched(best_by="valid/accuracy"))
    with pytest.raises(UsageError, match=r"patience=2 needs --config.best_by"):
        run_config(watched(patience=2))
    with pytest.raises(UsageError, match="expected one of validation/accuracy"):
        loop.train(run_config(watched(best_by="validation/accurasy")), tmp_path)


# Sweeps ---------------------------------------------------------------------------------------


def test_a_sweep_chooses_on_held_out_images_and_trains_on_all(trained_run, tmp_path, capsys):
    flags = [
        "--config=configs/finetune.py:model=Pico/8,data=digits,schedule=tiny",
        f"--workdir={tmp_path}", f"--config.init={trained_run}", "--config.image_size=16",
        "--config.model.dtype=float32", "--config.total=6 steps", "--config.batch_size=16",
        "--config.model.width=48", "--config.model.mlp_dim=96",
        "--config.sweep.rates=0.00001,0.05", "--config.sweep.seeds=2", "--sweep",
    ]  # fmt: skip
    assert dispatch(["train", *flags]) == 0
    result = json.loads((tmp_path / "sweep.json").read_text())
    assert result["learning_rate"] == 0.05 and len(result["tried"]) == 2
    tried, final = (read_json(tmp_path / name / "config.json") for name in ("rate_0.05", "seed_1"))
    assert (tried["data"]["split"], final["data"]["split"]) == ("train[:90%]", "train")
    assert tried["evaluators"]["validation"]["split"] == "train[90%:]"
    assert final["seed"] == 1 and list(final["evaluators"]) == ["test"]
    found = result["results"]["test/accuracy"]
    assert found["mean"] == pytest.approx(np.mean(found["runs"])) and len(found["runs"]) == 2
    capsys.readouterr()
    assert dispatch(["train", *flags]) == 0  # again: all is done
    said = capsys.readouterr()
    assert said.err.count("finished before") == 4 and "0.05                     0." in said.out


def test_a_rate_that_diverges_is_not_chosen(trained_run, tmp_path):
    config = small_config(init=str(trained_run), total="3 steps", bad_steps_allowed=1)
    config.optimizer.update(name="sgd", weight_decay=0.0, warmup="0 steps", schedule="constant")
    config.evaluators.validation = evaluator("digits", split="test[:50]", every="100%")
    config.sweep.update(rates=(0.01, 1e30), seeds=1)
    config.optimizer.clip_norm = 0.0
    result = sweep(run_config(config), tmp_path)
    assert result["tried"]["1e+30"] is None and result["learning_rate"] == 0.01


def test_what_a_sweep_needs(tmp_path):
    config = run_config(watched())
    with pytest.raises(UsageError, match=r"config.sweep.rates is empty"):
        sweep(config, tmp_path)
    rates = dataclasses.replace(config.sweep, rates=(0.1,), metric="held/accuracy")
    with pytest.raises(UsageError, match="needs an evaluator of that name"):
        sweep(dataclasses.replace(config, sweep=rates), tmp_path)
    final = final_config(run_config(watched(best_by="validation/accuracy", patience=1)), 0.5, 7)
    assert (final.best_by, final.patience, list(final.evaluators)) == ("", 0, ["test"])


# The config -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("model=B/16,data=tfds:cifar100", ("10_000 steps", "500 steps", 384, "train[:98%]")),
        ("model=H/14,data=tfds:cifar10:3.*.*", ("10_000 steps", "500 steps", 378, "train[:98%]")),
        ("model=B/32,data=tfds:oxford_iiit_pet", ("500 steps", "100 steps", 384, "train[:90%]")),
        ("model=B/16,data=tfds:imagenet2012", ("20_000 steps", "500 steps", 384, "train[:99%]")),
        ("model=B/16,data=/my/images", ("by size", "10%", 384, "train[:90%]")),
        ("model=B/16,data=/my/images,held_out=0", ("by size", "10%", 384, "train")),
        ("model=B/16,data=vtab:dtd", ("2500 steps", "100 steps", 384, "train800val200")),
        ("model=B/16,data=/x,schedule=tiny", ("20 epochs", "10%", 384, "train[:90%]")),
    ],
)
def test_rows_of_table_4(arguments, expected):
    config = run_config(load_config(f"configs/finetune.py:{arguments}"))
    found = (config.total, config.optimizer.warmup, config.image_size, config.data.split)
    assert found == expected
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.clip_norm) == ("sgd", 0.9, 1.0)
    assert (optimizer.schedule, optimizer.weight_decay) == ("cosine", 0.0)
    assert optimizer.learning_rate in config.sweep.rates


def test_imagenet_has_the_settings_of_table_2():
    for model, size in (("L/16", 512), ("H/14", 518)):
        config = run_config(
            load_config(f"configs/finetune.py:model={model},data=tfds:imagenet2012")
        )
        assert (config.image_size, config.optimizer.polyak) == (size, 0.9999)
        assert config.sweep.rates == (0.003, 0.01, 0.03, 0.06)
        assert config.evaluators["test"].split == "validation"


@pytest.mark.parametrize("images, steps", [(800, 500), (20_000, 10_000), (1_281_167, 20_000)])
def test_steps_follow_from_the_number_of_images(images, steps):
    config = run_config(load_config("configs/finetune.py:data=/my/images"))
    assert loop.total_steps_of(config, range(images)) == steps


@pytest.mark.parametrize(
    "argument", ["held_out=100", "held_out=a tenth", "train=heads", "schedule=short"]
)
def test_arguments_of_the_config_that_mean_nothing(argument):
    with pytest.raises(UsageError, match=argument.split("=")[0]):
        load_config(f"configs/finetune.py:{argument}")


def test_without_a_name_the_network_is_that_of_the_weights(tmp_path):
    vit_jax.save_npz(
        vit_jax.create_model(
            "Axial-Pico/8", image_size=16, num_classes=3, width=64, depth=1, pooling="map",
            positions="2d", representation_size=8,
        ),
        tmp_path / "odd.npz",
    )  # fmt: skip
    init = read_weights(tmp_path / "odd.npz").network
    config = small_config(init="odd.npz", image_size=24)
    config.model.update(name="", width=None, mlp_dim=None, layer_scale=0.1)
    network = loop.make_program(
        run_config(config), open_source("digits", "train", 24), make_mesh(MeshConfig()), init=init
    ).network
    changed = differences(init, network)
    assert changed.keys() == {
        "image_size", "num_classes", "representation_size", "layer_scale", "dropout",
        "stochastic_depth",
    }  # fmt: skip
    config.init = ""
    with pytest.raises(UsageError, match=r"name is empty and there is no config.init"):
        program_of(config)


# The start ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, (_, c) in CASES.items() if "pretrained" in c])
def test_before_its_first_step_fine_tuning_is_the_reference_at_the_new_resolution(name):
    """Positions resized, pre_logits dropped; the head, which starts at zero, is put in by hand."""
    folder, case = CASES[name]
    expected = inputs(name)
    config = small_config(init=str(folder / f"{case['pretrained']}.npz"), image_size=case["size"])
    config.model.update(name="", dropout=0.0, stochastic_depth=0.0)  # the file tells the rest
    run = run_config(config)

    class FiveClasses(Rare):
        class_names, num_classes = tuple("abcde"), 5

        def __len__(self):
            return len(self.labels)

    program = make_program(
        run,
        FiveClasses(),
        make_mesh(run.mesh),
        init=read_weights(folder / f"{case['pretrained']}.npz").network,
    )
    with Progress("", 1, silent=True) as progress:
        state = loop._first_state(run, program, progress)
    assert not np.any(state.params["head"]["kernel"])
    assert case["size"] > CASES[case["pretrained"]][1]["size"]
    params = {**jax.device_get(state.params)}
    params["head"] = {"kernel": expected["head_kernel"], "bias": expected["head_bias"]}
    logits = nnx.merge(program.graphdef, params)(expected["images"])
    np.testing.assert_allclose(logits, expected["logits"], atol=TOLERANCE)
