"""The train step: a pure function from (state, batch) to (state, metrics)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from vit_jax.data.augment import cutmix, mixup, normalize, random_erasing, random_flip
from vit_jax.data.labels import multi_hot
from vit_jax.data.rand_augment import rand_augment
from vit_jax.models.activations import over_batch
from vit_jax.train.config import RunConfig
from vit_jax.train.learned import joined, split
from vit_jax.train.objectives import Metrics, Objective

Batch = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a run carries from step to step. Data order and noise derive from `step`."""

    step: jax.Array  # int32 scalar: batches seen so far
    params: Any
    opt_state: Any
    average: Any  # of the parameters (Polyak), or an empty dict
    bad_steps: jax.Array  # int32 scalar: steps that were not applied
    bad_in_a_row: jax.Array  # int32 scalar: the latest of them


# (state, batch, what the objective needs besides) -> (state, metrics)
TrainStep = Callable[[TrainState, Batch, Any], tuple[TrainState, Metrics]]


def first_state(
    params: Any, learn: Any, optimizer: optax.GradientTransformation, polyak: float
) -> TrainState:
    """The state before the first step; `learn` says which parameters do."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(split(params, learn)[0]),
        average=jax.tree.map(jnp.copy, params) if polyak else {},
        bad_steps=jnp.zeros((), jnp.int32),
        bad_in_a_row=jnp.zeros((), jnp.int32),
    )


def make_train_step(
    to_model: Callable[[Any], nnx.Module],
    learn: Any,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    config: RunConfig,
    num_classes: int,
    *,
    on_cpu: bool = False,
) -> TrainStep:
    """Augment, forward, backward, update; a bad step is seen, counted, and not applied.

    `to_model` makes a model of parameters; `learn` is a tree like theirs: which of them learn.

    `on_cpu`: updates, parameters and moments each wait for the norm of the ones before. XLA writes
    new values where the old ones lay if nobody reads these later, which here it would not see: it
    copied all parameters and moments first. Moments are computed once for the updates, and once to
    be written, which is less than to keep them until then. (A TPU computes all three while it reads
    them once.)
    """
    norm_of = _norm_by_products if on_cpu else optax.tree.norm
    prepare = functools.partial(prepared, config=config, num_classes=num_classes)

    def train_step(state: TrainState, batch: Batch, frozen: Any) -> tuple[TrainState, Metrics]:
        learned, fixed = split(state.params, learn)

        @functools.partial(jax.value_and_grad, has_aux=True)
        def loss_and_gradient(
            learned: Any, images: jax.Array, targets: jax.Array, key: jax.Array
        ) -> tuple[jax.Array, Metrics]:
            model = to_model(joined(learned, fixed))
            return objective(model, over_batch(images), over_batch(targets), key, frozen)

        # Randomness is a function of (seed, step), so a resumed run draws what it would have.
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        augment_key, noise_key = jax.random.split(key)
        images, targets = prepare(batch, augment_key)
        (loss, metrics), gradient = accumulated(loss_and_gradient, config.accumulation)(
            learned, images, targets, noise_key
        )
        norm = norm_of(gradient)
        is_good = jnp.isfinite(loss) & jnp.isfinite(norm)
        if config.spike_norm:
            is_good &= norm <= config.spike_norm
        updates, opt_state = optimizer.update(gradient, state.opt_state, learned)
        if on_cpu:
            update_norm = norm_of(updates)
            is_good &= jnp.isfinite(update_norm)
        params = joined(optax.apply_updates(learned, updates), fixed)
        params = _either(is_good, params, state.params)
        parameter_norm = norm_of(params)
        if on_cpu:
            is_written = is_good & jnp.isfinite(parameter_norm)
            nothing = jax.tree.map(jnp.zeros_like, state.opt_state)
            before = _either(is_written, state.opt_state, nothing)
            _, opt_state = optimizer.update(gradient, before, learned)
        else:
            is_written, update_norm = is_good, norm_of(optax.tree.sub(params, state.params))
        average = jax.tree.map(
            lambda old, new: old + (1 - config.optimizer.polyak) * (new - old),
            state.average,
            params if config.optimizer.polyak else {},
        )
        bad = (~is_good).astype(jnp.int32)
        new_state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=_either(is_written, opt_state, state.opt_state),
            average=_either(is_good, average, state.average),
            bad_steps=state.bad_steps + bad,
            bad_in_a_row=(state.bad_in_a_row + bad) * bad,
        )
        metrics = {
            "loss": loss,
            **metrics,
            "learning_rate": schedule(state.step - state.bad_steps),  # it counts applied steps
            "gradient_norm": norm,
            "parameter_norm": parameter_norm,
            "update_norm": jnp.where(is_good, update_norm, 0),
            "bad_steps": new_state.bad_steps,
            "bad_in_a_row": new_state.bad_in_a_row,
        }
        return new_state, metrics

    return train_step


def _either(is_new: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda new, old: jnp.where(is_new, new, old), new, old)


def _norm_by_products(tree: Any) -> jax.Array:
    """The norm of a tree on CPUs, which write squares to memory unless a matmul sums them."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)))


def prepared(
    batch: Batch, key: jax.Array, *, config: RunConfig, num_classes: int
) -> tuple[jax.Array, jax.Array]:
    """uint8 images and class numbers -> the network's input, and targets [batch, class]."""
    augment = config.augment
    images, targets = batch["image"], multi_hot(batch["label"], num_classes)
    flip_key, rand_key, mix_key, choice_key, erase_key = jax.random.split(key, 5)
    if config.data.flip:
        images = random_flip(images, flip_key)
    if augment.randaugment_layers:
        images = rand_augment(
            images, rand_key, augment.randaugment_layers, augment.randaugment_magnitude
        )
    images = normalize(images)
    mixes = [
        functools.partial(mix, alpha=alpha)
        for mix, alpha in ((mixup, augment.mixup), (cutmix, augment.cutmix))
        if alpha
    ]
    if mixes:
        chosen = jax.random.randint(choice_key, (), 0, len(mixes))
        images, targets = jax.lax.switch(chosen, mixes, images, targets, mix_key)
    if augment.erasing:
        images = random_erasing(images, erase_key, augment.erasing)
    return images, targets


def accumulated(function: Callable[..., Any], parts: int) -> Callable[..., Any]:
    """`function(params, images, targets, key)` as the mean over so many microbatches.

    Each takes every parts-th row, so that it is spread over the devices as the batch is, and has
    a key of its own.
    """
    if parts == 1:
        return function

    def mean(params: Any, images: jax.Array, targets: jax.Array, key: jax.Array) -> Any:
        def split(x: jax.Array) -> jax.Array:
            return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

        def body(total: Any, part: tuple[jax.Array, ...]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, function(params, *part)), None

        rows = (split(images), split(targets), jax.random.split(key, parts))
        shapes = jax.eval_shape(function, params, *jax.tree.map(lambda x: x[0], rows))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total, _ = jax.lax.scan(body, zeros, rows)
        return jax.tree.map(lambda leaf: leaf / parts, total)

    return mean
