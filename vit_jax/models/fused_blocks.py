"""The blocks of an encoder, forward and backward written out: matmuls, and parts that are kernels
on TPUs and XLA's on CPUs.

What the backward pass needs is written once, into stacks of all layers, and is read there by
whoever needs it. A scan that JAX differentiates writes it twice: for the next operation, and for
the backward pass. In floating point a step is as everywhere: matmuls in the type of x, norms and
softmax in float32.

Where a classifier reads the class token, the last block computes that one only (`_first_token`):
B/16 then has 8 % fewer multiply-adds, and a twelfth less to keep.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from vit_jax.models import flat_parts, fused_attention, fused_norm
from vit_jax.models.activations import (
    BATCH_AXES,
    BATCH_SPEC,
    batch_devices,
    by_device,
    device_number,
    devices_per_image,
    over_batch,
)
from vit_jax.models.fused_attention import Sizes
from vit_jax.models.kept import Kept, empty_stack
from vit_jax.models.stochastic import drop_path, dropout


class _Parts(NamedTuple):
    """What blocks are made of besides matmuls."""

    normed: Callable[..., Any]
    normed_backward: Callable[..., Any]
    attended: Callable[..., Any]
    attended_backward: Callable[..., Any]
    summed: Callable[[jax.Array], jax.Array]  # over all tokens


_PARTS = {
    "fused": _Parts(
        fused_norm.normed,
        fused_norm.normed_backward,
        fused_attention.attended,
        fused_attention.attended_backward,
        lambda x: x.sum(axis=0),
    ),
    "flat": _Parts(
        flat_parts.normed,
        flat_parts.normed_backward,
        flat_parts.attended,
        flat_parts.attended_backward,
        flat_parts.summed,
    ),
}


class Weights(NamedTuple):
    """Of a block, or with a leading axis of all."""

    attention_scale: jax.Array  # [width], as is the shift
    attention_shift: jax.Array
    qkv: jax.Array  # [width, 3 width]; for kernels [3 width, width]: so it lies in a TPU, unpadded
    qkv_bias: jax.Array
    out: jax.Array
    out_bias: jax.Array
    mlp_scale: jax.Array
    mlp_shift: jax.Array
    up: jax.Array
    up_bias: jax.Array
    down: jax.Array
    down_bias: jax.Array


class Extras(NamedTuple):
    """What each layer may have of its own, with a leading axis of layers; None: nothing."""

    keys: jax.Array | None = None  # of its noise
    drop_rates: jax.Array | None = None  # of its branches
    positions: jax.Array | None = None  # [token, width], added to its input


class Tape(NamedTuple):
    """What a block keeps for its backward pass besides its input: [slot, all tokens, channel]."""

    qkv: jax.Array
    sums: jax.Array  # of attention, [slot, batch, head, token]
    middle: jax.Array  # x between attention and MLP
    hidden: jax.Array  # before GELU


class Passed(NamedTuple):
    """What is left of a forward pass through the blocks that compute all tokens."""

    last: Kept  # what came out
    inputs: Any  # of each block, and its tape: stacks, or lists where nothing is scanned
    tape: Any
    room: Weights | None = None  # stacks that the gradients may be written to


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is the same for all blocks, and no array."""

    kind: str  # "fused": by kernels; "flat": without
    images: int
    sizes: Sizes  # of attention, on one device
    heads: int  # of all devices that share an image
    dropout: float
    epsilon: float
    activation: str
    remat: str  # "full": only inputs of blocks are kept; "qkv": all but qkv
    scan: bool
    is_first_enough: bool  # of the tokens that come out, the first of each image


def gelu(x: jax.Array, activation: str) -> jax.Array:
    """Exact, or "gelu_tanh": in its tanh approximation, as in the published weights."""
    return jax.nn.gelu(x, approximate=activation == "gelu_tanh")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_blocks(spec: Spec, weights: Weights, x: jax.Array, extras: Extras) -> jax.Array:
    """x [all tokens, width] through all blocks; [image, width] where the first is enough."""
    weights = _cast(weights, x.dtype)
    return _result(spec, weights, extras, _through(spec, weights, x, extras, is_kept=False).last)


def _forward(
    spec: Spec, weights: Weights, x: jax.Array, extras: Extras
) -> tuple[jax.Array, tuple[Weights, Extras, Passed]]:
    weights = _cast(weights, x.dtype)
    passed = _through(spec, weights, x, extras, is_kept=True)
    return _result(spec, weights, extras, passed.last), (weights, extras, passed)


def _result(spec: Spec, weights: Weights, extras: Extras, last: Kept) -> jax.Array:
    """Of what came out of the blocks that compute all tokens."""
    if not spec.is_first_enough:
        return last.read()
    layer = _layer((weights, extras), -1)
    return _first_token(spec, *layer, _first(spec, last), _normal(spec, layer[0], last))


def _layer(stacks: Any, index: Any) -> Any:
    return jax.tree.map(lambda stack: stack[index], stacks)


def _through(
    spec: Spec, weights: Weights, x: jax.Array, extras: Extras, *, is_kept: bool
) -> Passed:
    """Blocks that compute all tokens."""
    depth, layers = _whole_blocks(spec, weights), (weights, _moved_up(extras))

    def block(carry: tuple[jax.Array, Tape], index: jax.Array) -> tuple[Any, None]:
        inputs, tape = carry
        x = Kept(inputs, index if is_kept else jnp.int32(0))
        value, tape = _block(spec, *_layer(layers, index), x, tape, index)
        return (Kept(inputs, x.slot + is_kept).written(over_batch(value)).stack, tape), None

    def block_by_value(carry: tuple[jax.Array, Any], index: jax.Array) -> tuple[Any, Any]:
        x, room = carry
        tape = _empty_tape(spec, weights, x, 1)
        value, tape = _block(spec, *_layer(layers, index), Kept.alone(x), tape, jnp.int32(0))
        kept = (x, _worth_keeping(spec, tape)) if is_kept else (None, None)
        return (over_batch(value), _touched(room, index)), kept

    x = _placed(x, extras)
    if spec.scan and spec.kind == "flat":
        is_new = is_kept and not _is_cast(weights)
        room = jax.tree.map(jnp.zeros_like, weights) if is_new else None
        (x, room), kept = jax.lax.scan(block_by_value, (x, room), jnp.arange(depth))
        return Passed(Kept.alone(x), *kept, room)
    if spec.scan:
        inputs = Kept(empty_stack(depth + 1 if is_kept else 1, x.shape, x.dtype), jnp.int32(0))
        tape = _empty_tape(spec, weights, x, depth if is_kept else 1)
        carry = (inputs.written(x).stack, tape)
        (stack, tape), _ = jax.lax.scan(block, carry, jnp.arange(depth))
        return Passed(Kept(stack, jnp.int32(len(stack) - 1)), stack, tape)
    all_inputs, all_tapes = [], []
    for index in range(depth):
        all_inputs.append(x)
        tape = _empty_tape(spec, weights, x, 1)
        x, tape = _block(spec, *_layer(layers, index), Kept.alone(x), tape, jnp.int32(0))
        x = over_batch(x)
        all_tapes.append(tape)
    return Passed(Kept.alone(x), all_inputs, all_tapes)


def _touched(room: Weights | None, index: jax.Array) -> Weights | None:
    """Written to, so that it has to be there before the first block.

    Memory for gradients is taken when the step before has just given it back. Some seconds later a
    virtual machine may have returned it to its host: a step of B/16 on a CPU then spent a tenth of
    its time getting it again.
    """

    def touched(stack: jax.Array) -> jax.Array:
        return stack.at[(index, *[0] * (stack.ndim - 1))].set(index.astype(stack.dtype))

    return jax.tree.map(touched, room)


def _whole_blocks(spec: Spec, weights: Weights) -> int:
    """How many compute all tokens."""
    return len(weights.qkv) - spec.is_first_enough


def _placed(x: jax.Array, extras: Extras) -> jax.Array:
    """The input of the first block: blocks add the positions of the next ones."""
    return x if extras.positions is None else _plus(x, extras.positions[0])


def _plus(x: jax.Array, positions: jax.Array) -> jax.Array:
    """x of all tokens, and the same positions for each image."""
    by_image = x.reshape(-1, *positions.shape)
    return (by_image + positions.astype(x.dtype)).reshape(x.shape)


def _moved_up(extras: Extras) -> Extras:
    """Positions that a block adds to its result; after the last one, none."""
    if extras.positions is None:
        return extras
    following = jnp.concatenate([extras.positions[1:], jnp.zeros_like(extras.positions[:1])])
    return extras._replace(positions=following)


def _block(
    spec: Spec, weights: Weights, extras: Extras, x: Kept, tape: Tape, layer: jax.Array
) -> tuple[jax.Array, Tape]:
    """x + attention(norm(x)), then x + mlp(norm(x)); the tape with its slots written."""
    kept, noise, parts = _slots(tape, layer), _noise(spec, extras), _PARTS[spec.kind]
    norm = functools.partial(parts.normed, images=spec.images, epsilon=spec.epsilon)
    normal = norm(x, weights.attention_scale, weights.attention_shift)
    qkv = kept.qkv.written(normal @ _qkv_matrix(spec, weights) + weights.qkv_bias)
    mixed, sums = parts.attended(qkv, spec.sizes)
    branch = noise.attention(mixed @ weights.out + weights.out_bias)
    middle = kept.middle.written(x.read() + branch)
    normal = norm(middle, weights.mlp_scale, weights.mlp_shift)
    hidden = kept.hidden.written(normal @ weights.up + weights.up_bias)
    if spec.kind == "fused":
        hidden = _apart(hidden)
    active = noise.hidden(gelu(hidden.read(), spec.activation))
    result = middle.read() + noise.mlp(active @ weights.down + weights.down_bias)
    if extras.positions is not None:
        result = _plus(result, extras.positions)
    sums = kept.sums.written(sums)
    return result, Tape(qkv.stack, sums.stack, middle.stack, hidden.stack)


def _qkv_matrix(spec: Spec, weights: Weights) -> jax.Array:
    """[width, 3 width]"""
    return weights.qkv if spec.kind == "flat" else weights.qkv.T


def _apart(hidden: Kept) -> Kept:
    """GELU belongs to the matmul behind it, where it costs little; the compiler would compute it in
    the one before, and write both."""
    return hidden._replace(stack=jax.lax.optimization_barrier(hidden.stack))


def _worth_keeping(spec: Spec, tape: Tape) -> Tape:
    """What the backward pass does not compute again."""
    again = {"full": Tape._fields, "qkv": ("qkv",)}.get(spec.remat, ())
    return tape._replace(**dict.fromkeys(again))


def _filled(tape: Tape, empty: Tape) -> Tape:
    """What was not kept is to be written once more."""
    return Tape(*(new if kept is None else kept for kept, new in zip(tape, empty, strict=True)))


def _slots(tape: Tape, layer: jax.Array) -> Tape:
    """Where a layer's arrays are: what is not kept for all has one slot."""
    return Tape(*(Kept(stack, layer if len(stack) > 1 else jnp.int32(0)) for stack in tape))


def _backward(
    spec: Spec, kept: tuple[Weights, Extras, Passed], gradient: jax.Array
) -> tuple[Weights, jax.Array, Extras]:
    weights, extras, (last, inputs, tape, room) = kept
    depth = _whole_blocks(spec, weights)
    of_last = []
    if spec.is_first_enough:
        layer = _layer((weights, extras), -1)
        gradient, of_layer = _first_token_backward(spec, *layer, last, gradient)
        of_last.append(of_layer)

    if spec.scan:
        # Weights that were cast are not needed after their layer: its gradients take their place.
        # (B/16 in bfloat16 has 0.17 GB of either.)
        is_cast = _is_cast(weights)
        room = weights if is_cast else room

        def block(carry: tuple[jax.Array, Any], layer: tuple[jax.Array, Any]) -> tuple[Any, None]:
            (gradient, found), (index, own) = carry, layer
            if spec.kind == "flat":
                x, kept = own
                place = Kept.alone(x), _filled(kept, _empty_tape(spec, weights, x, 1)), jnp.int32(0)
            else:
                place = Kept(inputs, index), tape, index
            layers = (found[0] if is_cast else weights, extras)
            gradient, new = _block_backward(spec, *_layer(layers, index), *place, gradient)
            return (gradient, _noted(found, index, new)), None

        # Into stacks, because results of a scan are filled with zeros first.
        found = (room or _empty_like(weights), _empty_like(extras.positions))
        for of_layer in of_last:
            found = _noted(found, jnp.int32(depth), of_layer)
        steps = (jnp.arange(depth), (inputs, tape) if spec.kind == "flat" else None)
        (gradient, found), _ = jax.lax.scan(block, (gradient, found), steps, reverse=True)
    else:
        each = of_last
        for index in reversed(range(depth)):
            place = Kept.alone(inputs[index]), tape[index], jnp.int32(0)
            layer = _layer((weights, extras), index)
            gradient, of_layer = _block_backward(spec, *layer, *place, gradient)
            each.append(of_layer)
        found = jax.tree.map(lambda *x: jnp.stack(x), *reversed(each))
    of_weights, of_positions = found
    of_weights = jax.tree.map(lambda x: x.astype(jnp.float32), of_weights)
    return of_weights, gradient, Extras(positions=of_positions)


def _empty_like(stacks: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.empty(x.shape, x.dtype), stacks)


def _noted(stacks: Any, index: jax.Array, values: Any) -> Any:
    """The stacks with the values of a layer."""
    return jax.tree.map(lambda stack, x: Kept(stack, index).written(x).stack, stacks, values)


fused_blocks.defvjp(_forward, _backward)


def _block_backward(
    spec: Spec,
    weights: Weights,
    extras: Extras,
    x: Kept,
    tape: Tape,
    layer: jax.Array,
    gradient: jax.Array,
) -> tuple[jax.Array, tuple[Weights, Any]]:
    """The gradient of what comes out -> that of x, of the weights, and of x's positions."""
    if spec.remat == "full":
        plain = extras._replace(positions=None)
        _, tape = _block(spec, weights, plain, x, tape, layer)
    noise, parts = _noise(spec, extras), _PARTS[spec.kind]
    qkv, sums, middle, hidden = _slots(tape, layer)
    norm = functools.partial(parts.normed_backward, images=spec.images, epsilon=spec.epsilon)

    outer = noise.mlp(gradient)
    active, to_hidden = jax.vjp(lambda h: noise.hidden(gelu(h, spec.activation)), hidden.read())
    (of_hidden,) = to_hidden(outer @ weights.down.T)
    of_down = active.T @ outer
    inner = of_hidden @ (_transposed(weights.up) if spec.kind == "fused" else weights.up.T)
    of_middle, mlp_sums, normal = norm(
        middle, gradient, inner, weights.mlp_scale, weights.mlp_shift
    )
    of_up = normal.T @ of_hidden
    # What the MLP needed is given back before attention takes as much.
    of_middle, of_up, of_down = jax.lax.optimization_barrier((of_middle, of_up, of_down))

    is_recomputed = spec.remat == "qkv"
    if is_recomputed:
        normal = _normal(spec, weights, x)
        qkv = qkv.written(normal @ _qkv_matrix(spec, weights) + weights.qkv_bias)
    attention_outer = noise.attention(of_middle)
    inner = attention_outer @ weights.out.T
    of_qkv, of_qkv_bias, mixed = parts.attended_backward(qkv, sums.read(), inner, spec.sizes)
    of_out = mixed.T @ attention_outer
    inner = of_qkv @ _qkv_matrix(spec, weights).T
    of_x, attention_sums, *again = norm(
        x,
        of_middle,
        inner,
        weights.attention_scale,
        weights.attention_shift,
        with_normal=not is_recomputed,
    )
    [normal] = again or [normal]
    has_noise = extras.keys is not None  # else it has been summed up with the norm's
    found = Weights(
        attention_scale=attention_sums[1],
        attention_shift=attention_sums[2],
        qkv=normal.T @ of_qkv if spec.kind == "flat" else of_qkv.T @ normal,
        qkv_bias=of_qkv_bias,
        out=of_out,
        out_bias=parts.summed(attention_outer) if has_noise else attention_sums[0],
        mlp_scale=mlp_sums[1],
        mlp_shift=mlp_sums[2],
        up=of_up,
        up_bias=parts.summed(of_hidden),
        down=of_down,
        down_bias=parts.summed(outer) if has_noise else mlp_sums[0],
    )
    return over_batch(of_x), (found, _of_positions(extras, of_x))


def _of_positions(extras: Extras, of_x: jax.Array) -> jax.Array | None:
    """What positions get that were added to x."""
    if extras.positions is None:
        return None
    return of_x.reshape(-1, *extras.positions.shape).sum(axis=0, dtype=jnp.float32)


def _first_token(
    spec: Spec, weights: Weights, extras: Extras, first: jax.Array, normal: jax.Array
) -> jax.Array:
    """The last block, for the first token [image, width] of each image; `normal` are all tokens,
    normalised.

    For one query nobody needs the keys and values of all tokens: q (K n) = (q K) n, and a mean of
    values is the value of a mean. The bias of keys adds the same to all logits, so nothing.
    """
    images, width = first.shape
    shares, channels = spec.heads // spec.sizes.heads, spec.sizes.channels

    def by_part(x: jax.Array) -> list[jax.Array]:
        """[..., 3 width] -> three of [..., head, channel]."""
        lead = x.shape[:-1]
        parts = jnp.moveaxis(x.reshape(*lead, shares, 3, spec.sizes.heads, channels), -3, 0)
        return list(parts.reshape(3, *lead, spec.heads, channels))

    query_matrix, key_matrix, value_matrix = by_part(_qkv_matrix(spec, weights))
    query_bias, _, value_bias = by_part(weights.qkv_bias)
    normal = normal.reshape(images, -1, width)

    query = jnp.einsum("iw,whc->ihc", normal[:, 0], query_matrix) + query_bias
    wanted = jnp.einsum("ihc,whc->ihw", query * channels**-0.5, key_matrix)
    logits = jnp.einsum("ihw,itw->iht", wanted, normal, preferred_element_type=jnp.float32)
    is_token = jnp.arange(spec.sizes.rows) < spec.sizes.tokens
    mix = jax.nn.softmax(jnp.where(is_token, logits, -jnp.inf)).astype(normal.dtype)
    mean = jnp.einsum("iht,itw->ihw", mix, normal)
    mixed = jnp.einsum("ihw,whc->ihc", mean, value_matrix) + value_bias

    noise = _noise(spec, extras, all_tokens=False)
    branch = mixed.reshape(images, width) @ weights.out + weights.out_bias
    middle = first + noise.attention(branch)
    normal = flat_parts.normed(
        Kept.alone(middle), weights.mlp_scale, weights.mlp_shift, images, spec.epsilon
    )
    active = noise.hidden(gelu(normal @ weights.up + weights.up_bias, spec.activation))
    return over_batch(middle + noise.mlp(active @ weights.down + weights.down_bias))


def _first_token_backward(
    spec: Spec, weights: Weights, extras: Extras, x: Kept, gradient: jax.Array
) -> tuple[jax.Array, tuple[Weights, Any]]:
    """As `_block_backward`. Nothing was kept but x: the rest is small enough to be done again."""
    first, normal = _first(spec, x), _normal(spec, weights, x)
    _, back = jax.vjp(
        lambda *values: _first_token(spec, values[0], extras, *values[1:]), weights, first, normal
    )
    found, of_first, of_normal = back(gradient)
    beside = jnp.zeros((spec.images, spec.sizes.rows, first.shape[1]), first.dtype)
    beside = over_batch(beside.at[:, 0].set(of_first).reshape(normal.shape))
    of_x, sums = _PARTS[spec.kind].normed_backward(
        x,
        beside,
        over_batch(of_normal),
        weights.attention_scale,
        weights.attention_shift,
        spec.images,
        spec.epsilon,
        with_normal=False,
    )
    found = found._replace(attention_scale=sums[1], attention_shift=sums[2])
    return over_batch(of_x), (found, _of_positions(extras, of_x))


def _first(spec: Spec, x: Kept) -> jax.Array:
    """The first token of each image."""
    return x.read().reshape(spec.images, spec.sizes.rows, -1)[:, 0]


def _normal(spec: Spec, weights: Weights, x: Kept) -> jax.Array:
    """x as attention takes it."""
    return _PARTS[spec.kind].normed(
        x, weights.attention_scale, weights.attention_shift, spec.images, spec.epsilon
    )


class _Noise(NamedTuple):
    """Of a training step. Each is diagonal: its gradient goes through it likewise."""

    attention: Callable[[jax.Array], jax.Array]
    hidden: Callable[[jax.Array], jax.Array]
    mlp: Callable[[jax.Array], jax.Array]


def _noise(spec: Spec, extras: Extras, *, all_tokens: bool = True) -> _Noise:
    if extras.keys is None:
        return _Noise(*[lambda x: x] * 3)
    keys = list(jax.random.split(extras.keys, 5))

    def drop(x: jax.Array, key: jax.Array, where: PartitionSpec) -> jax.Array:
        if spec.kind == "flat" and not all_tokens:  # as plain blocks draw for all of them
            whole = jnp.ones((spec.images, spec.sizes.rows, x.shape[1]), x.dtype)
            return x * dropout(whole, spec.dropout, key)[:, 0]
        if spec.kind == "flat" or not all_tokens:
            return dropout(x, spec.dropout, key)
        return _dropout(x, spec.dropout, key, where)

    def branch(first: jax.Array, second: jax.Array) -> Callable[[jax.Array], jax.Array]:
        def run(x: jax.Array) -> jax.Array:
            kept = drop(x, first, BATCH_SPEC)
            by_image = kept.reshape(spec.images, -1, x.shape[-1])
            return drop_path(by_image, extras.drop_rates, second).reshape(x.shape)

        return run

    return _Noise(
        branch(keys[0], keys[1]),
        lambda x: drop(x, keys[2], PartitionSpec(BATCH_AXES, "tensor")),
        branch(keys[3], keys[4]),
    )


def _dropout(x: jax.Array, rate: float, key: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Dropout by the chip's own generator: JAX's takes longer than the matmuls around it.

    Each device draws its own part, so that both directions draw the same; on another mesh the
    draws are others.
    """
    if not rate:
        return x
    rows, channels = x.shape
    shape = (rows // batch_devices(), channels // (devices_per_image() if len(spec) > 1 else 1))

    def bits(words: jax.Array) -> jax.Array:
        words = words.at[0].add(device_number(spec).astype(words.dtype))
        return jax.random.bits(jax.random.wrap_key_data(words, impl="unsafe_rbg"), shape, "uint16")

    words = jax.random.bits(key, (4,), "uint32")
    keep = by_device(bits, (words,), (PartitionSpec(),), spec) < round((1 - rate) * 2**16)
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)


def _cast(weights: Weights, dtype: jnp.dtype) -> Weights:
    """All in the type of x, once and not in each matmul; norms stay as they are."""

    def cast(name: str, value: jax.Array) -> jax.Array:
        if name.endswith(("scale", "shift")) or value.dtype == dtype:
            return value
        # (A conversion alone takes thrice as long as one that something is fused with.)
        info = jnp.finfo(dtype)
        value = jax.lax.reduce_precision(value, info.nexp, info.nmant)
        return jax.lax.optimization_barrier(value.astype(dtype))

    return Weights(*(cast(name, value) for name, value in weights._asdict().items()))


def _is_cast(weights: Weights) -> bool:
    """Or are they the parameters themselves?"""
    return weights.up.dtype != jnp.float32


def _transposed(kernel: jax.Array) -> jax.Array:
    """Copied, which is little beside what a matmul takes longer with it lying the other way."""
    return jax.lax.optimization_barrier(kernel.T)


def _empty_tape(spec: Spec, weights: Weights, x: jax.Array, slots: int) -> Tape:
    rows, width = x.shape
    slots = 1 if spec.remat == "full" else slots
    return Tape(
        qkv=empty_stack(1 if spec.remat == "qkv" else slots, (rows, 3 * width), x.dtype),
        sums=empty_stack(slots, (spec.images, spec.heads, spec.sizes.rows), jnp.float32),
        middle=empty_stack(slots, x.shape, x.dtype),
        hidden=empty_stack(slots, (rows, weights.up.shape[-1]), x.dtype),
    )
