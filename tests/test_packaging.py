"""The wheel and the sdist: built from a copy of the tree, checked, installed and used elsewhere."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import yaml
from packaging.metadata import Metadata

from vit_jax.home import home

ROOT = pathlib.Path(__file__).parents[1]
NOT_COPIED = (".git", ".venv*", ".*_cache", "__pycache__", "runs", "build", "dist", "*.egg-info")
BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]
build_meta.build_wheel(out)  # sets sys.argv
build_meta.build_sdist(out)
"""
JOB = ("--name=b16", "--topology=v5litepod-16")
TRAIN = ("vit-jax", "train", "--config=configs/pretrain.py:model=B/16", "--workdir=gs://mine/b16")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both, and what the build said."""
    tree, out = tmp_path_factory.mktemp("tree") / "vit_jax", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_COPIED))
    log = run(sys.executable, "-c", BUILD, str(out), cwd=tree)
    return out, log.stdout + log.stderr


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A folder that has the package as the wheel brings it, and nothing of the tree."""
    [wheel] = built[0].glob("*.whl")
    target = tmp_path_factory.mktemp("installed")
    flags = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "install", *flags, f"--target={target}", str(wheel))
    return target


def run(*command, code=0, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def vit_jax(installed, cwd, *arguments, code=0):
    """What the console script does, with the installed package."""
    script = "import sys; from vit_jax.cli import main; sys.exit(main())"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return run(sys.executable, "-c", script, *arguments, code=code, cwd=cwd, env=environment)


def metadata_of(path):
    """The text that a package index reads."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
            return archive.read(name)
    with tarfile.open(path) as archive:
        [name] = [n for n in archive.getnames() if n.count("/") == 1 and n.endswith("/PKG-INFO")]
        return archive.extractfile(name).read()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_its_metadata_is_valid(built, kind):
    [path] = built[0].glob(kind)
    metadata = Metadata.from_email(metadata_of(path), validate=True)
    assert metadata.name == "vit_jax" and metadata.description_content_type == "text/markdown"
    assert "# vit_jax" in metadata.description


@pytest.mark.slow
def test_the_sdist_has_all_that_it_asks_for(built):
    assert "no files found matching" not in built[1]
    assert "no directories found matching" not in built[1]
    [path] = built[0].glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "constraints.txt", "LICENSE", "configs/demo.py"} < names
    assert {"launch/slurm.sbatch", "tests/test_packaging.py", "docs/architecture.md"} < names


@pytest.mark.slow
def test_everything_that_git_has_of_these_rooms_is_in_the_wheel(installed):
    for room in ("configs", "launch"):
        in_tree = {p.name for p in (ROOT / room).iterdir() if p.is_file()}
        assert {p.name for p in (installed / "vit_jax" / room).iterdir() if p.is_file()} == in_tree


@pytest.mark.slow
def test_a_config_is_found_from_any_folder(installed, tmp_path):
    flags = ("--config.total=1 step", "--config.batch_size=8", "--config.model.depth=1")
    data = ("--config.data.name=digits", "--config.evaluators.glyphs.data=digits")
    vit_jax(
        installed, tmp_path, "train", "--config=configs/demo.py", "--workdir=mine", *flags, *data
    )
    assert (tmp_path / "mine" / "summary.json").is_file()


@pytest.mark.slow
def test_launchers_are_found(installed, tmp_path):
    folder = vit_jax(installed, tmp_path, "launch").stdout.strip()
    assert folder == str(installed / "vit_jax" / "launch")
    image = ("gke", "--dry-run", "--image=mine", *JOB, "--", *TRAIN)
    text = vit_jax(installed, tmp_path, "launch", *image).stdout
    assert yaml.safe_load(text)["kind"] == "JobSet"
    processes = ("local", "--dry-run", "--processes=2", "--", *TRAIN)
    assert len(vit_jax(installed, tmp_path, "launch", *processes).stdout.splitlines()) == 2


@pytest.mark.slow
def test_tpu_vms_need_a_source_tree_and_it_says_so(installed, tmp_path):
    flags = ("tpu_vm", "--dry-run", "--zone=us-west4-a", *JOB, "--", *TRAIN)
    said = vit_jax(installed, tmp_path, "launch", *flags, code=2).stderr
    assert said.count("\n") == 1 and "launch from a checkout" in said


@pytest.mark.slow
def test_the_image_installs_before_it_has_the_tree(tmp_path):
    """launch/Dockerfile: requirements first, with empty rooms, so that they are kept."""
    steps = (ROOT / "launch" / "Dockerfile").read_text()
    for name in steps.partition("COPY ")[2].split("./")[0].split():
        shutil.copy(ROOT / name, tmp_path)
    prepare = steps.partition("RUN ")[2].partition("&& pip")[0].replace("\\\n", "")
    run("bash", "-c", prepare, cwd=tmp_path)
    build = "from setuptools import build_meta; build_meta.build_editable('.')"
    run(sys.executable, "-c", build, cwd=tmp_path)


def test_a_source_tree_is_its_own_home():
    assert home() == ROOT


def test_an_unknown_launcher_gets_one_line(tmp_path):
    command = (sys.executable, "-m", "vit_jax.cli", "launch", "tpu_wm")
    said = run(*command, code=2, cwd=ROOT).stderr
    assert "Did you mean tpu_vm?" in said
