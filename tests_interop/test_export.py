"""Exported networks in processes that know nothing of this package."""

import subprocess
import sys

import numpy as np
import pytest

import vit_jax
from vit_jax.cli import dispatch, run_verb
from vit_jax.weights.serving import LINES

# Whatever is installed: importing these is an error in the process that serves.
ALONE = """
import sys
sys.modules |= dict.fromkeys({hidden!r})
import numpy as np
for batch in (1, 7):
    images = np.load(f"images{{batch}}.npy")
{lines}
    np.save(f"found{{batch}}.npy", probabilities)
assert not [name for name in sys.modules if name.startswith({hidden!r}) and sys.modules[name]]
"""


@pytest.mark.parametrize(
    ("file_format", "hidden"),
    [
        ("stablehlo", ("vit_jax", "flax", "orbax", "torch")),
        ("onnx", ("vit_jax", "flax", "jax", "torch")),
    ],
)
@pytest.mark.parametrize("run", ["gap_run", "token_run"])
def test_an_exported_network_serves_alone(run, file_format, hidden, tmp_path, request):
    run = request.getfixturevalue(run)
    command = ["export", str(run), str(tmp_path / "OUT"), f"--format={file_format}"]
    assert run_verb(dispatch, command) == 0
    model, rng = vit_jax.load(run), np.random.default_rng(0)
    batches = {n: rng.integers(0, 256, (n, 48, 48, 3), dtype=np.uint8) for n in (1, 7)}
    for size, batch in batches.items():
        np.save(tmp_path / f"images{size}.npy", batch)
    lines = "\n".join(f"    {line}" for line in LINES[file_format].splitlines())
    script = ALONE.format(hidden=hidden, lines=lines)
    subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, check=True)
    for size, batch in batches.items():
        logits = np.asarray(model(batch.astype(np.float32) / 127.5 - 1), np.float64)
        expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        assert expected.std() > 1e-3  # not the same for all classes
        found = np.load(tmp_path / f"found{size}.npy")
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
