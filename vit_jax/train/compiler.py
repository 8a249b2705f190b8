"""What the TPU compiler is told besides the program, by the kind of chip, and why."""

from jax.sharding import AbstractMesh, Mesh

from vit_jax.train.chips import V4, V6E, Chip, chip_of

# Gradients of data-parallel training are summed beside the matmuls that do not need the sums. The
# compiler does so by itself with all-gathers; all-reduces stay synchronous unless it is asked.
_ALL_REDUCE_BESIDE_COMPUTE = {
    "xla_enable_async_all_reduce": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
}
# Orders the schedule so that what was started early is needed late.
_LATENCY_HIDING = {"xla_tpu_enable_latency_hiding_scheduler": "true"}

# On v5e trials changed nothing, v5p and tpu7x have not been tried: nothing is set there.
OPTIONS: dict[Chip, dict[str, str]] = {
    V4: _ALL_REDUCE_BESIDE_COMPUTE | _LATENCY_HIDING,
    V6E: _ALL_REDUCE_BESIDE_COMPUTE | _LATENCY_HIDING,
}


def compiler_options(chip: Chip | None) -> dict[str, str]:
    """For a step on such chips; none for what is no TPU."""
    return dict(OPTIONS.get(chip, {}))


def options_for(mesh: Mesh | AbstractMesh) -> dict[str, str]:
    """For a step on these devices."""
    if isinstance(mesh, AbstractMesh):
        return {}
    return compiler_options(chip_of(mesh.devices.flat[0]))
