"""What a network is trained for: a model and a batch -> loss and metrics, all float32 scalars."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from vit_jax.data.labels import top1_correct
from vit_jax.errors import UsageError

Metrics = dict[str, jax.Array]
# (model, images in [-1, 1], targets [batch, class], key) -> (loss, metrics)
Objective = Callable[[nnx.Module, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Metrics]]


def classification(loss: str, label_smoothing: float = 0.0) -> Objective:
    """Cross-entropy by `loss`: softmax for one label per image, sigmoid for several."""
    losses = {"softmax": softmax_loss, "sigmoid": sigmoid_loss}
    if loss not in losses:
        raise UsageError(f"loss={loss!r}: expected one of {', '.join(losses)}")

    def objective(
        model: nnx.Module, images: jax.Array, targets: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        logits = model(images, key)
        smooth = targets * (1 - label_smoothing) + label_smoothing / logits.shape[-1]
        value = losses[loss](logits, smooth).mean()
        return value, {"accuracy": top1_correct(logits, targets).mean()}

    return objective


def softmax_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy with the targets as a distribution: [batch, class] -> [batch]."""
    total = jnp.maximum(targets.sum(axis=-1, keepdims=True), 1e-6)
    return optax.softmax_cross_entropy(logits, targets / total)


def sigmoid_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """One yes-or-no question per class, summed over the classes: [batch, class] -> [batch]."""
    return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)
