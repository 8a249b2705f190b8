"""The real train step, compiled by the TPU compiler for slices that are not here."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.scaling import CONFIGS, named_slice
from vit_jax.errors import UsageError
from vit_jax.insight.plan_page import plan_page
from vit_jax.models import variants
from vit_jax.models.compiled import compiler_options as backend_options
from vit_jax.models.variants import model_config
from vit_jax.tpu import advice as advice_module
from vit_jax.tpu.advice import advice
from vit_jax.tpu.plan import NoCompiler, Site, _needed, make_plan, rough_memory, tpu_devices
from vit_jax.tpu.search import _promising, search
from vit_jax.tpu.text import plan_text, trials_text
from vit_jax.tpu.topologies import topology
from vit_jax.train.chips import CHIPS, V3, V5E, V6E
from vit_jax.train.compiler import compiler_options, options_for
from vit_jax.train.config import default_config, run_config
from vit_jax.train.flags import load_config, parse_config
from vit_jax.train.sharding import make_mesh


def pod_config(batch_size, name="Pico/8", image_size=32, model=(), **mesh):
    config = default_config(batch_size=batch_size, image_size=image_size, total="1 epoch")
    config.optimizer.schedule = "rsqrt"
    config.mesh.update(mesh)
    config.model.update(name=name, dtype="bfloat16", depth=2, **dict(model))
    config.data.update(name="visual_atoms_1k")
    config.optimizer.update(weight_decay=0.1, clip_norm=1.0)
    return run_config(config)


@pytest.fixture(scope="module")
def site():
    return Site.of(topology("v5litepod-16"))


@pytest.fixture(scope="module")
def data_parallel(site):
    return make_plan(pod_config(batch_size=16 * 32), site)


def test_memory_is_told_by_part(data_parallel):
    plan, memory = data_parallel, data_parallel.memory
    params = memory.parameters // 4
    assert memory.moments == 2 * memory.parameters + 8  # and two counters
    assert memory.batch == 32 * (32 * 32 * 3 + 4)
    assert params == sum(leaf.size for leaf in jax.tree.leaves(_params(plan)))
    assert plan.fits and memory.total > memory.parameters + memory.moments + memory.temporaries


def _params(plan):
    from vit_jax.models.network import abstract_params

    return abstract_params(
        model_config("Pico/8", depth=2, image_size=32, num_classes=1000, dtype="bfloat16")
    )


def test_time_follows_from_the_compilers_cycles(data_parallel):
    plan, cost = data_parallel, data_parallel.cost
    assert cost.seconds == pytest.approx(cost.cycles / V5E.clock / 1e9 + cost.waiting)
    assert cost.unknown_loops == cost.without_estimate == 0
    assert plan.images_per_second == 16 * 32 / cost.seconds
    assert 0 < plan.utilization < 1
    assert plan.total_steps == 2502 and plan.chip_hours == 16 * plan.hours
    # Gradients are summed over the replicas, and nothing else is sent.
    [sums] = cost.collectives
    assert (sums.kind, sums.network) == ("all-reduce", "ICI")
    assert sums.bytes >= data_parallel.memory.parameters / 2  # in bfloat16


def test_a_plan_is_told_in_words_and_on_a_page(data_parallel):
    text = plan_text(data_parallel, price=2.0)
    for words in (
        ": fits", "optimizer moments", "of 16 GiB HBM", "estimated cycles / 1.5 GHz",
        "= FLOPs per step / step time / (16 devices x 197 TFLOP/s)", "all-reduce", "2,502 steps",
        "at $2 a chip-hour", "█",
    ):  # fmt: skip
        assert words in text
    page = plan_page(data_parallel, price=2.0)
    assert (
        '"title":"Learning rate"' in page and "optimizer moments" in page and "chip-hours" in page
    )
    told = data_parallel.as_dict()
    assert told["topology"] == {
        "name": "v5litepod-16", "slices": 1, "chips": 16, "hosts": 4, "chip": "v5e", "shape": "4x4",
    }  # fmt: skip
    assert told["images_per_second"] == data_parallel.images_per_second


def test_fsdp_shares_the_state_out(site, data_parallel):
    plan = make_plan(pod_config(batch_size=16 * 32, fsdp=16), site)
    assert plan.memory.parameters < 0.2 * data_parallel.memory.parameters
    assert plan.memory.moments < 0.2 * data_parallel.memory.moments
    assert {"all-gather", "all-reduce"} <= {c.kind for c in plan.cost.collectives}


def test_slices_hold_copies_and_talk_over_the_network_between_them():
    site = Site.of(topology("v5litepod-4", slices=2))
    plan = make_plan(pod_config(batch_size=8 * 8, fsdp=2), site)
    assert plan.mesh == {"replica": 4, "fsdp": 2, "tensor": 1} and plan.topology.chips == 8
    networks = {(c.network, c.kind) for c in plan.cost.collectives}
    assert ("DCN", "all-reduce") in networks and ("ICI", "all-gather") in networks
    with pytest.raises(UsageError, match="does not fit 2 slices, which hold copies"):
        make_plan(pod_config(batch_size=64, replica=1, fsdp=8), site)


def test_a_mesh_that_the_torus_does_not_have_as_an_axis():
    """8 of a 4x4x4: half of one axis, all of another."""
    mesh = make_mesh(pod_config(64, fsdp=8).mesh, tpu_devices(topology("v5p-128")))
    assert dict(mesh.shape) == {"replica": 8, "fsdp": 8, "tensor": 1}


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        ({"replica": 3}, "mesh replica=3 x fsdp=1 x tensor=1 does not fit 16 devices"),
        ({"fsdp": 5}, "does not fit 16 devices"),
        ({"tensor": 16}, "choose a mesh.tensor that divides"),
    ],
)
def test_a_mesh_that_does_not_fit_the_slice_is_told_in_one_line(site, mesh, says):
    with pytest.raises(UsageError, match=says) as error:
        make_plan(pod_config(batch_size=512, **mesh), site)
    assert "\n" not in str(error.value)


def test_without_a_compiler_memory_is_estimated(data_parallel, monkeypatch):
    def missing(slice_):
        raise NoCompiler("no TPU compiler here")

    monkeypatch.setattr("vit_jax.tpu.plan.tpu_devices", missing)
    said = []
    site = Site.of(topology("v5litepod-16"), said.append)
    plan = make_plan(pod_config(batch_size=16 * 32), site)
    assert said == ["no TPU compiler here; memory is estimated, times are unknown"]
    assert plan.cost is None and plan.fits and "ESTIMATED: no TPU compiler" in plan_text(plan)
    # What is stored is known exactly.
    for part in ("parameters", "moments", "batch"):
        assert getattr(plan.memory, part) == getattr(data_parallel.memory, part)
    too_much = make_plan(pod_config(2**20, "B/16", image_size=64), site)
    assert not too_much.fits and "DOES NOT FIT" in plan_text(too_much)
    with pytest.raises(UsageError, match="needs the TPU compiler"):
        search(pod_config(batch_size=512), site, 2)


def test_the_estimate_knows_what_the_knobs_do(site):
    plain = pod_config(batch_size=2**20)
    plain = dataclasses.replace(plain, model=dataclasses.replace(plain.model, depth=4))

    def total(**values):
        return rough_memory(dataclasses.replace(plain, **values), site).total

    assert total(accumulation=4) < 0.4 * total()
    assert total(model=dataclasses.replace(plain.model, remat="full")) < 0.8 * total()
    sharded = dataclasses.replace(plain, batch_size=512)
    fsdp = dataclasses.replace(sharded, mesh=dataclasses.replace(plain.mesh, fsdp=16))
    assert rough_memory(fsdp, site).parameters < 0.2 * rough_memory(sharded, site).parameters


@pytest.mark.slow
def test_a_batch_that_cannot_fit_gets_advice_that_fits(monkeypatch):
    monkeypatch.setattr(
        advice_module, "KNOBS", {"accumulation": advice_module.KNOBS["accumulation"]}
    )
    config = pod_config(131_072, "B/16")
    site = Site.of(topology("v5litepod-1"))
    plan = make_plan(config, site)
    assert not plan.fits and plan.cost is None and plan.memory.total > plan.hbm
    [trial] = advice(config, plan, site)
    assert trial.plan.fits and trial.saved > 0 and trial.plan.images_per_second > 0
    # The flags lead to just what was compiled.
    flags = ["--config=configs/demo.py", *trial.flags]
    assert parse_config(flags).accumulation == trial.config.accumulation == 2
    assert "--config.accumulation=2" in trials_text([trial])


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (29.50G) exceeds available HBM (15.75G).",
            29.5 + 1,
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 20.25G of 15.75G hbm. Exceeded hbm capacity by 4.50G.",
            20.25,
        ),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.", None),
        ("INTERNAL: something else", None),
    ],
)
def test_what_the_compiler_says_when_it_gives_up(message, needed):
    assert _needed(message, 2**30) == (needed and needed * 2**30)


def test_a_search_tries_the_likeliest_first(site):
    config = pod_config(batch_size=512)
    candidates = list(_promising(config, site))
    assert candidates[0] == dataclasses.replace(
        config, mesh=dataclasses.replace(config.mesh, replica=-1)
    )
    assert candidates == list(_promising(config, site))
    for candidate in candidates:
        assert 16 % (candidate.mesh.fsdp * candidate.mesh.tensor) == 0
    # Nothing of the training changes.
    assert {c.batch_size for c in candidates} == {512}
    [best] = search(config, site, 1)
    assert best.plan.fits and best.flags == ()


def test_compiler_options_are_known_to_the_compiler():
    for chip in CHIPS:
        assert (compiler_options(chip) != {}) == (chip != V3)
    devices = tpu_devices(topology("v6e-4"))
    mesh = Mesh(devices, ("x",))
    vit, resnet = model_config("B/16"), model_config("R50x1")
    assert options_for(mesh, vit) == compiler_options(V6E) and compiler_options(V3) == {}
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("x")))
    double = jax.jit(lambda x: 2 * x, compiler_options=options_for(mesh, vit))
    double.lower(x).compile()
    here = Mesh(jax.devices(), ("x",))
    assert options_for(here, resnet) == options_for(here, vit) == backend_options("cpu") != {}
    # What concerns flat blocks is for networks of them only.
    flat = model_config("B/16", attention="flat")
    assert options_for(here, flat).items() > backend_options("cpu").items()
    for options in (
        {"axial": True, "pooling": "gap"},
        {"qk_norm": True},
        {"positions": "relative"},
    ):
        other = dataclasses.replace(flat, **options)
        assert options_for(here, other) == backend_options("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BiT-R26x1", "AxialResNet26"])
def test_resnets_are_compiled_for_a_pod_slice(name, monkeypatch):
    # Two units are enough to see each kind; the compiler takes minutes for whole ResNets.
    monkeypatch.setitem(variants.STAGES, 26, (1, 1))
    monkeypatch.setitem(variants.AXIAL_STAGES, 26, (1, 1))
    config = default_config(batch_size=4 * 8, image_size=32, total="1 epoch")
    config.model.update(name=name, dtype="bfloat16")
    config.data.update(name="visual_atoms_1k")
    config.mesh.update(fsdp=2)
    assert make_plan(run_config(config), Site.of(topology("v5litepod-4"))).fits


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_compiled_for_the_slice_it_names(name):
    """Its batch and mesh; two layers and small images, so that it takes seconds. All of it is
    compiled in benchmarks/scaling.py."""
    config = load_config(f"configs/{name}.py")
    patch = model_config(config.model.name).patch_size[0]
    config.model.depth, config.image_size = 2, 2 * patch
    plan = make_plan(run_config(config), Site.of(topology(named_slice(name))))
    assert plan.fits and plan.batch_size == config.batch_size and plan.cost.collectives
