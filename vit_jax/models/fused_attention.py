"""Self-attention for short sequences as one TPU kernel: logits never leave the chip's own memory.

Queries, keys and values come flat as their projection writes them, [batch, token, 3 width], and
their gradient goes back in that layout, so that no copies are made around the matmuls. A step of
the grid has one image in VMEM. Inside, logits lie as [key, query]: a softmax then goes over rows,
which needs no shuffling between lanes. The backward pass computes the weights once more.
"""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from vit_jax.models.activations import BATCH_AXES, by_device, devices_per_image, flat
from vit_jax.models.kept import Kept

LANES, SUBLANES = 128, 8  # of a vector register
MOST_QUERIES = 384  # at once
STEP_LOGITS = 2**21  # at most, of the heads that one step of the grid unrolls
MASKED = -1e30  # instead of a logit: finite, so that differences of two are

FORWARD, BACKWARD = "attention_forward", "attention_backward"

T = TypeVar("T")
_OVER_CHANNELS = (((1,), (1,)), ((), ()))  # [m, c], [n, c] -> [m, n]
_PLAIN = (((1,), (0,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What fixes the kernels besides the type of their numbers."""

    tokens: int
    rows: int  # of the array: tokens, and what fills up the last register, which nobody sees
    heads: int
    channels: int  # of a head
    line: int  # tokens see those of their own line: so many in a row, all of them but for axial

    @property
    def width(self) -> int:
        return self.heads * self.channels

    @property
    def group(self) -> int:
        """Heads that fill whole registers together: two of 64 channels, eight of 80."""
        return min(self.heads, LANES // math.gcd(self.channels, LANES))

    @property
    def step_heads(self) -> int:
        """Heads in a step of the grid: all, but of long sequences fewer, or code grows too long."""
        groups = self.heads // self.group
        if self.heads % self.group or self.group * self.channels % LANES:
            return self.heads
        most = STEP_LOGITS // (self.rows**2 * self.group)
        parts = next(
            parts
            for parts in range(1, groups + 1)
            if groups % parts == 0 and (groups // parts <= most or parts == groups)
        )
        return self.heads // parts

    def vmem_bytes(self, dtype: jnp.dtype) -> int:
        """That a kernel may need: blocks twice, and what it computes, by trials rounded up."""
        blocks = 8 * self.width * jnp.dtype(dtype).itemsize + 4 * self.heads
        queries = min(MOST_QUERIES, pl.cdiv(self.rows, LANES) * LANES)
        return self.rows * (2 * blocks + 48 * self.group * queries) + 2**22


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def fused_attention(
    qkv: jax.Array,
    bias: jax.Array,
    out_kernel: jax.Array,
    heads: int,
    tokens: int,
    line: int | None = None,
) -> jax.Array:
    """softmax(q kᵀ / √d) v @ out_kernel: [batch, token, 3 width] -> [batch, token, width].

    `heads` are those of a device, whose queries, keys and values come after each other. Only the
    first `tokens` are seen; where there are more, they fill up a register. `line`: only so many
    tokens in a row see each other. `bias` [3 width] is added to qkv before, and the matmul comes
    after, because the backward kernel has at hand what their gradients take.
    """
    return _forward(qkv, bias, out_kernel, heads, tokens, line)[0]


def _forward(
    qkv: jax.Array,
    bias: jax.Array,
    out_kernel: jax.Array,
    heads: int,
    tokens: int,
    line: int | None,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    qkv += bias.astype(qkv.dtype)
    mixed, sums = attended(Kept.alone(qkv), _sizes(qkv, heads, tokens, line))
    result = flat(mixed) @ out_kernel.astype(qkv.dtype)
    return result.reshape(*qkv.shape[:-1], -1), (qkv, sums, bias, out_kernel)


def _backward(
    heads: int, tokens: int, line: int | None, kept: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    qkv, sums, bias, out_kernel = kept
    gradient = flat(gradient)
    inner = (gradient @ out_kernel.astype(qkv.dtype).T).reshape(*qkv.shape[:-1], -1)
    sizes = _sizes(qkv, heads, tokens, line)
    of_qkv, of_bias, mixed = attended_backward(Kept.alone(qkv), sums, inner, sizes)
    of_kernel = (flat(mixed).T @ gradient).astype(out_kernel.dtype)
    return of_qkv, of_bias.astype(bias.dtype), of_kernel


fused_attention.defvjp(_forward, _backward)


def _sizes(qkv: jax.Array, heads: int, tokens: int, line: int | None) -> Sizes:
    _, rows, width = qkv.shape
    channels = width // 3 // heads // devices_per_image()
    return Sizes(tokens, rows, heads, channels, line or tokens)


_BY_HEAD = PartitionSpec(BATCH_AXES, "tensor", None)
_SAME = PartitionSpec()


def attended(qkv: Kept, sizes: Sizes) -> tuple[jax.Array, jax.Array]:
    """[batch, token, 3 width] or [all tokens, 3 width], biases included -> mixed values likewise,
    and the log of the sum of each query's exponentials, float32 [batch, head, token]."""

    def run(index: jax.Array, qkv: jax.Array) -> tuple[jax.Array, jax.Array]:
        return forward_kernel(index, *_in_parts(qkv), **dataclasses.asdict(sizes))

    rows = _rows_spec(qkv.stack.ndim - 1)
    specs = (_SAME, PartitionSpec(None, *rows))
    return by_device(run, (qkv.index, qkv.stack), specs, (rows, _BY_HEAD))


def attended_backward(
    qkv: Kept, sums: jax.Array, gradient: jax.Array, sizes: Sizes
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gradient of the mixed values -> that of qkv, its sum over images and tokens in float32,
    and the mixed values."""

    def run(index: jax.Array, qkv: jax.Array, *others: jax.Array) -> tuple[jax.Array, ...]:
        return backward_kernel(index, *_in_parts(qkv), *others, **dataclasses.asdict(sizes))

    rows = _rows_spec(gradient.ndim)
    arrays = (qkv.index, qkv.stack, sums, gradient)
    specs = (_SAME, PartitionSpec(None, *rows), _BY_HEAD, rows)
    of_qkv, of_bias, mixed = by_device(run, arrays, specs, (rows, _rows_spec(3), rows))
    return of_qkv, of_bias.sum(axis=(0, 1)), mixed


def _rows_spec(axes: int) -> PartitionSpec:
    """Of [batch, token, channel], or of [all tokens, channel]."""
    return PartitionSpec(BATCH_AXES, *(None,) * (axes - 2), "tensor")


def _in_parts(qkv: jax.Array) -> list[jax.Array]:
    """Queries, keys and values: three times the whole, of which a kernel then reads its third.

    Where thirds are no whole registers they are cut here.
    """
    return jnp.split(qkv, 3, axis=-1) if qkv.shape[-1] // 3 % LANES else [qkv] * 3


def forward_kernel(
    index: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, **sizes: int
) -> tuple[jax.Array, jax.Array]:
    """`attended` of `_in_parts` of stacks, on one device."""
    sizes = Sizes(**sizes)
    lead, dtype = query.shape[1:-1], query.dtype
    results = [
        jax.ShapeDtypeStruct((*lead, sizes.width), dtype),
        jax.ShapeDtypeStruct((_images(lead, sizes), sizes.heads, sizes.rows), jnp.float32),
    ]
    return _call(FORWARD, _forward_step, sizes, results)(index, query, key, value)


def backward_kernel(
    index: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sums: jax.Array,
    gradient: jax.Array,
    **sizes: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gradient of the mixed values -> that of qkv, its sum over tokens, float32, and the mixed
    values themselves: to compute them once more takes less than to keep them."""
    sizes = Sizes(**sizes)
    lead, dtype = gradient.shape[:-1], query.dtype
    results = [
        jax.ShapeDtypeStruct((*lead, 3 * sizes.width), dtype),
        jax.ShapeDtypeStruct((_images(lead, sizes), 1, 3 * sizes.width), jnp.float32),
        jax.ShapeDtypeStruct(gradient.shape, dtype),
    ]
    call = _call(BACKWARD, _backward_step, sizes, results)
    return call(index, query, key, value, sums, gradient)


def example(
    name: str, images: int, dtype: str, **sizes: int
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """A kernel by its name, and arrays for it."""
    found = Sizes(**sizes)
    lead = (images, found.rows) if found.rows % SUBLANES else (images * found.rows,)
    qkv = jax.ShapeDtypeStruct((1, *lead, 3 * found.width), dtype)
    arrays = [jax.ShapeDtypeStruct((1,), "int32"), *jax.eval_shape(lambda x: _in_parts(x), qkv)]
    if name == FORWARD:
        return functools.partial(forward_kernel, **sizes), arrays
    sums = jax.ShapeDtypeStruct((images, found.heads, found.rows), jnp.float32)
    gradient = jax.ShapeDtypeStruct((*lead, found.width), dtype)
    return functools.partial(backward_kernel, **sizes), [*arrays, sums, gradient]


def _images(lead: tuple[int, ...], sizes: Sizes) -> int:
    """Of [batch, row], or of all rows together."""
    return math.prod(lead) // sizes.rows


def _call(name: str, step: Callable[..., None], sizes: Sizes, results: Any) -> Callable[..., Any]:
    """`step` over a grid of images, and of parts of the heads; each block is one whole image."""
    images = results[1].shape[0]
    grid = (images, sizes.heads // sizes.step_heads)

    def third(array: jax.Array, part: int) -> pl.BlockSpec:
        is_whole = array.shape[-1] == 3 * sizes.width
        return stack_block(array, images, sizes.width, part if is_whole else 0)

    def call(
        index: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, *others: jax.Array
    ) -> Any:
        moved = sum(x.size * x.dtype.itemsize for x in (*others, *results))
        moved += 3 * images * sizes.rows * sizes.width * query.dtype.itemsize
        return pl.pallas_call(
            functools.partial(step, sizes),
            results,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=grid,
                in_specs=[
                    *(third(array, part) for part, array in enumerate((query, key, value))),
                    *(block(x, images) for x in others),
                ],
                out_specs=[block(result, images) for result in results],
            ),
            name=name,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "arbitrary"),
                vmem_limit_bytes=sizes.vmem_bytes(query.dtype),
            ),
            metadata=for_plan(
                name, math.prod(grid), moved, query.dtype, **dataclasses.asdict(sizes)
            ),
        )(index, query, key, value, *others)

    return call


def for_plan(
    name: str, steps: int, moved: int, dtype: jnp.dtype, **options: float
) -> dict[str, str]:
    """What a kernel says of itself, for tpu/kernels.py, which finds out what a step costs."""
    said = {"kernel": name, "steps": steps, "bytes": moved, "dtype": dtype.name, **options}
    return {key: str(value) for key, value in said.items()}


def block(array: Any, images: int) -> pl.BlockSpec:
    """One image of [image, ...] or of [all rows, channel]."""
    *lead, channels = array.shape
    if len(lead) == 1:
        return pl.BlockSpec((lead[0] // images, channels), lambda image, *_: (image, 0))
    return pl.BlockSpec((None, lead[1], channels), lambda image, *_: (image, 0, 0))


def stack_block(array: Any, images: int, channels: int, part: int = 0) -> pl.BlockSpec:
    """Likewise of a stack's slot, which is the kernel's first argument, and some channels only."""
    lead = array.shape[1:-1]
    if len(lead) == 1:
        shape = (None, lead[0] // images, channels)
        return pl.BlockSpec(shape, lambda image, *rest: (rest[-1][0], image, part))
    shape = (None, None, lead[1], channels)
    return pl.BlockSpec(shape, lambda image, *rest: (rest[-1][0], image, 0, part))


def _forward_step(sizes: Sizes, index: Any, *refs: Any) -> None:
    *qkv, mixed, sums = refs

    def logits(group: int, rows: slice) -> list[jax.Array]:
        query, key, _ = (part[:, _lanes(sizes, group)] for part in qkv)
        return _logits(sizes, query, key, rows)

    for (group, rows), found in _one_ahead(logits, _tasks(sizes)):
        values = qkv[2][:, _lanes(sizes, group)].T
        parts = []
        for head, its_logits in enumerate(found):
            most = its_logits.max(axis=0, keepdims=True)
            weights = jnp.exp(its_logits - most)
            total = weights.sum(axis=0, keepdims=True)
            sums[_row(sizes, group, head), rows] = most + jnp.log(total)
            part = _dot(values[_channels(sizes, head)], weights.astype(mixed.dtype), _PLAIN)
            parts.append(part / total)
        mixed[rows, _lanes(sizes, group)] = jnp.concatenate(parts).T.astype(mixed.dtype)


def _backward_step(sizes: Sizes, index: Any, *refs: Any) -> None:
    *qkv, sums, gradient, result, of_bias, mixed = refs
    scale = sizes.channels**-0.5

    def products(group: int, rows: slice) -> list[tuple[jax.Array, jax.Array]]:
        query, key, value = (part[:, _lanes(sizes, group)] for part in qkv)
        outer = gradient[:, _lanes(sizes, group)]
        logits = _logits(sizes, query, key, rows)
        inner = _by_head(sizes, value, outer, rows)
        return list(zip(logits, inner, strict=True))

    summed: list[jax.Array] = []  # of a group's keys and values, over the rows so far
    for (group, rows), found in _one_ahead(products, _tasks(sizes)):
        query, key, value = (part[:, _lanes(sizes, group)] for part in qkv)
        query, outer = _scaled(query[rows], sizes), gradient[rows, _lanes(sizes, group)]
        key, value = key.T, value.T
        parts = [], [], [], []
        for head, (logits, inner) in enumerate(found):
            weights = jnp.exp(logits - sums[_row(sizes, group, head), rows])
            slope = weights * (inner - (weights * inner).sum(axis=0, keepdims=True))
            slope, weights = slope.astype(mixed.dtype), weights.astype(mixed.dtype)
            channels = _channels(sizes, head)
            parts[0].append(_dot(key[channels], slope, _PLAIN) * scale)
            parts[1].append(_dot(slope, query[:, channels], _PLAIN))
            parts[2].append(_dot(weights, outer[:, channels], _PLAIN))
            parts[3].append(_dot(value[channels], weights, _PLAIN))
        of_query, found = (jnp.concatenate(parts[part]).T for part in (0, 3))
        mixed[rows, _lanes(sizes, group)] = found.astype(mixed.dtype)
        result[rows, _lanes(sizes, group, 0)] = of_query.astype(result.dtype)
        new = [jnp.concatenate(part, axis=1) for part in parts[1:3]]
        new.append(of_query.sum(axis=0, keepdims=True))
        summed = list(map(operator.add, summed, new)) if rows.start else new
        if rows.stop == sizes.rows:
            *whole, of_bias[:, _lanes(sizes, group, 0)] = summed
            for part, found in enumerate(whole, 1):
                result[:, _lanes(sizes, group, part)] = found.astype(result.dtype)
                of_bias[:, _lanes(sizes, group, part)] = found.sum(axis=0, keepdims=True)


def _tasks(sizes: Sizes) -> list[tuple[int, slice]]:
    """(group of heads, rows of queries): what is computed at once."""
    registers = pl.cdiv(sizes.rows, LANES)
    parts = pl.cdiv(registers, MOST_QUERIES // LANES)
    starts = [part * registers // parts * LANES for part in range(parts)]
    rows = [slice(*pair) for pair in itertools.pairwise([*starts, sizes.rows])]
    groups = pl.cdiv(sizes.step_heads, sizes.group)
    return list(itertools.product(range(groups), rows))


def _one_ahead(function: Callable[..., T], tasks: Sequence[tuple]) -> Iterator[tuple[tuple, T]]:
    """Each task and what the function says of it; the next one is always asked for before.

    The compiler keeps to this order, more or less: matrix units work while others compute a
    softmax.
    """
    following = function(*tasks[0])
    for task, after in itertools.zip_longest(tasks, tasks[1:]):
        found, following = following, after and function(*after)
        yield task, found


def _lanes(sizes: Sizes, group: int, part: int = 0) -> Any:
    """Where a group of this step's heads lies in a part: queries, keys or values."""
    first = group * sizes.group
    count = min(sizes.group, sizes.step_heads - first) * sizes.channels
    start = part * sizes.width + first * sizes.channels
    if sizes.step_heads == sizes.heads:
        return slice(start, start + count)
    step = pl.program_id(1) * (sizes.step_heads * sizes.channels)
    return pl.ds(pl.multiple_of(start + step, LANES), count)


def _row(sizes: Sizes, group: int, head: int) -> Any:
    """Where a head of a group is among all."""
    head += group * sizes.group
    if sizes.step_heads == sizes.heads:
        return slice(head, head + 1)
    return pl.ds(pl.program_id(1) * sizes.step_heads + head, 1)


def _channels(sizes: Sizes, head: int) -> slice:
    """Where a head lies in its group."""
    return slice(head * sizes.channels, (head + 1) * sizes.channels)


def _logits(sizes: Sizes, query: jax.Array, key: jax.Array, rows: slice) -> list[jax.Array]:
    """Of each head of a group, [key, query]."""
    found = _by_head(sizes, key, _scaled(query, sizes), rows)
    if sizes.line == sizes.tokens:
        return [_without_filling(sizes, logits) for logits in found]
    key_line, query_line = (
        jnp.floor((_iota(found[0].shape, axis) + start + 0.5) / sizes.line)
        for axis, start in ((0, 0), (1, rows.start))
    )
    same = key_line == query_line
    return [jnp.where(same, logits, MASKED) for logits in found]


def _without_filling(sizes: Sizes, logits: jax.Array) -> jax.Array:
    """Nobody sees rows that are no tokens; only the last register has such."""
    first = sizes.tokens // SUBLANES * SUBLANES
    if sizes.rows == sizes.tokens or first == sizes.rows:
        return logits
    last = logits[first:]
    last = jnp.where(_iota(last.shape, 0) < sizes.tokens - first, last, MASKED)
    return jnp.concatenate([logits[:first], last]) if first else last


def _iota(shape: tuple[int, ...], axis: int) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis).astype(jnp.float32)


def _by_head(sizes: Sizes, x: jax.Array, y: jax.Array, rows: slice) -> list[jax.Array]:
    """x yᵀ of each head of a group, for some rows of y."""
    heads = (_channels(sizes, head) for head in range(x.shape[-1] // sizes.channels))
    return [_dot(x[:, head], y[rows, head], _OVER_CHANNELS) for head in heads]


def _scaled(query: jax.Array, sizes: Sizes) -> jax.Array:
    return (query * sizes.channels**-0.5).astype(query.dtype)


def _dot(x: jax.Array, y: jax.Array, dimensions: Any) -> jax.Array:
    return jax.lax.dot_general(x, y, dimensions, preferred_element_type=jnp.float32)
