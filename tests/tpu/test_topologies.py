"""The table of slices, as the compiler knows them."""

import pytest

from vit_jax.errors import UsageError
from vit_jax.tpu.plan import tpu_devices
from vit_jax.tpu.topologies import GENERATIONS, topology
from vit_jax.train.chips import CHIPS, chip_of


@pytest.mark.parametrize(
    ("name", "slices"),
    [
        ("v4-8", 1),
        ("v4-128", 1),
        ("v5p-8", 1),
        ("v5p-128", 1),
        ("v5p-2048", 1),
        ("v5litepod-1", 1),
        ("v5litepod-4", 1),
        ("v5litepod-8", 1),
        ("v5e-16", 1),
        ("v5litepod-256", 2),
        ("v6e-8", 1),
        ("v6e-256", 1),
        ("tpu7x-8", 1),
        ("tpu7x-128", 4),
    ],
)
def test_the_table_agrees_with_libtpu(name, slices):
    slice_ = topology(name, slices)
    devices = tpu_devices(slice_)
    assert len(devices) == slice_.devices
    places = {(getattr(d, "slice_index", 0), *d.coords) for d in devices}
    assert len(places) == slice_.chips
    assert len({device.process_index for device in devices}) == slice_.hosts
    assert chip_of(devices[0]) == slice_.chip


def test_what_launchers_read():
    slice_ = topology("v5litepod-256", slices=2)
    assert (slice_.name, slice_.gke_topology) == ("v5litepod-256", "16x16")
    assert slice_.generation.gke_accelerator == "tpu-v5-lite-podslice"
    assert slice_.gke_machine_type == "ct5lp-hightpu-4t"
    assert (slice_.chips, slice_.hosts, slice_.chips_per_host) == (512, 128, 4)
    assert topology("v6e-8").gke_machine_type == "ct6e-standard-8t"
    assert topology("v5e-4").name == "v5litepod-4"
    assert topology("tpu7x-128").text() == "tpu7x-128 (64 chips of tpu7x, 16 hosts)"


def test_a_clock_is_the_peak_over_what_the_matrix_units_do_in_a_cycle():
    """Matrix units are squares of multiply-adds: four of 128 in a core, of 256 from v6e on."""
    for chip in CHIPS:
        side = 256 if chip.name in ("v6e", "tpu7x") else 128
        units = 2 if chip.name == "v3" else 4
        per_cycle = chip.cores * units * side**2 * 2
        assert chip.clock * 1e9 * per_cycle == pytest.approx(chip.peak * 1e12, rel=0.01)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v9-8", "GENERATION one of v4"),
        ("v5p-9", "comes in sizes 8, 16"),
        ("v5e", "as in"),
        ("v5litpod-16", "Did you mean v5litepod"),
    ],
)
def test_unknown_slices_are_refused(name, says):
    with pytest.raises(UsageError, match=says) as error:
        topology(name)
    assert "\n" not in str(error.value)


def test_generations_have_names_of_their_own():
    names = [name for g in GENERATIONS for name in {g.prefix, g.chip.name}]
    assert len(names) == len(set(names))
