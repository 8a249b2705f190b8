"""Accuracy on a whole split."""

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import vit_jax
from vit_jax.data.augment import normalize
from vit_jax.data.crop import resize
from vit_jax.data.sources import open_source
from vit_jax.evaluate.classification import Classification


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
    np.testing.assert_allclose(sharded["accuracy"], accuracy, rtol=1e-6)
