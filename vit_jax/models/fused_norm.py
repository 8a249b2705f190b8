"""Layer norms for TPUs: read and written once, by kernels.

The compiler's own fusions of a norm and its gradient with the matmuls around them take longer than
both apart. The backward pass has the input only, and computes what was normalised once more.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from vit_jax.models.activations import BATCH_SPEC, batch_devices, by_device
from vit_jax.models.fused_attention import block, for_plan, stack_block
from vit_jax.models.kept import Kept

FORWARD, BACKWARD = "norm_forward", "norm_backward"

_SAME, _STACK = PartitionSpec(), PartitionSpec(None, *BATCH_SPEC)


def normed(x: Kept, scale: jax.Array, shift: jax.Array, images: int, epsilon: float) -> jax.Array:
    """x [all tokens, width], normalised in float32; `images` are those of all devices."""
    run = functools.partial(forward_kernel, epsilon=epsilon, images=images // batch_devices())
    arrays = (x.index, x.stack, _row(scale), _row(shift))
    return by_device(run, arrays, (_SAME, _STACK, _SAME, _SAME), BATCH_SPEC)


def normed_backward(
    x: Kept,
    beside: jax.Array,
    outer: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    images: int,
    epsilon: float,
    with_normal: bool = True,
) -> tuple[jax.Array, ...]:
    """The gradient of what was normalised, `outer` -> that of x, to which `beside` is added; sums
    over all tokens, float32 [3, width]: `beside`, and what scale and shift get; and x, normalised.
    """
    run = functools.partial(
        backward_kernel,
        epsilon=epsilon,
        images=images // batch_devices(),
        with_normal=int(with_normal),
    )
    arrays = (x.index, x.stack, beside, outer, _row(scale), _row(shift))
    specs = (_SAME, _STACK, BATCH_SPEC, BATCH_SPEC, _SAME, _SAME)
    of_x, sums, *normal = by_device(run, arrays, specs, BATCH_SPEC)
    return of_x, sums.sum(axis=0), *normal


def _row(x: jax.Array) -> jax.Array:
    return x[None]


def forward_kernel(
    index: jax.Array,
    x: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    *,
    images: int,
    epsilon: float,
) -> jax.Array:
    """`normed` of a stack, on one device. Scale and shift: [1, width]."""
    results = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype)]
    step = functools.partial(_forward_step, epsilon)
    return _call(FORWARD, step, epsilon, images, results)(index, x, scale, shift)[0]


def backward_kernel(
    index: jax.Array,
    x: jax.Array,
    beside: jax.Array,
    outer: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    *,
    images: int,
    epsilon: float,
    with_normal: int,
) -> tuple[jax.Array, ...]:
    """`normed_backward` of a stack, on one device, with sums of each image: [image, 3, width]."""
    same = jax.ShapeDtypeStruct(beside.shape, x.dtype)
    sums = jax.ShapeDtypeStruct((images, 3, x.shape[-1]), jnp.float32)
    step = functools.partial(_backward_step, epsilon)
    results = [same, sums, *[same] * with_normal]
    call = _call(BACKWARD, step, epsilon, images, results, with_normal=with_normal)
    return call(index, x, beside, outer, scale, shift)


def example(
    name: str,
    images: int,
    dtype: str,
    *,
    rows: int,
    width: int,
    epsilon: float,
    with_normal: int = 1,
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """A kernel by its name, and arrays for it."""
    index, row = jax.ShapeDtypeStruct((1,), "int32"), jax.ShapeDtypeStruct((1, width), jnp.float32)
    x = jax.ShapeDtypeStruct((images * rows, width), dtype)
    stack = jax.ShapeDtypeStruct((1, *x.shape), dtype)
    options = {"images": images, "epsilon": epsilon}
    if name == FORWARD:
        return functools.partial(forward_kernel, **options), [index, stack, row, row]
    options["with_normal"] = with_normal
    return functools.partial(backward_kernel, **options), [index, stack, x, x, row, row]


def _call(
    name: str,
    step: Callable[..., None],
    epsilon: float,
    images: int,
    results: Any,
    **others: int,
) -> Callable[..., Any]:
    """`step` over a grid of images."""

    def call(index: jax.Array, x: jax.Array, *arrays: jax.Array) -> Any:
        *own, scale, _ = arrays
        read = (jax.ShapeDtypeStruct(x.shape[1:], x.dtype), *arrays)
        moved = sum(y.size * y.dtype.itemsize for y in (*read, *results))
        options = {"epsilon": epsilon, "rows": x.shape[1] // images, "width": x.shape[2], **others}
        same = pl.BlockSpec(scale.shape, lambda *_: (0, 0))
        return pl.pallas_call(
            step,
            results,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(images,),
                in_specs=[
                    stack_block(x, images, x.shape[-1]),
                    *(block(y, images) for y in own),
                    same,
                    same,
                ],
                out_specs=[block(y, images) for y in results],
            ),
            name=name,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
            metadata=for_plan(name, images, moved, x.dtype, **options),
        )(index, x, *arrays)

    return call


def _forward_step(epsilon: float, index: Any, x: Any, scale: Any, shift: Any, result: Any) -> None:
    result[...] = (normal(x[...], epsilon)[0] * scale[...] + shift[...]).astype(result.dtype)


def _backward_step(
    epsilon: float,
    index: Any,
    x: Any,
    beside: Any,
    outer: Any,
    scale: Any,
    shift: Any,
    of_x: Any,
    sums: Any,
    *result: Any,
) -> None:
    gradient, to_sum, normed = gradient_of_normal(
        x[...], beside[...], outer[...], scale[...], shift[...], epsilon
    )
    for whole in result:
        whole[...] = normed.astype(whole.dtype)
    sums[...] = jnp.concatenate([y.sum(axis=0)[None] for y in to_sum])
    of_x[...] = gradient.astype(of_x.dtype)


def gradient_of_normal(
    x: jax.Array,
    beside: jax.Array,
    outer: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    epsilon: float,
) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """What `normed_backward` returns, of some tokens, in float32 and before it is summed."""
    normed, factor = normal(x, epsilon)
    outer = outer.astype(jnp.float32)
    product = outer * normed
    beside = beside.astype(jnp.float32)
    to_sum = [beside, product, outer]
    inner = outer * scale
    product = product * scale
    inner -= inner.mean(axis=1, keepdims=True) + normed * product.mean(axis=1, keepdims=True)
    return beside + factor * inner, to_sum, normed * scale + shift


def normal(x: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array]:
    """x with mean 0 and variance 1, in float32, and what it was divided by, inverted."""
    x = x.astype(jnp.float32)
    x -= x.mean(axis=1, keepdims=True)
    factor = jax.lax.rsqrt((x * x).mean(axis=1, keepdims=True) + epsilon)
    return x * factor, factor
