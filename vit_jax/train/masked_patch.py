"""Masked patch prediction (appendix B.1.2): learning from images without labels.

Half of the patch embeddings are corrupted; the network predicts from each of these tokens what
its patch looked like: its mean colour, the colours of a 4x4 miniature, or all of its pixels.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, ViTConfig
from vit_jax.models.embedding import patchify
from vit_jax.models.heads import Corruption
from vit_jax.train.objectives import Metrics, Objective

LEVELS = 8  # 3 bits for each channel: 512 colours
MINIATURE = 4

MASKED, SWAPPED = 0.8, 0.1  # shares of the corrupted patches; the others stay as they are

TARGETS = ("mean_colour", "4x4_colours", "pixels")


def masked_patch(target: str, share: float) -> Objective:
    """Predicts `target` of that share of the patches; cross-entropy, or squared error of pixels."""

    def objective(
        model: nnx.Module, images: jax.Array, targets: jax.Array, key: jax.Array, frozen: object
    ) -> tuple[jax.Array, Metrics]:
        del targets, frozen
        corruption_key, noise_key = jax.random.split(key)
        everything = patch_targets(images, model.config.patch_size, target)
        corruption = corrupt(corruption_key, *everything.shape[:2], share)
        wanted = jnp.take_along_axis(everything, corruption.patches[..., None], axis=1)
        outputs = model.predict_patches(images, corruption, noise_key)
        if target == "pixels":
            loss = optax.losses.squared_error(outputs, wanted).mean()
            return loss, {"constant_loss": wanted.var(axis=(0, 1)).mean()}  # of the mean patch
        logits = outputs.reshape(*wanted.shape, -1)
        loss = optax.losses.softmax_cross_entropy_with_integer_labels(logits, wanted).mean()
        frequency = jax.nn.one_hot(wanted, logits.shape[-1]).mean(axis=(0, 1))  # in each cell
        return loss, {
            "accuracy": (logits.argmax(axis=-1) == wanted).mean(),
            # What the best guess without a look at the image would have.
            "constant_loss": jax.scipy.special.entr(frequency).sum(axis=-1).mean(),
            "constant_accuracy": frequency.max(axis=-1).mean(),
        }

    return objective


def patch_outputs(target: str, network: NetworkConfig) -> int:
    """How many numbers a network predicts for each patch."""
    if target not in TARGETS:
        raise UsageError(f"config.masked.target={target!r}: expected one of {', '.join(TARGETS)}")
    if not isinstance(network, ViTConfig) or network.stem_stages is not None:
        raise UsageError(
            f"loss=masked_patch needs patches that do not see each other before the encoder: "
            f"{network.name} has none, use a plain or axial ViT"
        )
    if network.pooling == "map" or network.representation_size:
        raise UsageError(
            "loss=masked_patch trains no head and nothing before it: use model.pooling=gap (or "
            "token) and no model.representation_size"
        )
    height, width = network.patch_size
    if target == "pixels":
        return height * width * network.channels
    colours = LEVELS**network.channels
    if target == "mean_colour":
        return colours
    if height % MINIATURE or width % MINIATURE:
        raise UsageError(
            f"config.masked.target=4x4_colours: a patch of {height}x{width} pixels does not divide "
            f"into 4x4; use mean_colour"
        )
    return MINIATURE**2 * colours


def corrupt(key: jax.Array, batch: int, patches: int, share: float) -> Corruption:
    """Draws which patches of each image are corrupted, always as many, and how."""
    order_key, kind_key, other_key = jax.random.split(key, 3)
    count = max(1, round(share * patches))
    order = jax.random.uniform(order_key, (batch, patches)).argsort(axis=-1)
    is_corrupted = order.argsort(axis=-1) < count  # a patch's rank in that order
    kind = jax.random.uniform(kind_key, (batch, patches))
    is_swapped = is_corrupted & (kind >= MASKED) & (kind < MASKED + SWAPPED)
    own = jnp.arange(patches)
    other = (own + jax.random.randint(other_key, (batch, patches), 1, patches)) % patches
    return Corruption(
        patches=order[:, :count],
        is_masked=is_corrupted & (kind < MASKED),
        source=jnp.where(is_swapped, other, own),
    )


def patch_targets(images: jax.Array, patch_size: tuple[int, int], target: str) -> jax.Array:
    """Images in [-1, 1] -> [batch, patch, value]: numbers of colours, or pixels."""
    patches = patchify(images, patch_size)
    batch, count, height, width, channels = patches.shape
    if target == "pixels":
        return patches.reshape(batch, count, -1)
    side = MINIATURE if target == "4x4_colours" else 1
    cells = patches.reshape(batch, count, side, height // side, side, width // side, channels).mean(
        axis=(3, 5)
    )
    levels = jnp.clip((cells + 1) / 2 * LEVELS, 0, LEVELS - 1).astype(jnp.int32)
    places = LEVELS ** jnp.arange(channels)[::-1]
    return (levels * places).sum(axis=-1).reshape(batch, count, side**2)
