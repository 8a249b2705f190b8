"""Accuracy on a whole split."""

import re

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import vit_jax
from vit_jax.data.augment import normalize
from vit_jax.data.crop import resize
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluate.classification import Classification, _answers, check_classes
from vit_jax.evaluate.placement import on_mesh_of
from vit_jax.models.network import create_model
from vit_jax.train.config import MeshConfig
from vit_jax.train.sharding import batch_sharding, make_mesh, param_shardings


def test_every_example_of_the_split_counts_once():
    model = vit_jax.create_model("Pico/8", image_size=16, num_classes=10, pooling="gap")
    model.head.kernel[...] = jax.random.normal(jax.random.key(0), model.head.kernel.shape)
    source = open_source("digits", "test", 16)
    images = np.stack([resize(source[i]["image"], (16, 16)) for i in range(len(source))])
    labels = np.array([source[i]["label"] for i in range(len(source))])
    logits = model(normalize(images))
    accuracy = np.mean(np.argmax(logits, axis=-1) == labels)
    loss = -np.mean(jax.nn.log_softmax(logits)[np.arange(len(labels)), labels])

    # 500 examples in batches of 96: the last one is partly padding.
    results = Classification(source, batch_size=96)(model)
    np.testing.assert_allclose([results["accuracy"], results["loss"]], [accuracy, loss], rtol=1e-5)

    mesh = Mesh(jax.devices(), "d")
    graphdef, params = nnx.split(model)
    everywhere = nnx.merge(graphdef, jax.device_put(params, NamedSharding(mesh, P())))
    sharded = Classification(source, 96, NamedSharding(mesh, P("d")))(everywhere)
    for key, value in results.items():
        np.testing.assert_allclose(sharded[key], value, rtol=1e-5)


def test_fsdp_gathers_parameters_and_not_the_batch():
    mesh = make_mesh(MeshConfig(replica=1, fsdp=8))
    model = create_model("Pico/8", image_size=16, num_classes=10, depth=1)
    graphdef, params = nnx.split(model)
    shardings = param_shardings(nnx.to_pure_dict(params), mesh)
    params = jax.device_put(nnx.to_pure_dict(params), shardings)
    sharding = batch_sharding(mesh, 64)
    batch = {
        "image": np.zeros((64, 16, 16, 3), np.uint8),
        "label": np.zeros(64, np.int32),
        "mask": np.ones(64, np.float32),
    }
    batch = jax.device_put(batch, sharding)
    with on_mesh_of(sharding):
        program = _answers.jitted().lower(graphdef, params, batch).compile().as_text()
    moved = re.findall(r"= (.*) all-(?:reduce|gather)(?:-start)?\(", program)
    assert moved and not [shapes for shapes in moved if "[64," in shapes]


def test_the_same_classes_in_another_order_are_a_mistake():
    digits = open_source("digits", "test", 16)
    check_classes(digits, 10, digits.class_names)
    check_classes(digits, 10, [f"digit {name}" for name in digits.class_names])  # other names
    swapped = ["1", "0", *digits.class_names[2:]]
    with pytest.raises(UsageError, match="number 0 is '0' there and '1' here"):
        check_classes(digits, 10, swapped)
