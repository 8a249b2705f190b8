"""vit-jax export: a file that serves with jax alone. ONNX is in tests_interop."""

import dataclasses
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import vit_jax
from tests.weights.test_npz import images_for, params_of, random_model
from vit_jax.cli import dispatch, run_verb
from vit_jax.weights.convert import write_run_folder
from vit_jax.weights.export import export
from vit_jax.weights.run_folder import read_json, write_json
from vit_jax.weights.serving import LINES


def test_it_serves_in_a_process_that_has_only_jax(trained_run, tmp_path, capsys):
    assert run_verb(dispatch, ["export", str(trained_run), str(tmp_path / "OUT")]) == 0
    assert "probabilities differ by" in capsys.readouterr().out
    rng, model = np.random.default_rng(0), vit_jax.load(trained_run)
    for n in (1, 7):
        np.save(tmp_path / f"{n}.npy", rng.integers(0, 256, (n, 16, 16, 3), dtype=np.uint8))
    lines = "\n".join(f"    {line}" for line in LINES["stablehlo"].splitlines())
    script = f"""
import sys
sys.modules |= dict.fromkeys(("vit_jax", "flax", "orbax"))  # None: importing it fails
import numpy as np
for n in (1, 7):
    images = np.load(f"{{n}}.npy")
{lines}
    np.save(f"found{{n}}.npy", probabilities)
"""
    subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, check=True)
    for n in (1, 7):
        images = np.load(tmp_path / f"{n}.npy").astype(np.float32) / 127.5 - 1
        expected = jax.nn.softmax(model(images))
        assert np.std(expected) > 1e-4
        np.testing.assert_allclose(np.load(tmp_path / f"found{n}.npy"), expected, atol=1e-5)
    about = json.loads((tmp_path / "OUT" / "model.json").read_text())
    assert about["input"]["shape"] == ["batch", 16, 16, 3] and len(about["class_names"]) == 10


def test_it_is_for_cpus_and_tpus_without_any_kernel_of_ours(tmp_path):
    model = random_model("token")
    network = dataclasses.replace(model.config, attention="fused")  # as a pod may have trained it
    write_run_folder(tmp_path / "run", network, params_of(model))
    done = export(tmp_path / "run", tmp_path / "out")
    assert done.largest_difference < 1e-6 and done.bytes == done.file.stat().st_size
    exported = jax.export.deserialize(bytearray(done.file.read_bytes()))
    assert exported.platforms == ("cpu", "tpu")
    assert str(exported.in_avals[0]) == "uint8[batch,32,32,3]"
    assert "tpu_custom_call" not in exported.mlir_module()


@pytest.mark.parametrize("which", ["map", "hybrid", "bit"])
def test_other_networks_are_exported_too(which, tmp_path):
    vit_jax.save_npz(random_model(which), tmp_path / "model.npz")
    assert export(tmp_path / "model.npz", tmp_path / "out").largest_difference < 1e-6


def test_a_run_with_several_labels_answers_by_the_sigmoid(tmp_path):
    model = random_model("gap")
    write_run_folder(tmp_path / "run", model.config, params_of(model))
    config = read_json(tmp_path / "run" / "config.json")
    write_json(tmp_path / "run" / "config.json", config | {"loss": "sigmoid"})
    done = export(tmp_path / "run", tmp_path / "out")
    images = np.uint8(127.5 * (images_for(model) + 1))
    exported = jax.export.deserialize(bytearray(done.file.read_bytes()))
    expected = jax.nn.sigmoid(model(images.astype(np.float32) / 127.5 - 1))
    np.testing.assert_allclose(exported.call(images), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{run}", "{out}"], "is there already"),
        (["{out}/nowhere", "{out}/new"], "no such file or folder"),
        (["{run}", "{out}/new", "--format=onx"], "Did you mean onnx?"),
        (["Pico/8", "{out}/new"], "no such file or folder"),
        (["{run}", "gs://bucket/new"], "a folder on disk"),
        (["{headless}", "{out}/new"], "no head to give probabilities"),
    ],
)
def test_mistakes(trained_run, tmp_path, arguments, says, capsys):
    vit_jax.save_npz(random_model("headless"), tmp_path / "headless.npz")
    (tmp_path / "out").mkdir()
    places = {"run": trained_run, "out": tmp_path / "out", "headless": tmp_path / "headless.npz"}
    assert run_verb(dispatch, ["export", *(a.format(**places) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
    assert not list((tmp_path / "out").iterdir())
