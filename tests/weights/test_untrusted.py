"""Weights and run folders from elsewhere are data: reading them runs nothing and writes nothing."""

import ast
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import vit_jax

PACKAGE = pathlib.Path(vit_jax.__file__).parent

# Loads what it is given under an audit hook: the interpreter itself tells of every unpickled name,
# every process that is started and every file that is written.
LOAD = """
import os, sys, json
import vit_jax
from vit_jax.errors import UsageError
for path in sys.argv[1:3]:  # the good ones: all that is imported late is, before the hook
    vit_jax.load(path)
seen = []
WATCHED = ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec",
           "os.posix_spawn", "os.fork", "os.rename", "os.remove", "os.mkdir")
def hook(event, arguments):
    if event in WATCHED:
        seen.append(f"{event} {arguments}"[:200])
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append(f"open {arguments}"[:200])
sys.addaudithook(hook)
for path in sys.argv[1:]:
    try:
        vit_jax.load(path)
        print(json.dumps([path, "loaded"]))
    except UsageError as error:
        print(json.dumps([path, str(error)]))
print(json.dumps(seen))
"""


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.fixture(scope="module")
def files(trained_run, tmp_path_factory):
    """Good ones, and some that would do harm to who trusts them."""
    place = tmp_path_factory.mktemp("files")
    payload = Payload(place / "harm")
    vit_jax.save_npz(vit_jax.load(trained_run), place / "good.npz")
    (place / "pickle.npz").write_bytes(pickle.dumps(payload))
    np.savez(place / "objects.npz", cls=np.array([payload], dtype=object))
    with zipfile.ZipFile(place / "escape.npz", "w") as archive:
        archive.writestr("../../harm.npy", (place / "good.npz").read_bytes())
        archive.writestr("/tmp/harm.npy", b"\x93NUMPY")
    shutil.copytree(trained_run, place / "run")
    (step,) = (place / "run" / "checkpoints").iterdir()
    for path in step.rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(pickle.dumps(payload))
    shutil.copytree(trained_run, place / "config")
    config = json.loads((place / "config" / "config.json").read_text())
    config["network"] = {"py/reduce": ["os.mkdir", [str(place / "harm")]], "name": "__import__"}
    (place / "config" / "config.json").write_text(json.dumps(config))
    return place


def test_reading_runs_nothing_and_writes_nothing(trained_run, files):
    bad = [files / name for name in ("pickle.npz", "objects.npz", "escape.npz", "run", "config")]
    before = sorted(files.rglob("*"))
    result = subprocess.run(
        [sys.executable, "-c", LOAD, trained_run, files / "good.npz", *bad],
        capture_output=True, text=True, env=os.environ | {"JAX_COMPILATION_CACHE_DIR": ""},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    *outcomes, seen = map(json.loads, result.stdout.splitlines())
    assert [text for _, text in outcomes[:2]] == ["loaded", "loaded"]
    assert all(text != "loaded" for _, text in outcomes[2:]) and len(outcomes) == 7
    assert seen == []
    assert sorted(files.rglob("*")) == before  # none of the payloads, nothing unpacked


def test_no_code_of_ours_could():
    """Nothing in the package unpickles files, evaluates text or unpacks archives."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            where = path.relative_to(PACKAGE).as_posix()
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                found |= {(where, name) for name in names & FORBIDDEN_MODULES}
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                if name in FORBIDDEN_CALLS:
                    found.add((where, name))
                if ast.unparse(node.func) == "np.load":
                    assert "allow_pickle=False" in ast.unparse(node), where
    # What the parent process sends to its own workers, never a file.
    assert found == {("data/prepare.py", "cloudpickle")}


FORBIDDEN_MODULES = {
    "pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "torch",
}
FORBIDDEN_CALLS = {"eval", "exec", "extract", "extractall", "unpack_archive", "system"}
