"""What our own kernels cost: by their schedules, and by their bytes."""

import importlib.metadata
import json

import pytest

from vit_jax.models import fused_attention, fused_norm
from vit_jax.tpu import kernels
from vit_jax.tpu.hlo import parse
from vit_jax.tpu.kernels import Kernel, kernel_cycles, scheduled_bundles
from vit_jax.train.chips import V5E, V5P

SIZES = (("channels", 64), ("heads", 12), ("line", 197), ("rows", 200), ("tokens", 197))
NORM = (("epsilon", 1e-6), ("rows", 200), ("width", 768))
# Of the compiler that these were counted with: bundles for one image of B/16.
COUNTED_WITH = "0.0.42.1"
BUNDLES = {
    Kernel(fused_attention.FORWARD, "bfloat16", SIZES, "v5e"): 2725,
    Kernel(fused_attention.BACKWARD, "bfloat16", SIZES, "v5e"): 7259,
    Kernel(fused_norm.FORWARD, "bfloat16", NORM, "v5e"): 550,
    Kernel(fused_norm.BACKWARD, "bfloat16", (*NORM, ("with_normal", 1)), "v5e"): 1432,
}


@pytest.mark.parametrize("kernel", BUNDLES, ids=lambda kernel: kernel.name)
def test_bundles_that_the_compiler_schedules(kernel):
    slack = 0 if importlib.metadata.version("libtpu") == COUNTED_WITH else 0.3
    assert scheduled_bundles(kernel) == pytest.approx(BUNDLES[kernel], rel=slack)


def call(**metadata):
    said = json.dumps({key: str(value) for key, value in metadata.items()}, indent=0)
    text = (
        "HloModule m\n\nENTRY %main (x: bf16[128,200,768]) -> bf16[128,200,768] {\n"
        "  %x = bf16[128,200,768]{2,1,0} parameter(0)\n  %s = f32[1,1,768]{2,1,0} constant({...})\n"
        "  ROOT %k = bf16[128,200,768]{2,1,0} custom-call(%x, %s, %s), custom_call_target="
        f'"tpu_custom_call", frontend_attributes={{kernel_metadata={said}}}, metadata={{}}\n}}\n'
    )
    return parse(text).entry.root


@pytest.mark.parametrize(
    ("chip", "moved", "cycles"),
    [
        (V5E, 1, 128 * 1000),
        (V5P, 1, 64 * 1000),  # two cores share out the images
        (V5E, 820_000_000, 1_500_000),  # a millisecond of HBM
    ],
)
def test_a_call_takes_its_schedule_or_its_bytes(monkeypatch, chip, moved, cycles):
    asked = []
    monkeypatch.setattr(kernels, "scheduled_bundles", lambda kernel: asked.append(kernel) or 1000)
    said = {"kernel": fused_norm.FORWARD, "dtype": "bfloat16", "steps": 128, "bytes": moved}
    assert kernel_cycles(call(**said, **dict(NORM)), chip) == cycles
    assert asked == [Kernel(fused_norm.FORWARD, "bfloat16", NORM, chip.name)]


def test_a_kernel_that_nothing_is_known_of():
    assert kernel_cycles(call(kernel="another", steps=1, bytes=1), V5E) is None
