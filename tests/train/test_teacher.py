"""Distillation: a network learns a teacher's answers, with labels or without them."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.train.small_run import small_config
from vit_jax.errors import UsageError
from vit_jax.models.network import create_model
from vit_jax.train.config import run_config
from vit_jax.train.loop import train
from vit_jax.train.objectives import Teacher, classification
from vit_jax.weights.files import save_npz
from vit_jax.weights.load import load
from vit_jax.weights.run_folder import RunFolder


def networks(size=16):
    """A student and a teacher with heads that say something."""
    for seed, image_size in ((1, 16), (2, size)):
        model = create_model("Pico/8", image_size=image_size, num_classes=10, depth=1, seed=seed)
        kernel = jax.random.normal(jax.random.key(seed), model.head.kernel.shape)
        model.head.kernel[...] = kernel
        yield model


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_loss_is_a_mixture_of_labels_and_divergence(loss, temperature):
    student, teacher = networks()
    images = jax.random.normal(jax.random.key(0), (4, 16, 16, 3))
    targets = jax.nn.one_hot(jnp.arange(4), 10)
    graphdef, frozen = nnx.split(teacher)
    key = jax.random.key(0)
    objective = classification(loss, 0.0, Teacher(graphdef, 0.7, temperature))
    value, metrics = objective(student, images, targets, key, frozen)

    logits, answers = (np.asarray(m(images), np.float64) / temperature for m in (student, teacher))
    if loss == "softmax":
        p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (answers, logits))
        divergence = (p * np.log(p / q)).sum(-1)
    else:
        p, q = (1 / (1 + np.exp(-x)) for x in (answers, logits))
        divergence = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum(-1)
    divergence = temperature**2 * divergence.mean()
    labels, _ = classification(loss)(student, images, targets, key, {})
    assert float(metrics["teacher_divergence"]) == pytest.approx(divergence, rel=1e-4)
    assert float(value) == pytest.approx(0.3 * float(labels) + 0.7 * divergence, rel=1e-4)


def test_nothing_of_the_teacher_moves_and_it_is_its_own_best_student():
    _, teacher = networks()
    graphdef, frozen = nnx.split(teacher)
    images, targets = jax.random.normal(jax.random.key(0), (4, 16, 16, 3)), jnp.zeros((4, 10))
    objective = classification("softmax", 0.0, Teacher(graphdef, 1.0, 2.0))

    def loss(params, frozen):
        model = nnx.merge(graphdef, params)
        return objective(model, images, targets, jax.random.key(0), frozen)[0]

    value, (to_student, to_teacher) = jax.value_and_grad(loss, argnums=(0, 1))(frozen, frozen)
    assert float(value) == pytest.approx(0, abs=1e-5)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(to_student)) < 1e-4
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(to_teacher))


def test_a_run_learns_what_its_teacher_says(tmp_path):
    _, teacher = networks(size=32)  # which sees images at its own resolution
    save_npz(teacher, tmp_path / "teacher.npz")
    config = taught_by(tmp_path / "teacher.npz", total="40 steps", batch_size=32)
    config.mesh.update(replica=2, fsdp=4)
    config.optimizer.update(learning_rate=0.005)
    train(run_config(config), tmp_path / "run")
    divergences = [
        record["train/teacher_divergence"]
        for record in RunFolder(tmp_path / "run").metrics_records()
    ]
    assert np.mean(divergences[-5:]) < 0.5 * divergences[0]
    assert load(tmp_path / "run").config.image_size == (16, 16)


def taught_by(path, **values):
    config = small_config(log_every="1 steps", **values)
    config.model.update(dropout=0.0, stochastic_depth=0.0, position_std=0.3)
    config.teacher.path = str(path)
    return config


def test_a_run_folder_is_a_teacher_as_it_is_when_its_student_begins(trained_run, tmp_path, capsys):
    teacher = tmp_path / "teacher"
    shutil.copytree(trained_run, teacher)
    config = taught_by(teacher, total="2 steps", checkpoint_every="1 steps")
    config.mesh.update(replica=2, fsdp=4)
    train(run_config(config), tmp_path / "student")
    assert f"teacher: {teacher}, step 3" in capsys.readouterr().err
    (tmp_path / "student" / "summary.json").unlink()
    (teacher / "checkpoints" / "3").rename(teacher / "checkpoints" / "4")  # it goes on training
    config.total = "4 steps"
    with pytest.raises(UsageError, match=r"at step 3, which is now at step 4: keep a copy"):
        train(run_config(config), tmp_path / "student")
    (teacher / "checkpoints" / "4").rename(teacher / "checkpoints" / "3")
    assert train(run_config(config), tmp_path / "student")["steps"] == 4
    shutil.rmtree(teacher)
    assert train(run_config(config), tmp_path / "student")["steps"] == 4  # nothing to do


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "no/where"}, "no such file or folder: no/where"),
        ({"path": "x", "weight": 0.0}, r"teacher.weight=0.0: expected more than 0"),
        ({"path": "x", "temperature": -1.0}, r"temperature=-1.0: expected more than 0"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(change, says, tmp_path):
    config = small_config()
    config.teacher.update(change)
    with pytest.raises(UsageError, match=says):
        train(run_config(config), tmp_path)


def test_a_teacher_must_know_the_same_classes(tmp_path):
    save_npz(create_model("Pico/8", image_size=16, num_classes=3, depth=1), tmp_path / "three.npz")
    config = small_config()
    config.teacher.path = str(tmp_path / "three.npz")
    with pytest.raises(UsageError, match="knows 3 classes, digits has 3 and 10"):
        train(run_config(config), tmp_path / "run")
    config = small_config(loss="masked_patch")
    config.teacher.path = str(tmp_path / "three.npz")
    with pytest.raises(UsageError, match="masked_patch has no labels, leave it out"):
        run_config(config)
