"""What the compiler is told besides the program, by the kind of chip, and why."""

from jax.sharding import AbstractMesh, Mesh

from vit_jax.models.compiled import compiler_options as backend_options
from vit_jax.models.config import NetworkConfig, ViTConfig
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

# What one operation may take of the 128 MB beside the cores. B/16 on 128 images takes 146.6 million
# cycles with 32 MB, 154.9 with the default of 16, 150.9 with 48, 148.1 with 64, 154.7 with 96.
_ROOM_FOR_MATMULS = {"xla_tpu_scoped_vmem_limit_kib": "32768"}

# Before XLA sums on a CPU it writes what is to be summed to memory, and then parts of the sums.
# That is better along columns, which flat blocks leave to matmuls; rows it can sum as it computes
# them.
_SUMS_AT_ONCE = {"xla_disable_hlo_passes": "tree_reduction_rewriter"}

# Of the others, trials on v5e changed nothing, and v5p and tpu7x have not been tried.
OPTIONS: dict[Chip, dict[str, str]] = {
    V4: _NO_SPLIT_MATMULS | _ALL_REDUCE_BESIDE_COMPUTE | _LATENCY_HIDING,
    V5E: _NO_SPLIT_MATMULS | _ROOM_FOR_MATMULS,
    V5P: _NO_SPLIT_MATMULS,
    V6E: _NO_SPLIT_MATMULS | _ALL_REDUCE_BESIDE_COMPUTE | _LATENCY_HIDING,
    TPU7X: _NO_SPLIT_MATMULS,
}


def compiler_options(chip: Chip | None) -> dict[str, str]:
    """For a step on such chips; none for what is no TPU."""
    return dict(OPTIONS.get(chip, {}))


def options_for(mesh: Mesh | AbstractMesh, network: NetworkConfig) -> dict[str, str]:
    """For a step of this network on these devices."""
    if isinstance(mesh, AbstractMesh):
        return {}
    device = mesh.devices.flat[0]
    if device.platform != "cpu":
        return compiler_options(chip_of(device))
    return backend_options("cpu") | (_SUMS_AT_ONCE if _is_flat(network) else {})


def _is_flat(network: NetworkConfig) -> bool:
    """Do its blocks, which are most of it, sum along rows only?"""
    return (
        isinstance(network, ViTConfig)
        and network.attention == "flat"
        and network.positions != "relative"
        and network.stem_stages is None
        and not (network.axial or network.qk_norm)
    )
