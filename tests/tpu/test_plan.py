"""The real train step, compiled by the TPU compiler for slices that are not here."""

import pytest

from vit_jax.errors import UsageError
from vit_jax.models import variants
from vit_jax.tpu.plan import make_plan
from vit_jax.tpu.topologies import topology
from vit_jax.train.config import default_config, run_config
from vit_jax.train.flags import load_config


@pytest.mark.parametrize(
    ("name", "chips", "compiler_topology"),
    [
        ("v4-8", 4, "v4:2x2x1"),
        ("v5p-128", 64, "v5p:4x4x4"),
        ("v5litepod-16", 16, "v5e:4x4"),
        ("v6e-256", 256, "v6e:16x16"),
    ],
)
def test_names_of_slices(name, chips, compiler_topology):
    found = topology(name)
    assert (found.chips, found.compiler_topology) == (chips, compiler_topology)


@pytest.mark.parametrize(
    ("name", "says"),
    [("v9-8", "GENERATION one of v4"), ("v5p-9", "sizes 8, 16"), ("v5e", "v9|as in")],
)
def test_unknown_slices_are_refused(name, says):
    with pytest.raises(UsageError, match=says):
        topology(name)


def pod_config(batch_size, **mesh):
    config = default_config(batch_size=batch_size, total="1 epoch")
    config.mesh.update(mesh)
    config.model.update(name="Ti/16", dtype="bfloat16", representation_size=192)
    config.data.update(name="visual_atoms_1k")
    config.optimizer.update(weight_decay=0.1, clip_norm=1.0)
    return run_config(config)


@pytest.mark.slow
def test_the_largest_vit_fits_with_fsdp():
    config = load_config("configs/scaling.py:model=G/14")
    config.batch_size = 16 * 64  # as many on a chip as on the 256 that share the config's batch
    plan = make_plan(run_config(config), "v5litepod-16")
    assert plan.fits and plan.state_bytes < 2e9


@pytest.mark.slow
def test_a_step_is_compiled_for_a_pod_slice():
    plan = make_plan(pod_config(batch_size=16 * 32), "v5litepod-16")
    assert plan.fits
    # float32 parameters and two moments of Ti/16 with pre_logits, on each chip (data-parallel);
    # a width of 192 fills its tiles of 128 lanes to three quarters.
    exact = 3 * 4 * 5_754_472
    assert exact < plan.state_bytes < 4 / 3 * exact
    assert plan.temporary_bytes > 1e8
    assert "fits" in plan.text() and plan.as_dict()["total_steps"] == 2502
    # FSDP shares the state out and keeps activations split over the batch: where it does not, each
    # chip holds those of the whole batch, three times as much and more.
    fsdp = make_plan(pod_config(batch_size=16 * 32, fsdp=16), "v5litepod-16")
    assert fsdp.state_bytes < 0.2 * plan.state_bytes
    assert fsdp.temporary_bytes < 1.1 * plan.temporary_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["R26+Pico/32", "BiT-R26x1", "AxialResNet26", "Axial-Pico/8"])
def test_every_family_is_compiled_for_a_pod_slice(name, monkeypatch):
    # Two units are enough to see each kind; the compiler takes minutes for whole ResNets.
    monkeypatch.setitem(variants.STAGES, 26, (1, 1))
    monkeypatch.setitem(variants.AXIAL_STAGES, 26, (1, 1))
    config = default_config(batch_size=4 * 8, image_size=32, total="1 epoch")
    config.model.update(name=name, dtype="bfloat16")
    config.data.update(name="visual_atoms_1k")
    config.mesh.update(fsdp=2)
    assert make_plan(run_config(config), "v5litepod-4").fits


def test_a_step_that_does_not_fit_says_so_in_one_line():
    with pytest.raises(UsageError, match="does not fit on v5litepod-4") as error:
        make_plan(pod_config(batch_size=4 * 1024), "v5litepod-4")
    assert "\n" not in str(error.value)
