"""Each kind of network with every axis of the mesh in use: what is sent, and that nothing large is
held whole by every chip."""

import importlib.metadata
import math
import re

import jax
import pytest

from vit_jax.data.sources import open_source
from vit_jax.models import variants
from vit_jax.tpu.cost import KINDS, Machine, replay
from vit_jax.tpu.hlo import parse
from vit_jax.tpu.plan import tpu_devices
from vit_jax.tpu.topologies import topology
from vit_jax.train.config import default_config, run_config
from vit_jax.train.program import make_program
from vit_jax.train.sharding import SMALL, make_mesh, path_name

# Of the compiler that these were counted with; another may do with a few more or less.
COUNTED_WITH = "0.0.42.1"
COLLECTIVES = {
    ("Pico/8", "plain"): {"all-reduce": 25, "all-gather": 19, "reduce-scatter": 6},
    ("R26+Pico/32", "plain"): {"all-reduce": 25, "all-gather": 37, "reduce-scatter": 6},
    ("Axial-Pico/8", "plain"): {"all-reduce": 33, "all-gather": 35, "reduce-scatter": 12},
    ("Pico/8", "auto"): {"all-reduce": 26, "all-gather": 20, "reduce-scatter": 8},
    ("Axial-Pico/8", "auto"): {"all-reduce": 33, "all-gather": 35, "reduce-scatter": 16},
}

BATCH = 16 * 13  # a size that no other axis has, so that it is found where the batch is not split


@pytest.fixture(scope="module", params=COLLECTIVES)
def compiled(request):
    """(name, program, text, machine) of two blocks for 16 chips: 2 replicas x 4 fsdp x 2 tensor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(variants.STAGES, 26, (1, 1))  # the compiler takes minutes for whole ResNets
        config = default_config(batch_size=BATCH, image_size=32, total="1 epoch")
        name, attention = request.param
        config.model.update(name=name, dtype="bfloat16", depth=2, attention=attention)
        config.data.update(name="visual_atoms_1k")
        config.mesh.update(fsdp=4, tensor=2)
        run = run_config(config)
        slice_ = topology("v5e-16")
        mesh = make_mesh(run.mesh, tpu_devices(slice_))
        program = make_program(run, open_source(run.data.name, "train", (32, 32)), mesh)
        module = parse(program.lower().compile().as_text())
    machine = Machine(slice_.chip, [device.coords for device in mesh.devices.flat])
    return request.param, program, module, machine


def test_the_number_of_collectives(compiled):
    name, _, module, machine = compiled
    found = {c.kind: c.count for c in replay(module, machine).collectives}
    slack = 0 if importlib.metadata.version("libtpu") == COUNTED_WITH else 0.5
    for kind in KINDS:
        expected = COLLECTIVES[name].get(kind, 0)
        assert abs(found.get(kind, 0) - expected) <= slack * expected, found


def test_no_large_tensor_is_on_every_chip(compiled):
    _, program, module, _ = compiled
    for path, leaf in jax.tree_util.tree_leaves_with_path(program.state):
        if leaf.size > SMALL:
            assert not leaf.sharding.is_fully_replicated, path_name(path)
    whole = [
        i.type
        for computation in module.computations.values()
        for i in computation.instructions
        for sizes in re.findall(r"\w+\[([\d,]+)\]", i.type)
        if BATCH in (shape := [int(size) for size in sizes.split(",")]) and math.prod(shape) > SMALL
    ]
    assert not whole
