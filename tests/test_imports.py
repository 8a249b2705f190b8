"""What is imported, and when."""

import subprocess
import sys


def modules_after(code):
    script = f"{code}\nimport sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in result.stdout.splitlines()[-1].split()}


def test_tensorflow_and_torch_are_never_imported():
    rooms = "main cli demo train.loop evaluate.evaluators insight.report tpu.plan weights.load"
    loaded = modules_after("".join(f"import vit_jax.{room};" for room in rooms.split()))
    assert "jax" in loaded and "grain" in loaded
    assert not loaded & {"tensorflow", "torch", "tensorflow_datasets"}


def test_importing_the_package_is_light():
    loaded = modules_after("import vit_jax; import vit_jax.cli")
    assert not loaded & {"jax", "flax", "grain", "sklearn", "matplotlib"}
