#!/usr/bin/env python3
"""Runs a job on the TPU slices of a GKE cluster, as a JobSet.

    docker build -f launch/Dockerfile -t IMAGE . && docker push IMAGE
    launch/gke.py --name=vit-b16 --topology=v5litepod-256 --image=IMAGE -- \
        vit-jax train --config=configs/pretrain.py:model=B/16 --workdir=gs://bucket/b16

kubectl creates it in the cluster that it points at. --dry-run prints it instead, with the
equivalent xpk command as a comment. Exit codes 42 and 127-255 have the job restarted as a whole,
and the run goes on from its newest checkpoint; any other ends it.
"""

import argparse
import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from job import Job, add_job_flags, job_of, need_program, preflight, preflight_command, say
from restarts import DIED, DONE, RESTART

from vit_jax.cli import run_verb
from vit_jax.errors import RunFailed, UsageError

CONTAINER = "jax-tpu"
_GKE = "cloud.google.com"
_NODE_POOL = f"{_GKE}/gke-nodepool"
_CREATE = ("kubectl", "create", "-f", "-")


@dataclasses.dataclass(frozen=True)
class GkeJob:
    """A job, and what the cluster is told besides."""

    job: Job
    image: str
    spot: bool = False
    reservation: str | None = None
    queue: str | None = None  # Kueue's
    priority: str | None = None
    service_account: str | None = None
    namespace: str | None = None
    environment: tuple[str, ...] = ()  # NAME=VALUE
    secrets: tuple[str, ...] = ()  # NAME=SECRET/KEY
    volume: str | None = None  # CLAIM:/path, a persistent volume that all pods mount
    restarts: int = 10  # in all
    grace: int = 300  # seconds from SIGTERM to SIGKILL: longer than a step and a checkpoint


def launch(argv: Sequence[str]) -> int:
    """From the flags to what kubectl says."""
    arguments = _parse(argv)
    gke_job = _gke_job(arguments)

    import yaml  # not before job.py has found the environment that has it

    text = yaml.safe_dump(manifest(gke_job), sort_keys=False, default_flow_style=None, width=100)
    if arguments.dry_run:
        print("\n".join(_comments(gke_job, arguments)) + f"\n{text}", end="")
        return DONE
    need_program("kubectl", "install it; --dry-run works without")
    preflight(gke_job.job, arguments.skip_preflight)
    if subprocess.run(_CREATE, input=text, text=True).returncode:
        raise RunFailed(
            f"kubectl did not take the job: see above; one of that name goes with kubectl delete "
            f"jobset {gke_job.job.name}"
        )
    say(f"watch it:   {shlex.join(_kubectl(gke_job, 'get', 'jobset', gke_job.job.name, '-w'))}")
    say(f"its output: {shlex.join(_kubectl(gke_job, 'logs', '-f', '-l', _lead(gke_job)))}")
    say(f"stop it:    {shlex.join(_kubectl(gke_job, 'delete', 'jobset', gke_job.job.name))}")
    return DONE


def _kubectl(gke_job: GkeJob, *words: str) -> list[str]:
    namespace = [f"--namespace={gke_job.namespace}"] if gke_job.namespace else []
    return ["kubectl", *words, *namespace]


def _lead(gke_job: GkeJob) -> str:
    """Labels of the one pod that speaks: the first host of the first slice."""
    labels = {
        "jobset.sigs.k8s.io/jobset-name": gke_job.job.name,
        "jobset.sigs.k8s.io/job-index": "0",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    return ",".join(f"{key}={value}" for key, value in labels.items())


def manifest(gke_job: GkeJob) -> dict[str, Any]:
    """The JobSet: a job of all hosts for each slice, restarted together."""
    job, labels = gke_job.job, {}
    if gke_job.queue:
        labels["kueue.x-k8s.io/queue-name"] = gke_job.queue
    hosts = job.topology.hosts // job.topology.slices
    metadata: dict[str, Any] = {"name": job.name}
    if gke_job.namespace:
        metadata["namespace"] = gke_job.namespace
    # A slice is a node pool: no two jobs of this set share one.
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata
        | {"labels": labels}
        | {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": _NODE_POOL}},
        "spec": {
            "ttlSecondsAfterFinished": 43200,
            "failurePolicy": {
                "maxRestarts": gke_job.restarts,
                "rules": [
                    {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                ],
            },
            "replicatedJobs": [
                {
                    "name": "slice-job",
                    "replicas": job.topology.slices,
                    "template": {"spec": _slice(gke_job, hosts)},
                }
            ],
        },
    }


def _slice(gke_job: GkeJob, hosts: int) -> dict[str, Any]:
    """The job of one slice. No pod is tried again by itself: the others cannot go on without it."""
    return {
        "parallelism": hosts,
        "completions": hosts,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onPodConditions": [],
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "NotIn",
                        "values": [RESTART, *DIED],
                    },
                }
            ]
        },
        "template": {"spec": _pod(gke_job)},
    }


def _pod(gke_job: GkeJob) -> dict[str, Any]:
    topology = gke_job.job.topology
    selector = {
        f"{_GKE}/gke-tpu-accelerator": topology.generation.gke_accelerator,
        f"{_GKE}/gke-tpu-topology": topology.gke_topology,
    }
    tolerations = [{"operator": "Exists", "key": "google.com/tpu"}]
    if gke_job.spot:
        selector[f"{_GKE}/gke-spot"] = "true"
        tolerations.append({"operator": "Exists", "key": f"{_GKE}/gke-spot"})
    if gke_job.reservation:
        selector[f"{_GKE}/reservation-name"] = gke_job.reservation
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "nodeSelector": selector,
        # What the slices say to each other does not go through the cluster's own network.
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": gke_job.grace,
        "containers": [_container(gke_job)],
        "tolerations": tolerations,
        # grain's worker processes pass batches through /dev/shm, of which a pod has 64 MB.
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    if gke_job.volume:
        claim = {"claimName": gke_job.volume.partition(":")[0]}
        pod["volumes"].append({"name": "shared", "persistentVolumeClaim": claim})
    if gke_job.priority:
        pod["priorityClassName"] = gke_job.priority
    if gke_job.service_account:
        pod["serviceAccountName"] = gke_job.service_account
    return pod


def _container(gke_job: GkeJob) -> dict[str, Any]:
    variables: list[dict[str, Any]] = []
    for entry in gke_job.environment:
        name, _, value = entry.partition("=")
        variables.append({"name": name, "value": value})
    for entry in gke_job.secrets:
        name, _, place = entry.partition("=")
        secret, _, key = place.partition("/")
        variables.append(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        )
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if gke_job.volume:
        mounts.append({"name": "shared", "mountPath": gke_job.volume.partition(":")[2]})
    return {
        "name": CONTAINER,
        "image": gke_job.image,
        # No shell in between: SIGTERM reaches the run itself, and its exit code the cluster.
        "command": list(gke_job.job.command),
        **({"env": variables} if variables else {}),
        "securityContext": {"privileged": True},
        "resources": {"limits": {"google.com/tpu": gke_job.job.topology.chips_per_host}},
        "volumeMounts": mounts,
    }


def xpk_command(gke_job: GkeJob) -> list[str]:
    """What to type where the cluster was made by xpk."""
    job = gke_job.job
    command = [
        "xpk", "workload", "create", f"--workload={job.name}", "--cluster=CLUSTER",
        f"--tpu-type={job.topology.name}", f"--num-slices={job.topology.slices}",
        f"--docker-image={gke_job.image}", f"--max-restarts={gke_job.restarts}",
        f"--termination-grace-period-seconds={gke_job.grace}",
    ]  # fmt: skip
    command += [f"--priority={gke_job.priority}"] if gke_job.priority else []
    command += ["--spot"] if gke_job.spot else []
    command += [f"--reservation={gke_job.reservation}"] if gke_job.reservation else []
    command += [f"--env={entry}" for entry in gke_job.environment]
    return [*command, f"--command={shlex.join(job.command)}"]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("launch/gke.py", description=__doc__.splitlines()[0])
    add_job_flags(parser)
    parser.add_argument("--image", required=True, help="built from launch/Dockerfile")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--spot", action="store_true", help="cheaper, may be preempted")
    kinds.add_argument("--reservation", help="its name")
    parser.add_argument("--queue", help="Kueue's, as in multislice-queue")
    parser.add_argument("--priority", help="a priority class of the cluster")
    parser.add_argument("--service-account", help="of Kubernetes: who may write to the bucket")
    parser.add_argument("--namespace")
    parser.add_argument(
        "--volume", metavar="CLAIM:/PATH", help="a persistent volume claim that all pods mount"
    )
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--secret", action="append", default=[], metavar="NAME=SECRET/KEY",
        help="a variable from a secret of the cluster, whose value nobody sees here",
    )  # fmt: skip
    parser.add_argument("--restarts", type=int, default=GkeJob.restarts, help="of the whole job")
    parser.add_argument(
        "--grace", type=int, default=GkeJob.grace, help="seconds to save in when it is stopped"
    )
    return parser.parse_args(argv)


def _gke_job(arguments: argparse.Namespace) -> GkeJob:
    job = job_of(arguments)
    if job.topology.slices > 1 and job.topology.hosts == job.topology.slices:
        raise UsageError(
            f"{job.topology.text()}: GKE joins slices of several hosts only; choose a larger one"
        )
    claim, _, mount = (arguments.volume or "").partition(":")
    if arguments.volume and not (claim and mount.startswith("/")):
        raise UsageError(f"--volume={arguments.volume}: expected CLAIM:/PATH, as in data:/data")
    is_mounted = mount and f"{job.workdir}/".startswith(f"{mount.rstrip('/')}/")
    if job.workdir is not None and "://" not in job.workdir and not is_mounted:
        raise UsageError(
            f"--workdir={job.workdir}: the disks of pods go with them, give a bucket, as in "
            f"gs://bucket/{job.name}, or a folder on a --volume=CLAIM:/PATH"
        )
    for flag, form, entries in (
        ("env", "NAME=VALUE", arguments.env),
        ("secret", "NAME=SECRET/KEY", arguments.secret),
    ):
        for entry in entries:
            name, has_value, value = entry.partition("=")
            is_good = name.isidentifier() and has_value and (flag == "env" or "/" in value)
            if not is_good:  # without its value, which may be secret
                raise UsageError(f"--{flag}={name}...: expected {form}")
    taken = {field.name for field in dataclasses.fields(GkeJob)} & set(vars(arguments))
    return GkeJob(
        job=job,
        environment=tuple(arguments.env),
        secrets=tuple(arguments.secret),
        **{name: getattr(arguments, name) for name in taken},
    )


def _comments(gke_job: GkeJob, arguments: argparse.Namespace) -> Iterator[str]:
    if before := preflight_command(gke_job.job, arguments.skip_preflight):
        yield f"# First, on this machine: {shlex.join(before)}"
    yield f"# Then: {shlex.join(_CREATE)}, with what follows"
    yield f"# With xpk instead: {shlex.join(xpk_command(gke_job))}"


if __name__ == "__main__":
    sys.exit(run_verb(launch, sys.argv[1:]))
