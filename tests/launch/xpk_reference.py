"""What xpk would ask of a cluster, as {field: value}: the reference for launch/gke.py.

    python -m tests.launch.xpk_reference      # writes xpk_reference.json

Needs xpk on PATH, in an environment of its own, for it pins what it needs; it runs without a
cluster here (--dry-run).
"""

import json
import pathlib
import subprocess
import tempfile
from typing import Any

import yaml

REFERENCE = pathlib.Path(__file__).with_suffix(".json")
POD = "spec/replicatedJobs/0/template/spec/template/spec"
CONTAINER = f"{POD}/containers/0"
TYPES = ("v4-128", "v5litepod-16", "v5p-128", "v6e-256", "tpu7x-128")


def main() -> None:
    found = {kind: fields(_manifest(kind)) for kind in TYPES}
    for kind in TYPES:
        del found[kind][f"{CONTAINER}/command"]  # a shell script of xpk's
    REFERENCE.write_text(json.dumps(found, indent=1) + "\n")


def _manifest(kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "manifest.yaml"
        subprocess.run(
            [
                "xpk", "workload", "create", "--dry-run", "--skip-validation",
                f"--output-manifest-file={path}", "--workload=vit", "--cluster=c", "--project=p",
                "--zone=z-b", f"--tpu-type={kind}", "--num-slices=2", "--docker-image=image:1",
                "--command=vit-jax train", "--max-restarts=10", "--priority=medium",
                "--termination-grace-period-seconds=300",
            ],
            check=True, capture_output=True,
        )  # fmt: skip
        return yaml.safe_load(path.read_text())


def fields(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"spec/replicatedJobs/0/replicas": 2}; a list of plain values in words, nothing empty."""
    if isinstance(tree, dict):
        items = [(f"{prefix}/{key}" if prefix else key, value) for key, value in tree.items()]
    elif isinstance(tree, list) and any(isinstance(value, dict | list) for value in tree):
        items = [(f"{prefix}/{number}", value) for number, value in enumerate(tree)]
    else:
        plain = str(tree) if isinstance(tree, list) else tree
        return {prefix: plain} if tree not in (None, [], "") else {}
    return {path: leaf for key, value in items for path, leaf in fields(value, key).items()}


if __name__ == "__main__":
    main()
