"""How arrays lie across devices: one mesh, one table from parameter paths to its axes.

`replica` holds copies, `fsdp` splits parameters and the batch, `tensor` splits heads and hidden
units. The batch is split over replica and fsdp together.
"""

import re
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.errors import UsageError
from vit_jax.models.activations import BATCH_AXES, BATCH_SPEC
from vit_jax.train.config import MeshConfig

AXES = (*BATCH_AXES, "tensor")

# First match wins, on the whole path. Stacked blocks and units have a leading layer axis.
_BLOCK = r"encoder/blocks/((row|column)/)?"
_UNIT = r".*/stage\d+/"
RULES: tuple[tuple[str, P], ...] = (
    (_BLOCK + r"attention/qkv/kernel", P(None, "fsdp", None, "tensor", None)),
    (_BLOCK + r"attention/qkv/bias", P(None, None, "tensor", None)),
    (_BLOCK + r"attention/out/kernel", P(None, "tensor", None, "fsdp")),
    (_BLOCK + r"mlp/up/kernel", P(None, "fsdp", "tensor")),
    (_BLOCK + r"mlp/up/bias", P(None, "tensor")),
    (_BLOCK + r"mlp/down/kernel", P(None, "tensor", "fsdp")),
    (r"embedding/patches/kernel", P(None, None, None, "fsdp")),
    (r"(embedding|encoder)/positions/table", P(None, None, "fsdp")),
    (r"encoder/layer_positions/table", P(None, None, None, "fsdp")),
    (r"pooling/(query|key_value)/kernel", P("fsdp", None, "tensor", None)),
    (r"pooling/(query|key_value)/bias", P(None, "tensor", None)),
    (r"pooling/out/kernel", P("tensor", None, "fsdp")),
    (r"pooling/mlp/up/kernel", P("fsdp", "tensor")),
    (r"pooling/mlp/up/bias", P("tensor")),
    (r"pooling/mlp/down/kernel", P("tensor", "fsdp")),
    # ResNets: output channels; units are too small for the tensor axis to be worth its traffic.
    (_UNIT + r"first/.*/qkv/kernel", P(None, "fsdp")),
    (_UNIT + r"rest/.*/qkv/kernel", P(None, None, "fsdp")),
    (_UNIT + r"first/.*kernel", P(None, None, None, "fsdp")),
    (_UNIT + r"rest/.*kernel", P(None, None, None, None, "fsdp")),
    (r".*/root_conv/kernel", P(None, None, None, "fsdp")),
    (r"(pre_logits|head|prediction/out)/kernel", P("fsdp")),
    (r"lora/.*", P()),  # small by design
    (r".*(bias|scale|class_token|registers|probe|mask_token|rows|columns|offsets)", P()),
)

# Below this many elements a parameter that no rule names is simply copied to every device.
SMALL = 2**16


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh over all devices; an axis of -1 takes what the others leave.

    Slices of a TPU hold copies: what is between them is too slow for anything else.
    """
    devices = jax.devices() if devices is None else devices
    slices = len({getattr(d, "slice_index", 0) for d in devices if d.platform == "tpu"}) or 1
    sizes = mesh_sizes(config, len(devices), slices)
    # Auto: the compiler propagates shardings. (Explicit axes, the default, refuse concatenation
    # of the class token.)
    types = (AxisType.Auto,) * len(AXES)
    # An axis of 8 on a torus of 4x4x4 takes half of one of its axes.
    split = {"devices": devices, "allow_split_physical_axes": True}
    if slices == 1:
        return Mesh(mesh_utils.create_device_mesh(sizes, **split), AXES, axis_types=types)
    within = (sizes[0] // slices, *sizes[1:])
    grid = mesh_utils.create_hybrid_device_mesh(within, (slices, 1, 1), **split)
    return Mesh(grid, AXES, axis_types=types)


def mesh_sizes(config: MeshConfig, devices: int, slices: int = 1) -> tuple[int, ...]:
    """Devices along each axis."""
    sizes = [config.replica, config.fsdp, config.tensor]
    text = " x ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(size == 0 or size < -1 for size in sizes):
        raise UsageError(f"mesh {text}: sizes must be positive, and at most one of them -1")
    fixed = int(np.prod([size for size in sizes if size > 0]))
    if -1 in sizes and devices % fixed == 0:
        sizes[sizes.index(-1)] = devices // fixed
    if np.prod(sizes) != devices:
        raise UsageError(
            f"mesh {text} does not fit {devices} devices: choose sizes whose product is "
            f"{devices}, or -1 for one of them"
        )
    if sizes[0] % slices:
        raise UsageError(
            f"mesh {text} does not fit {slices} slices, which hold copies: choose a mesh.replica "
            f"that is a multiple of {slices}, or -1, and the others within one slice of "
            f"{devices // slices} devices"
        )
    return tuple(sizes)


def batch_sharding(mesh: Mesh, batch_size: int, accumulation: int = 1) -> NamedSharding:
    """Rows of the batch over replica and fsdp, in each microbatch."""
    devices = mesh.shape["replica"] * mesh.shape["fsdp"]
    parts = devices * accumulation
    if batch_size < 1 or batch_size % parts:
        below = batch_size // parts * parts
        choices = f"{below} or {below + parts}" if below > 0 else str(parts)
        over = f"{devices} devices" + (
            f" x {accumulation} microbatches" if accumulation > 1 else ""
        )
        raise UsageError(f"batch_size={batch_size} does not divide over {over}: use {choices}")
    return NamedSharding(mesh, BATCH_SPEC)


def param_shardings(params: Any, mesh: Mesh) -> Any:
    """A NamedSharding for every parameter, by RULES. `params` may be abstract."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, _spec(path_name(path), leaf.shape, mesh)), params
    )


def optimizer_shardings(
    optimizer: optax.GradientTransformation, state: Any, params: Any, shardings: Any, mesh: Mesh
) -> Any:
    """Moments lie as their parameters do; what has another shape (a counter, the rows and columns
    of a factored moment) is copied. `state`: the optimizer's, abstract, for these parameters."""
    copied = NamedSharding(mesh, P())
    return optax.tree.map_params(
        optimizer,
        lambda moment, param, sharding: sharding if moment.shape == param.shape else copied,
        state,
        params,
        shardings,
        transform_non_params=lambda _: copied,
    )


def path_name(path: tuple[Any, ...]) -> str:
    """A pytree path as "encoder/norm/scale"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    spec = next((spec for pattern, spec in RULES if re.fullmatch(pattern, name)), None)
    if spec is None:
        if np.prod(shape) > SMALL:
            raise UsageError(
                f"no sharding rule for parameter {name} {shape}: add one to RULES in "
                f"vit_jax/train/sharding.py"
            )
        return P()
    for size, axis in zip(shape, spec, strict=False):
        if axis and size % mesh.shape[axis]:
            raise UsageError(
                f"parameter {name} {shape} does not divide: {size} over mesh axis "
                f"{axis}={mesh.shape[axis]}; choose a mesh.{axis} that divides {size}"
            )
    return spec
