"""What a network attends to, as numbers: how far, to which patches, along which lines.

Every pass holds the weights of one layer at a time (ViT.watched). Images are uint8.
"""

import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.data.augment import normalize
from vit_jax.models.attention import AxialWeights
from vit_jax.models.config import ViTConfig
from vit_jax.models.resnet import ResNet
from vit_jax.models.stack import See
from vit_jax.models.vit import ViT

Attentive = ViT | ResNet  # of the ResNets, those with axial attention

ROWS, COLUMNS = "along rows", "along columns"
_MOST_BYTES = 2**28  # of one layer's weights
_MOST_IMAGES = 32  # at a time


class Looks(NamedTuple):
    """What became of each image."""

    tokens: np.ndarray  # [image, patch, width], encoded
    rollout: np.ndarray  # [image, row, column]
    heads: np.ndarray  # of the last layer [image, head, row, column]


def distances(model: Attentive, images: np.ndarray) -> Mapping[str, np.ndarray]:
    """Mean attention distance [layer, head] in pixels of the input (Fig. 7, appendix D.7).

    The distance between the centres of two patches, weighted by attention, over all patches that
    ask and all images. Patches only: what the class token and registers get is left out and the
    rest is brought back to a sum of 1. Of axial networks one array for each direction.
    """
    config = model.config
    height, width = config.image_size

    def see(seen: None, weights: Any) -> tuple[None, dict[str, jax.Array]]:
        if isinstance(weights, AxialWeights):
            along = zip((ROWS, COLUMNS), weights, (width, height), strict=True)
            return None, {name: mean_distance(w, _on_line(w, side)) for name, w, side in along}
        patches = weights[..., _patches(config), _patches(config)]
        pitch = height / config.grid[0], width / config.grid[1]
        return None, {"": mean_distance(patches, grid_distances(config.grid, pitch))}

    layers = _mean_of_layers(model, images, see)
    return {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}


def mean_distance(weights: jax.Array, apart: jax.Array) -> jax.Array:
    """[..., head, query, key] and the distance [query, key] -> that of each head."""
    weights = weights / jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    each = jnp.einsum("...hqk,qk->...h", weights, apart) / len(apart)
    return each.reshape(-1, each.shape[-1]).mean(axis=0)


def grid_distances(grid: tuple[int, int], pitch: tuple[float, float]) -> jax.Array:
    """Between all patches, in raster order [patch, patch]; `pitch` is from one to the next."""
    rows, columns = (line_distances(*side) for side in zip(grid, pitch, strict=True))
    apart = jnp.hypot(rows[:, None, :, None], columns[None, :, None, :])
    return apart.reshape(grid[0] * grid[1], -1)


def line_distances(count: int, pitch: float) -> jax.Array:
    """Between places on a line."""
    places = pitch * jnp.arange(count)
    return jnp.abs(places[:, None] - places)


def _on_line(weights: jax.Array, pixels: int) -> jax.Array:
    count = weights.shape[-1]
    return line_distances(count, pixels / count)


def looks(model: ViT, images: np.ndarray) -> Looks:
    """Encoded patches, attention rollout (appendix D.8), and where heads of the last layer look.

    Rollout after Abnar & Zuidema (2020): heads averaged, half of each layer the identity that the
    residual connection is, rows normalised, multiplied from the first layer to the last. Of a
    network with a class token its row; of others the mean over the patches, which is what is
    pooled. Heads likewise: what the class token looks at, or the patches on average.
    """
    config = model.config
    rows, columns = config.grid

    def see(seen: tuple[jax.Array, jax.Array], weights: Any) -> tuple[Any, None]:
        product = seen[0]
        for part in _over_tokens(weights, config):
            product = residual(part) @ product
        return (product, _asked(jnp.concatenate(_each_head(weights, config), axis=1), config)), None

    tokens = config.tokens
    heads = config.heads * (2 if config.axial else 1)
    first = (jnp.eye(tokens), jnp.zeros((heads, rows * columns)))
    found = []
    for part, (encoded, (product, last), _) in _watch(model, images, see, first):
        rollout = _asked(product[:, None], config)
        shape = (len(part), -1, rows, columns)
        patches = encoded[:, _patches(config)].astype(jnp.float32)
        found.append(Looks(patches, rollout.reshape(shape)[:, 0], last.reshape(shape)))
    return Looks(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def residual(weights: jax.Array) -> jax.Array:
    """Attention averaged over heads [..., query, key], and the tokens that pass it by."""
    mixed = 0.5 * weights + 0.5 * jnp.eye(weights.shape[-1])
    return mixed / mixed.sum(axis=-1, keepdims=True)


def lines(model: Attentive, images: np.ndarray) -> list[Mapping[str, np.ndarray]]:
    """Of each layer of an axial network: who attends to whom on a line, [query, key].

    For rows and for columns, averaged over heads, lines and images.
    """

    def see(seen: None, weights: AxialWeights) -> tuple[None, dict[str, jax.Array]]:
        named = zip((ROWS, COLUMNS), weights, strict=True)
        return None, {name: w.mean(axis=(0, 1, 2)) for name, w in named}

    return _mean_of_layers(model, images, see)


def _mean_of_layers(model: Attentive, images: np.ndarray, see: See) -> list[Any]:
    """What `see` keeps of each layer, which is a mean over the images that it is shown."""
    total: list[Any] = []
    for part, (_, _, each) in _watch(model, images, see):
        share = len(part) / len(images)
        weighted = jax.tree.map(functools.partial(np.multiply, share), _by_layer(each))
        total = jax.tree.map(np.add, total, weighted) if total else weighted
    return total


def _by_layer(kept: Any) -> list[Any]:
    """Of layers that are alike it comes in one array, of a ResNet's units in a tuple."""
    if isinstance(kept, tuple):
        return list(kept)
    depth = len(jax.tree.leaves(kept)[0])
    return [jax.tree.map(operator.itemgetter(layer), kept) for layer in range(depth)]


def _watch(
    model: Attentive, images: np.ndarray, see: See, first: Any = None
) -> Iterator[tuple[np.ndarray, Any]]:
    """Some images at a time and what was seen of them; `first` is that of one image."""
    graphdef, params = nnx.split(model)

    @jax.jit
    def watched(params: Any, images: jax.Array) -> Any:
        each = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(images), *x.shape)), first)
        return nnx.merge(graphdef, params).watched(normalize(images), see, each)

    tokens = model.config.tokens if isinstance(model, ViT) else sum(model.config.image_size)
    size = 4 * model.config.heads * tokens**2
    at_a_time = min(_MOST_IMAGES, max(1, _MOST_BYTES // size))
    for start in range(0, len(images), at_a_time):
        part = images[start : start + at_a_time]
        yield part, watched(params, part)


def _patches(config: ViTConfig) -> slice:
    """Those of the tokens that are patches: between the class token and the registers."""
    first = int(config.pooling == "token")
    return slice(first, config.patch_tokens)


def _asked(weights: jax.Array, config: ViTConfig) -> jax.Array:
    """[image, head, query, key] -> [image, head, patch]: what is looked at by what is pooled."""
    patches = _patches(config)
    if config.pooling == "token":
        return weights[:, :, 0, patches]
    return weights[:, :, patches, patches].mean(axis=2)


def _over_tokens(weights: Any, config: ViTConfig) -> list[jax.Array]:
    """Averaged over heads, [image, query, key] over all tokens; of axial blocks two in turn."""
    return [w.mean(axis=1) for w in _each_head(weights, config)]


def _each_head(weights: Any, config: ViTConfig) -> list[jax.Array]:
    """[image, head, query, key] over all tokens, with zeros where there is no line between them."""
    if not isinstance(weights, AxialWeights):
        return [weights]
    rows, columns = (jnp.eye(count) for count in config.grid)
    parts = (
        jnp.einsum("brhck,rs->bhrcsk", weights.along_rows, rows),
        jnp.einsum("bchrk,cd->bhrckd", weights.along_columns, columns),
    )
    tokens = config.grid[0] * config.grid[1]
    return [part.reshape(*part.shape[:2], tokens, tokens) for part in parts]
