"""The JobSet that would be applied: valid, as xpk would have it, and safe."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

from tests.launch.xpk_reference import POD, REFERENCE, TYPES, fields

TRAIN = ["vit-jax", "train", "--config=configs/demo.py", "--workdir=gs://bucket/run"]


def launch(*flags, job=TRAIN, topology="v5litepod-16", environment=None):
    flags = ["--name=vit", f"--topology={topology}", "--image=image:1", *flags, "--", *job]
    return subprocess.run(
        [sys.executable, "launch/gke.py", *flags], capture_output=True, text=True,
        env=environment or os.environ,
    )  # fmt: skip


def manifest(*flags, **options):
    result = launch(*flags, "--dry-run", **options)
    assert result.returncode == 0, result.stderr
    return yaml.safe_load(result.stdout)


EVERYTHING = ["--slices=2", "--spot", "--queue=q", "--priority=high", "--service-account=me",
              "--namespace=mine", "--env=A=b c", "--secret=KEY=keys/wandb", "--restarts=3",
              "--grace=600", "--volume=disk:/data"]  # fmt: skip


@pytest.mark.parametrize("flags", [[], EVERYTHING, ["--reservation=ours"]])
def test_it_is_valid(flags):
    """Each field is one that JobSet, Job and Pod know, of the type that they want."""
    written = manifest(*flags)
    understood = JobsetV1alpha2JobSet.from_dict(written).to_dict()
    # Unknown fields are dropped in reading, so what comes back has to be all there was.
    assert fields(written).items() <= fields(understood).items()


def test_a_field_that_does_not_exist_would_be_found():
    written = manifest()
    written["spec"]["replicas"] = 2
    understood = JobsetV1alpha2JobSet.from_dict(written).to_dict()
    assert not fields(written).items() <= fields(understood).items()


# Where the two say the same differently, and why.
OTHERWISE = {
    f"{POD}/containers/0/volumeMounts/0/name": "a name",
    f"{POD}/volumes/0/name": "a name",
}


@pytest.mark.parametrize("kind", TYPES)
def test_it_agrees_with_xpk_wherever_both_speak(kind):
    theirs = json.loads(REFERENCE.read_text())[kind]
    flags = ["--slices=2", "--queue=multislice-queue", "--priority=medium"]
    ours = fields(manifest(*flags, job=["vit-jax", "train"], topology=kind))
    both = set(ours) & set(theirs)
    assert {key for key in both if ours[key] != theirs[key]} == set(OTHERWISE)
    # A shell runs it there; here SIGTERM reaches the run itself.
    assert set(ours) - set(theirs) == {f"{POD}/containers/0/command"}
    # Labels and policies of its own clusters, a secret called "None", and a default.
    only_theirs = {key.removeprefix(f"{POD}/") for key in set(theirs) - set(ours)}
    assert all(re.search(r"workload|schedulerName|imagePull|placement", key) for key in only_theirs)
    assert len(both) > 20


def test_the_xpk_command_is_the_same_job():
    dry = launch("--slices=2", "--restarts=3", "--dry-run", job=[*TRAIN, "--config.total=3 steps"])
    [line] = [line for line in dry.stdout.splitlines() if "xpk workload create" in line]
    for flag in ("--workload=vit", "--tpu-type=v5litepod-16", "--num-slices=2", "--max-restarts=3",
                 "--docker-image=image:1", "--termination-grace-period-seconds=300"):  # fmt: skip
        assert f" {flag} " in line
    assert """'--config.total=3 steps'""" in line.replace("'\"'\"'", "'")


def test_a_volume_is_where_the_run_may_be():
    job = [*TRAIN[:3], "--workdir=/data/run"]
    spec = manifest("--volume=disk:/data", job=job)["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    assert pod["volumes"][1]["persistentVolumeClaim"] == {"claimName": "disk"}
    mounted = {"name": pod["volumes"][1]["name"], "mountPath": "/data"}
    assert pod["containers"][0]["volumeMounts"][1] == mounted


def test_secrets_are_named_and_not_known():
    [container] = manifest("--secret=KEY=keys/wandb")["spec"]["replicatedJobs"][0]["template"][
        "spec"
    ]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "keys", "key": "wandb"}}
    assert container["env"] == [{"name": "KEY", "valueFrom": reference}]


@pytest.mark.parametrize(
    ("flags", "options", "says"),
    [
        ([], {"topology": "v5q-16"}, "unknown topology 'v5q-16'"),
        (["--slices=2"], {"topology": "v5litepod-4"}, "GKE joins slices of several hosts only"),
        ([], {"job": [*TRAIN[:3], "--workdir=runs/x"]}, "the disks of pods go with them"),
        ([], {"job": [*TRAIN[:3], "--workdir=/data/x"]}, "the disks of pods go with them"),
        (["--volume=disk:data"], {}, "expected CLAIM:/PATH"),
        (["--secret=KEY=swordfish"], {}, "--secret=KEY...: expected NAME=SECRET/KEY"),
        (["--env=A"], {}, "--env=A...: expected NAME=VALUE"),
    ],
)
def test_a_mistake_gets_one_line(flags, options, says):
    result = launch(*flags, "--dry-run", **options)
    assert result.returncode == 2 and says in result.stderr and "swordfish" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_kubectl_gets_the_manifest(tmp_path):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/flags\ncat > {tmp_path}/manifest\n')
    kubectl.chmod(0o755)
    with_kubectl = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = launch("--skip-preflight=all", environment=with_kubectl)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "flags").read_text() == "create -f -\n"
    assert yaml.safe_load((tmp_path / "manifest").read_text()) == manifest()
    assert "kubectl logs -f -l jobset.sigs.k8s.io/jobset-name=vit,jobset" in result.stderr


def test_without_kubectl_there_is_one_line(tmp_path):
    result = launch(environment={"PATH": str(tmp_path), "JAX_PLATFORMS": "cpu"})
    assert result.returncode == 2 and "kubectl is not on PATH" in result.stderr
    assert len(result.stderr.splitlines()) == 1
