"""From a name or a config to a network, and its parameters as a pure function of a key."""

import functools
from typing import Any

import jax
from flax import nnx

from vit_jax.models.config import NetworkConfig, ResNetConfig, ViTConfig
from vit_jax.models.heads import Classifier
from vit_jax.models.resnet import ResNet
from vit_jax.models.variants import model_config
from vit_jax.models.vit import ViT


def create_model(name: str, *, seed: int = 0, **overrides: Any) -> Classifier:
    """A freshly initialised model: `create_model("B/16", image_size=384)(images)` -> logits.

    Any field of its config (models/config.py) can be overridden: num_classes, dtype, ...
    """
    return create_from_config(model_config(name, **overrides), seed)


def create_from_config(config: NetworkConfig, seed: int = 0) -> Classifier:
    """A freshly initialised model of exactly this shape."""
    return nnx.merge(graphdef(config), init_params(config, jax.random.key(seed)))


def graphdef(config: NetworkConfig) -> nnx.GraphDef[Classifier]:
    """The network without its numbers; `nnx.merge(graphdef(config), params)` is the model."""
    return _abstract(config)[0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def init_groups(config: NetworkConfig, key: jax.Array, groups: tuple[str, ...]) -> dict[str, Any]:
    """Fresh parameters of some top-level modules only; the others are never computed."""
    params = init_params(config, key)
    return {group: params[group] for group in groups if group in params}


def abstract_params(config: NetworkConfig) -> dict[str, Any]:
    """Shapes and dtypes of the parameters, without any memory."""
    return _abstract(config)[1]


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: NetworkConfig, key: jax.Array) -> dict[str, Any]:
    """Fresh float32 parameters as a nested dict, a pure function of the key."""
    return nnx.to_pure_dict(nnx.state(_build(config, nnx.Rngs(key))))


def parameter_count(config: NetworkConfig) -> int:
    """Exact number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))


@functools.cache
def _abstract(config: NetworkConfig) -> tuple[nnx.GraphDef[Classifier], dict[str, Any]]:
    definition, state = nnx.split(nnx.eval_shape(lambda: _build(config, nnx.Rngs(0))))
    return definition, nnx.to_pure_dict(state)


def _build(config: NetworkConfig, rngs: nnx.Rngs) -> Classifier:
    if isinstance(config, ViTConfig):
        return ViT(config, rngs=rngs)
    assert isinstance(config, ResNetConfig)  # there are two families
    return ResNet(config, rngs=rngs)
