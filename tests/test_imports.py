"""What is imported, and when."""

import subprocess
import sys

from tests.data.images import jpeg, photo, write


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


def test_a_run_on_a_folder_works_where_tensorflow_cannot_be_imported(tmp_path):
    """Whether it is installed or not: importing it, or anything of it, is an error here."""
    for seed in range(8):
        folder = tmp_path / "data" / "train" / f"class{seed % 2}"
        write(folder / f"{seed}.jpg", jpeg(photo(seed=seed)))
    script = f"""
import sys
sys.modules |= dict.fromkeys(("tensorflow", "tensorflow_datasets"))  # None: importing it fails
import vit_jax
from vit_jax.cli import dispatch
sys.exit(dispatch(["train", "--config=configs/demo.py", "--workdir={tmp_path}/run",
    "--config.data.name={tmp_path}/data", "--config.evaluators.glyphs.data={tmp_path}/data",
    "--config.evaluators.glyphs.split=train", "--config.total=2 steps", "--config.batch_size=8",
    "--config.model.depth=1"]))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "summary.json").is_file()


def test_help_imports_nothing_heavy():
    loaded = modules_after(
        "from vit_jax.cli import dispatch\ntry:\n    dispatch(['--help'])\nexcept SystemExit: pass"
    )
    assert "argparse" in loaded
    assert not loaded & {"jax", "flax", "numpy", "grain", "orbax", "cv2", "matplotlib"}
