"""What a run says of its machines at the start, and measures of them on the way."""

import dataclasses
import re
import time
import types

import pytest

from tests.train.small_run import small_config
from vit_jax.data.sources import open_source
from vit_jax.models.flops import multiply_adds
from vit_jax.models.variants import model_config
from vit_jax.train import chips, usage
from vit_jax.train.acts import CHECKPOINT, DATA_WAIT, EVALUATION, STEP, Acts
from vit_jax.train.clock import Clock, Pace
from vit_jax.train.config import run_config
from vit_jax.train.program import make_program
from vit_jax.train.sharding import make_mesh
from vit_jax.train.usage import MEASURED, Yardstick, description, yardstick
from vit_jax.weights.run_folder import RunFolder, read_json


def described(**values):
    mesh_sizes = values.pop("mesh")
    config = small_config(**values)
    config.mesh.update(mesh_sizes)
    run = run_config(config)
    mesh = make_mesh(run.mesh)
    return description(run, make_program(run, open_source("digits", "train", 16), mesh), mesh)


def test_a_run_says_how_it_is_laid_out():
    mesh, batch, state, largest = described(
        mesh={"replica": 2, "fsdp": 2, "tensor": 2}, batch_size=64, accumulation=4
    )
    assert mesh == "mesh: replica=2 x fsdp=2 x tensor=2, 8 devices (cpu)"
    assert batch == (
        "global batch: 64 = 1 host x 8 devices / 2 that share an image x 4 images x 4 accumulation"
    )
    assert "on each device" in state and "parameters: " in state
    # A quarter of 4 x 48 x 96 float32 numbers.
    assert "encoder/blocks/mlp/up/kernel 4x48x96 0.02 MB of 0.07 MB" in largest


def test_the_plainest_layout_is_told_plainly():
    _, batch, state, _ = described(mesh={"replica": 8}, batch_size=32)
    assert batch == "global batch: 32 = 1 host x 8 devices x 4 images x 1 accumulation"
    on_each, in_all = re.findall(r"[\d.]+ MB", state)
    assert on_each == in_all


def test_utilisation_is_of_the_models_flops():
    network = model_config("Pico/8", image_size=16, num_classes=10)
    measure = yardstick(run_config(small_config()), network, None)
    needed = multiply_adds(network, is_needed_only=True)
    assert measure.flops_per_image == 6 * needed
    with_teacher = yardstick(run_config(small_config()), network, network)
    assert with_teacher.flops_per_image == 8 * needed
    # Masked patches are predicted from all tokens.
    predicts = dataclasses.replace(network, patch_outputs=1)
    of_all = yardstick(run_config(small_config()), predicts, None).flops_per_image
    assert of_all == pytest.approx(6 * (multiply_adds(network) + 2 * network.width))
    assert multiply_adds(network) > needed
    assert measure.devices == measure.cores == 8 and measure.peak.flops > 1e8
    assert measure.peak.source == "measured on float32 matmuls of 1024x1024"
    yard = Yardstick(4, 8, flops_per_image=1e9, peak=usage.Peak(1e12, "a word"))
    pace = Pace(images_per_second=2000, data_wait=0.25, eta=1)
    record = yard.measure(pace, 2700, before={"seconds": 900, "core_hours": 3})
    assert record["images_per_second_per_device"] == 500
    assert record["model_flops_utilization"] == pytest.approx(0.5)
    assert (record["data_wait"], record["core_hours"]) == (0.25, 3 + 4)
    assert record["host_memory_gb"] > 0.05
    assert "1 TFLOP/s a device (a word)" in yard.text()


def test_the_denominator_of_a_known_chip_is_published():
    device = types.SimpleNamespace(device_kind="TPU v5 lite", platform="tpu")
    assert usage.peak_of(device, "bfloat16") == usage.Peak(197e12, "published bfloat16 peak of v5e")


def test_chips_are_called_as_jax_calls_them():
    from vit_jax.tpu.plan import tpu_devices
    from vit_jax.tpu.topologies import topology

    for name, chip in (("v4-8", chips.V4), ("v5p-8", chips.V5P), ("v6e-4", chips.V6E)):
        device = tpu_devices(topology(name))[0]
        assert chips.chip_of(device) == chip and device.num_cores == chip.cores


def test_waiting_for_data_is_a_share_of_training(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    acts = Acts()
    clock = Clock(start=10, total=30, batch_size=4, acts=acts)
    acts.begin(STEP)
    with acts.during(DATA_WAIT):
        now[0] += 1
    now[0] += 3
    for other in (EVALUATION, CHECKPOINT):
        with acts.during(other):
            now[0] += 50
    pace = clock.measure(18)
    assert pace == Pace(images_per_second=8, data_wait=0.25, eta=6)
    now[0] += 2
    assert clock.measure(19) == Pace(images_per_second=2, data_wait=0, eta=pytest.approx(22 / 3))
    assert clock.seconds == 106


def test_a_run_records_what_it_uses(trained_run):
    folder = RunFolder(trained_run)
    record = folder.metrics_records()[-1]
    told = {key for key in MEASURED if f"train/{key}" in record}
    assert told >= set(MEASURED) - {"device_memory_gb"}  # a CPU does not tell
    assert 0 <= record["train/data_wait"] <= 1
    assert 0 < record["train/model_flops_utilization"] < 1
    summary = read_json(folder.summary)
    assert summary["peak_flops_source"] == "measured on float32 matmuls of 1024x1024"
    assert summary["peak_flops_per_device"] > 1e8
