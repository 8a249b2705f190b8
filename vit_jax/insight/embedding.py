"""What a network knows of patches, as numbers: filters, positions, and features as colours."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models.config import ViTConfig
from vit_jax.models.convolution import standardized
from vit_jax.models.heads import Classifier

COMPONENTS = 28  # as many as Fig. 7 shows


def filters(model: Classifier) -> np.ndarray:
    """Principal components of the filters that see pixels, [component, h, w, 3] in [0, 1] (Fig. 7).

    Those of the patch embedding; behind a ResNet, of its root convolution.
    """
    kernel = np.asarray(_kernel(model), np.float64)
    height, width, channels, count = kernel.shape
    centred = kernel.reshape(-1, count) - kernel.reshape(-1, count).mean(axis=1, keepdims=True)
    components = np.linalg.svd(centred, full_matrices=False)[0].T[:COMPONENTS]
    # The sign of a component means nothing: that of its largest weight is made positive.
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    scaled = 0.5 + 0.5 * components / largest[:, None]
    pictures = scaled.reshape(-1, height, width, channels)
    if channels == 3:
        return pictures
    return np.repeat(pictures.mean(axis=-1, keepdims=True), 3, axis=-1)


def position_similarity(model: Classifier) -> np.ndarray | None:
    """Cosines [row, column, row, column]: of each patch's position with all others (Fig. 7).

    The class token has no part in it. None where nothing is added to patches that says where they
    are. Where every layer adds its own, the first layer's.
    """
    config = model.config
    if not isinstance(config, ViTConfig) or config.positions in ("none", "relative"):
        return None
    if config.positions_at == "stem":
        table = model.embedding.positions()
    elif config.positions_at == "shared":
        table = model.encoder.positions()
    else:
        graphdef, params = nnx.split(model.encoder.layer_positions)
        first = nnx.merge(graphdef, nnx.map(lambda _, leaf: leaf[0], params))
        table = first()
    patches = np.asarray(table[0, int(config.pooling == "token") :], np.float64)
    return cosines(patches).reshape(*config.grid, *config.grid)


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Of all pairs."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(length, 1e-30)
    return unit @ unit.T


def as_colours(tokens: np.ndarray) -> np.ndarray:
    """[image, patch, width] -> [image, patch, 3] in [0, 1]: three principal components as RGB.

    Of all images together, so that a colour means the same in each.
    """
    flat = tokens.reshape(-1, tokens.shape[-1])
    flat = flat - flat.mean(axis=0)
    parts = (flat @ np.linalg.svd(flat, full_matrices=False)[2][:3].T).T
    low, high = np.percentile(parts, (2, 98), axis=1)
    scaled = (parts - low[:, None]) / np.maximum(high - low, 1e-12)[:, None]
    padded = np.concatenate([scaled, np.full((3 - len(scaled), scaled.shape[1]), 0.5)])
    return np.clip(padded, 0, 1).T.reshape(*tokens.shape[:2], 3)


def _kernel(model: Classifier) -> jnp.ndarray:
    """[h, w, channel, filter]."""
    if not isinstance(model.config, ViTConfig):
        root = model.trunk.root_conv
    elif model.config.stem_stages is None:
        return model.embedding.patches.kernel[...]
    else:
        root = model.embedding.stem.root_conv
    return standardized(root.kernel[...], root.flavour)
