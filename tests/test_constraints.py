"""constraints.txt: a version for everything that a pod installs, one that setup.py allows."""

import importlib.metadata
import pathlib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[1]
LOCKED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())


def requirements():
    """Of the package, and of the extras that launch/worker.sh and launch/Dockerfile name."""
    wanted = map(Requirement, importlib.metadata.requires("vit_jax"))
    extras = ("", "tpu", "gcs", "tfds")
    return [
        r for r in wanted if not r.marker or any(r.marker.evaluate({"extra": e}) for e in extras)
    ]


@pytest.mark.parametrize("wanted", requirements(), ids=str)
def test_it_is_locked(wanted):
    locked = {canonicalize_name(name): version for name, version in LOCKED.items()}
    assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)])


def test_the_extras_are_those_that_the_hosts_install():
    for name in ("worker.sh", "Dockerfile"):
        assert "-c constraints.txt -e '.[tpu,gcs,tfds]'" in (ROOT / "launch" / name).read_text()
