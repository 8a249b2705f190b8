"""Labels as arrays: class numbers, padded where an image has several, to targets and back."""

import jax
import jax.numpy as jnp


def multi_hot(labels: jax.Array, num_classes: int) -> jax.Array:
    """[batch] or [batch, k] class numbers -> float32 [batch, class] of 0 and 1; padding is 0."""
    hot = jax.nn.one_hot(labels, num_classes)
    return hot if labels.ndim == 1 else hot.max(axis=1)


def top1_correct(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """1 where the best class is among the image's labels: [batch, class] x 2 -> [batch].

    Of mixed images, the label with the larger weight counts.
    """
    best = jnp.argmax(logits, axis=-1)
    target = jnp.take_along_axis(targets, best[:, None], axis=-1)[:, 0]
    return (target >= jnp.maximum(targets.max(axis=-1), 1e-6)).astype(jnp.float32)
