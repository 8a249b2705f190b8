"""What the compiler is told besides the program, by the kind of chip, and why."""

from jax.sharding import AbstractMesh, Mesh

from vit_jax.models.compiled import compiler_options as backend_options
from vit_jax.train.chips import TPU7X, V4, V5E, V5P, V6E, Chip, chip_of

# Gradients of data-parallel training are summed beside the matmuls that do not need the sums. The
# compiler does so by itself with all-gathers; all-reduces stay synchronous unless it is asked.
_ALL_REDUCE_BESIDE_COMPUTE = {
    "xla_enable_async_all_reduce": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
}
# Orders the schedule so that what was started early is needed late.
_LATENCY_HIDING = {"xla_tpu_enable_latency_hiding_scheduler": "true"}

# Above this size a matmul whose operand has to be gathered is split into one for each part, to
# gather beside it: H/14 over 16 chips of v5e with fsdp takes 265 M cycles for 8 layers that way,
# and 95 M where parameters are gathered first.
_NO_SPLIT_MATMULS = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}

# Of the others, trials on v5e changed nothing, and v5p and tpu7x have not been tried.
OPTIONS: dict[Chip, dict[str, str]] = {
    V4: _NO_SPLIT_MATMULS | _ALL_REDUCE_BESIDE_COMPUTE | _LATENCY_HIDING,
    V5E: _NO_SPLIT_MATMULS,
    V5P: _NO_SPLIT_MATMULS,
    V6E: _NO_SPLIT_MATMULS | _ALL_REDUCE_BESIDE_COMPUTE | _LATENCY_HIDING,
    TPU7X: _NO_SPLIT_MATMULS,
}


def compiler_options(chip: Chip | None) -> dict[str, str]:
    """For a step on such chips; none for what is no TPU."""
    return dict(OPTIONS.get(chip, {}))


def options_for(mesh: Mesh | AbstractMesh) -> dict[str, str]:
    """For a step on these devices."""
    if isinstance(mesh, AbstractMesh):
        return {}
    device = mesh.devices.flat[0]
    return backend_options("cpu") if device.platform == "cpu" else compiler_options(chip_of(device))
