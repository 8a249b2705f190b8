"""What a network answers, here and in torch."""

import jax
import numpy as np
import torch
from flax import nnx

import vit_jax
from vit_jax.models.network import create_from_config
from vit_jax.models.variants import model_config


def ours(model, images):
    """Logits of uint8 images."""
    return np.asarray(model(images.astype(np.float32) / 127.5 - 1))


def theirs(module, images, mean=0.5, std=0.5):
    """Logits of a torch module for uint8 images, normalised as it wants them."""
    pixels = (images.astype(np.float32) / 255 - np.float32(mean)) / np.float32(std)
    with torch.no_grad():
        answer = module.eval()(torch.from_numpy(pixels.transpose(0, 3, 1, 2)).contiguous())
    return getattr(answer, "logits", answer).numpy()


def assert_same(found, expected, atol):
    assert np.abs(expected).max() > 0.1  # else anything would agree
    np.testing.assert_allclose(found, expected, atol=atol, rtol=0)


def params_of(path):
    return nnx.to_pure_dict(nnx.state(vit_jax.load(path)))


def assert_identical(path, other):
    jax.tree.map(np.testing.assert_array_equal, params_of(path), params_of(other))


def noisy(parameters, seed=0, scale=0.2):
    """Shakes a torch module's parameters, so that no detail hides behind small numbers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter += scale * torch.randn(parameter.shape, generator=generator)


def random_npz(path, name, **options):
    """A file with a network none of whose parameters is 0 or 1."""
    small = {"num_classes": 5, "width": 32, "depth": 2, "mlp_dim": 80, "heads": 4, "image_size": 48}
    model = create_from_config(model_config(name, **small | options))
    graphdef, params = nnx.split(model)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32), params
    )
    vit_jax.save_npz(nnx.merge(graphdef, params), path)
    return path
