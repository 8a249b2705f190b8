"""What a network is trained for: a model and a batch -> loss and metrics, all float32 scalars."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.typing import ArrayLike

from vit_jax.data.labels import top1_correct

Metrics = dict[str, jax.Array]
# (model, images in [-1, 1], targets [batch, class], key, frozen) -> (loss, metrics). `frozen` is
# what an objective needs on the devices besides the model: the parameters of a teacher, or nothing.
Objective = Callable[[nnx.Module, jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Metrics]]


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A network whose answers are learned from as well as labels, or instead of them."""

    graphdef: nnx.GraphDef
    weight: float  # of its answers; that of the labels is the rest
    temperature: float


def softmax_loss(logits: jax.Array, targets: jax.Array, weights: ArrayLike = 1.0) -> jax.Array:
    """Cross-entropy with the targets as a distribution: [batch, class] -> [batch].

    `weights` [class]: how much each class counts.
    """
    total = jnp.maximum(targets.sum(axis=-1, keepdims=True), 1e-6)
    return optax.softmax_cross_entropy(logits, weights * targets / total)


def sigmoid_loss(logits: jax.Array, targets: jax.Array, weights: ArrayLike = 1.0) -> jax.Array:
    """One yes-or-no question per class, summed over the classes: [batch, class] -> [batch]."""
    return (weights * optax.sigmoid_binary_cross_entropy(logits, targets)).sum(axis=-1)


# A loss and what turns logits into its targets.
CLASSIFICATION = {
    "softmax": (softmax_loss, jax.nn.softmax),
    "sigmoid": (sigmoid_loss, jax.nn.sigmoid),
}


def classification(
    loss: str,
    label_smoothing: float = 0.0,
    teacher: Teacher | None = None,
    class_weights: np.ndarray | None = None,
) -> Objective:
    """Cross-entropy by `loss`: softmax for one label per image, sigmoid for several."""
    loss_of, to_targets = CLASSIFICATION[loss]
    weights = 1.0 if class_weights is None else class_weights

    def objective(
        model: nnx.Module, images: jax.Array, targets: jax.Array, key: jax.Array, frozen: Any
    ) -> tuple[jax.Array, Metrics]:
        logits = model(images, key)
        smooth = targets * (1 - label_smoothing) + label_smoothing / logits.shape[-1]
        value = loss_of(logits, smooth, weights).mean()
        metrics = {"accuracy": top1_correct(logits, targets).mean()}
        if teacher:
            answers = _answers(nnx.merge(teacher.graphdef, frozen), images)
            soft, soft_answers = logits / teacher.temperature, answers / teacher.temperature
            wanted = to_targets(soft_answers)
            # Cross-entropy less the teacher's own is the divergence; times temperature², so that
            # its gradients are as large as without one (Hinton et al., 2015).
            divergence = (loss_of(soft, wanted) - loss_of(soft_answers, wanted)).mean()
            divergence *= teacher.temperature**2
            value = (1 - teacher.weight) * value + teacher.weight * divergence
            metrics["teacher_divergence"] = divergence
            metrics["teacher_accuracy"] = top1_correct(answers, targets).mean()
        return value, metrics

    return objective


def _answers(teacher: nnx.Module, images: jax.Array) -> jax.Array:
    """Its logits for what the network sees, mixed and cropped alike (Beyer et al., 2021), at its
    own resolution and without noise."""
    shape = (len(images), *teacher.config.image_size, images.shape[-1])
    if images.shape != shape:
        images = jax.image.resize(images, shape, "linear")
    return jax.lax.stop_gradient(teacher(images))
