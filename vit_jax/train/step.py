"""The train step: a pure function from (state, batch) to (state, metrics)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import nnx

from vit_jax.data.augment import normalize, random_flip
from vit_jax.train.objectives import Metrics, Objective


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a run carries from step to step. Data order and noise derive from `step`."""

    step: jax.Array  # int32 scalar: updates made so far
    params: Any
    opt_state: Any


TrainStep = Callable[[TrainState, dict[str, jax.Array]], tuple[TrainState, Metrics]]


def make_train_step(
    graphdef: nnx.GraphDef,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    seed: int,
    flip: bool,
) -> TrainStep:
    """Flip, normalise, forward, backward, update."""

    def train_step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, Metrics]:
        # Randomness is a function of (seed, step), so a resumed run draws what it would have.
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        flip_key, noise_key = jax.random.split(key)
        images = random_flip(batch["image"], flip_key) if flip else batch["image"]
        images = normalize(images)

        def loss_fn(params: Any) -> tuple[jax.Array, Metrics]:
            return objective(nnx.merge(graphdef, params), images, batch["label"], noise_key)

        (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": loss,
            **metrics,
            "learning_rate": schedule(state.step),
            "gradient_norm": optax.tree.norm(grads),
        }
        return TrainState(state.step + 1, params, opt_state), metrics

    return train_step
