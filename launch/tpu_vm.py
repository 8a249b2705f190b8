#!/usr/bin/env python3
"""Runs a job on TPU VMs: creates them (queued resources), runs, resumes, deletes them.

    launch/tpu_vm.py --name=vit-b16 --zone=us-west4-a --topology=v5litepod-256 --spot -- \
        vit-jax train --config=configs/pretrain.py:model=B/16 --workdir=gs://bucket/b16

This tree is copied to every host, the versions in constraints.txt are installed there. The output
of host 0 is shown, that of all is kept in logs/NAME/. Slices that are preempted are created again,
and the run goes on from its newest checkpoint; so it does after exit codes 42 and 127-255, and any
other ends it. At the end the TPUs are deleted (--keep: they stay, and are used the next time).
Ctrl-C has the run saved first. Exit code: that of the run.

It deletes what it created only while it lives: start it where it can stay, as in tmux. Started
again while its run goes on, it follows that.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from job import (
    ROOT,
    Job,
    add_job_flags,
    job_of,
    need_program,
    preflight,
    preflight_command,
    say,
)
from processes import TOLD_TO_STOP, Logs, call, running, told_to_stop_is_an_interrupt
from restarts import DONE, FAILED, RESTART, Restarts, is_temporary, verdict

from vit_jax.cli import run_verb
from vit_jax.errors import RunFailed, UsageError

_GCLOUD = ("gcloud", "compute", "tpus", "queued-resources")
_TREE, _ENVIRONMENT = "vit_jax.tar.gz", "vit_jax.environment"  # what is copied to the hosts
_LARGE = 200e6  # bytes of a tree that holds more than code
_UNPACK = (
    f"mkdir -p vit_jax && tar -xzf {_TREE} -C vit_jax && "
    f"install -m 600 {_ENVIRONMENT} vit_jax/.environment && rm {_ENVIRONMENT}"
)
_WORKER = "bash vit_jax/launch/worker.sh"
_INSTALL = f"{_UNPACK} && {_WORKER} install"
_BUSY = f"test ! -f vit_jax/launch/worker.sh || {_WORKER} busy"
# gcloud talks to so many hosts at once, and to the next ones only when those are done.
_BATCH = 64
# A host that is gone says nothing: ssh finds out after two minutes.
_ALIVE = ("--ssh-flag=-oServerAliveInterval=30", "--ssh-flag=-oServerAliveCountMax=4")
_SILENT_CONNECTIONS = 3  # in a row, on which nothing new is heard: the hosts are broken

# States of a queued resource in which there are no machines any longer, and will not be.
_GONE = ("SUSPENDING", "SUSPENDED", "DELETING", "FAILED")
_ACTIVE = "ACTIVE"
_UNKNOWN = "UNKNOWN"  # gcloud gave no answer: a network may stumble, which is no reason to end


@dataclasses.dataclass(frozen=True)
class TpuJob:
    """A job, and how its machines are asked for."""

    job: Job
    place: tuple[str, ...]  # --zone, --project
    creation: tuple[str, ...]  # flags of `create`
    environment: tuple[str, ...]  # NAME=VALUE, or NAME: of this machine's
    restarts: int
    poll_seconds: float
    keep: bool

    def gcloud(self, verb: str, *flags: str) -> list[str]:
        """A command about the job's queued resource."""
        return [*_GCLOUD, verb, self.job.name, *self.place, *flags]

    def create(self) -> list[str]:
        topology, name = self.job.topology, self.job.name
        nodes = [f"--node-id={name}"]
        if topology.slices > 1:
            nodes = [f"--node-count={topology.slices}", f"--node-prefix={name}"]
        kind = f"--accelerator-type={topology.name}"
        return self.gcloud("create", kind, *nodes, *self.creation, "--async")

    def describe(self) -> list[str]:
        return self.gcloud("describe", "--format=json")

    def delete(self) -> list[str]:
        return self.gcloud("delete", "--force", "--quiet")

    def copy(self, *files: str) -> list[str]:
        all_hosts = ("--worker=all", "--node=all")
        return [*_GCLOUD, "scp", *files, f"{self.job.name}:", *self.place, *all_hosts]

    def on_hosts(self, command: str) -> list[list[str]]:
        """Of all hosts of all slices, at once: as many calls as that takes."""
        return [
            self.gcloud("ssh", *group, f"--batch-size={_BATCH}", *_ALIVE, f"--command={command}")
            for group in self._groups()
        ]

    def run(self, name: str) -> list[list[str]]:
        return self.on_hosts(f"{_WORKER} run {name} {shlex.join(self.job.command)}")

    def _groups(self) -> Iterator[tuple[str, str]]:
        topology = self.job.topology
        if topology.hosts <= _BATCH:
            yield "--worker=all", "--node=all"
            return
        hosts = topology.hosts // topology.slices
        for node in range(topology.slices):
            for first in range(0, hosts, _BATCH):
                last = min(first + _BATCH, hosts) - 1
                yield f"--worker={first}-{last}", f"--node={node}"


def launch(argv: Sequence[str]) -> int:
    """From the flags to the exit code of the run."""
    arguments = _parse(argv)
    tpu_job = _tpu_job(arguments)
    names = _tree_files(tpu_job.job)
    if arguments.dry_run:
        print("\n".join(_script(tpu_job, arguments.skip_preflight)))
        return DONE
    need_program("gcloud", "install the Google Cloud CLI; --dry-run works without")
    variables = _variables(tpu_job)
    pod = _Pod(tpu_job, Logs(pathlib.Path(arguments.logs).expanduser() / tpu_job.job.name))
    pod.check()
    preflight(tpu_job.job, arguments.skip_preflight)
    with tempfile.TemporaryDirectory() as folder, told_to_stop_is_an_interrupt():
        files = _write_tree(folder, names), _write_environment(folder, variables)
        try:
            return pod.run(files)
        except KeyboardInterrupt:
            return pod.stop()
        finally:
            pod.end()


@dataclasses.dataclass(frozen=True)
class _Status:
    """Of a queued resource; all of it empty where there is none."""

    state: str | None = None
    accelerators: tuple[str, ...] = ()  # of its nodes, where that is told
    reason: str = ""

    @classmethod
    def of(cls, described: dict[str, Any]) -> "_Status":
        state = described.get("state", {})
        nodes = []
        for spec in described.get("tpu", {}).get("nodeSpec", []):
            several = spec.get("multisliceParams") or spec.get("multiNodeParams") or {}
            kind = spec.get("node", {}).get("acceleratorType")
            nodes += [kind] * int(several.get("nodeCount", 1)) if kind else []
        reason = state.get("failedData", {}).get("error", {}).get("message", "")
        return cls(state.get("state", _UNKNOWN), tuple(nodes), reason)


class _Pod:
    """The machines of a job."""

    def __init__(self, tpu_job: TpuJob, logs: Logs) -> None:
        self._job, self._logs = tpu_job, logs
        self._name, self._hosts = tpu_job.job.name, tpu_job.job.topology.hosts
        self._is_broken = False  # there, but of no use
        self._run: str | None = None  # the name of the run that was started

    def check(self) -> None:
        """Machines of that name are of the right kind, and do nothing else."""
        status = self._status(is_strict=True)
        wanted = (self._job.job.topology.name,) * self._job.job.topology.slices
        if status.accelerators and status.accelerators != wanted:
            raise UsageError(
                f"--name={self._name} is there, as {', '.join(status.accelerators)}: choose "
                f"another name, or delete it with {shlex.join(self._job.delete())}"
            )
        if status.state != _ACTIVE:
            return
        ours, running = " ".join(self._job.job.command), {}

        def hear(host: str, line: str) -> None:
            if found := re.fullmatch(r"busy (\S+) (.*)", line):
                running[found[2]] = found[1]

        self._on_hosts("busy", self._job.on_hosts(_BUSY), hear)
        if others := [command for command in running if command != ours]:
            raise UsageError(f"--name={self._name} is busy with {others[0]}: choose another name")
        self._run = running.get(ours)

    def run(self, files: Sequence[str]) -> int:
        """Until the job is done, or will not be."""
        restarts = Restarts(self._job.restarts, self._job.poll_seconds / 3)
        while True:
            self._create()
            restarts.begin()
            code = self._follow() if self._run or self._prepare(files) else RESTART
            self._run = None
            if not is_temporary(code):
                return code
            pause = restarts.next_pause()
            if pause is None:
                say(f"exit code {code}, and {restarts.count} restarts did not help")
                return code
            say(f"exit code {code}: restart {restarts.count} in {pause:.1f} s")
            time.sleep(pause)

    def stop(self) -> int:
        """The run saves and ends."""
        if self._run is None:
            say("stopped before the run began")
            return RESTART
        say("stopping: the run saves first; Ctrl-C again does not wait for it")
        codes = self._on_hosts("stop", self._job.on_hosts(f"{_WORKER} stop"))
        return RESTART if len(codes) == self._hosts else FAILED

    def end(self) -> None:
        """No chip is paid for any longer, unless it is to be kept. Nothing interrupts this."""
        for number in TOLD_TO_STOP:
            signal.signal(number, signal.SIG_IGN)
        delete = shlex.join(self._job.delete())
        if self._job.keep:
            say(f"kept, and paid for: delete it with {delete}")
            return
        say(delete)
        done = call(self._job.delete())
        if done.returncode and not _is_not_found(done):
            say(f"NOT DELETED, and paid for ({_last_line(done)}): try again with {delete}")

    def _create(self) -> None:
        """There are machines: those that are there, or new ones."""
        began, is_asked_for = time.monotonic(), False
        status = self._status()
        while status.state != _ACTIVE or self._is_broken:
            is_broken = self._is_broken and status.state == _ACTIVE
            if is_broken or (status.state in _GONE and status.state != "DELETING"):
                if is_asked_for and status.state == "FAILED":
                    raise RunFailed(f"the slices cannot be had: {status.reason or 'FAILED'}")
                say(f"{self._name} is {status.state}: deleting it, to create it again")
                self._must(self._job.delete())
                status, self._is_broken = _Status(), False
            if status.state is None:
                if is_asked_for:
                    raise RunFailed(f"{self._name} was created, and is not there: see the console")
                say(f"creating {self._job.job.topology.text()} as {self._name}")
                self._must(self._job.create())
                is_asked_for = True
            time.sleep(self._job.poll_seconds)
            status = self._status()
            minutes = (time.monotonic() - began) / 60
            say(f"{self._name} is {status.state}, after {minutes:.0f} min")

    def _prepare(self, files: Sequence[str]) -> bool:
        """The tree and its packages are on all hosts, the same ones on each."""
        say(f"copying the tree to {self._hosts} hosts, and installing")
        versions: dict[str, str] = {}

        def hear(host: str, line: str) -> None:
            if line.startswith("versions "):
                versions[host] = line

        self._on_hosts("copy", [self._job.copy(*files)])  # it may fail, and say that all is well
        codes = self._on_hosts("install", self._job.on_hosts(_INSTALL), hear)
        if len(codes) < self._hosts:
            self._give_up_machines()
            return False
        if code := verdict(codes.values()):
            raise RunFailed(f"the installation failed (exit code {code}): see {self._logs.newest}")
        counts = collections.Counter(versions.values()).most_common()
        if len(counts) > 1:
            odd = sorted(host for host, found in versions.items() if found != counts[0][0])
            raise RunFailed(
                f"hosts {', '.join(odd)} have other versions than the rest: see "
                f"{self._logs.newest}, and launch again"
            )
        return True

    def _follow(self) -> int:
        """Starts the run, or finds it running, and shows it: its exit code."""
        self._run = self._run or uuid.uuid4().hex  # never that of an earlier attempt
        say(shlex.join(self._job.job.command))
        most: collections.Counter[str] = collections.Counter()  # lines that were heard, by host
        silent = 0
        while True:
            # Each connection tells from the start: what was heard before is not shown again.
            now: collections.Counter[str] = collections.Counter()
            heard = most.total()

            def hear(host: str, line: str, now: collections.Counter[str] = now) -> None:
                now[host] += 1
                if now[host] > most[host]:
                    most[host] = now[host]
                    if host == "0-0":
                        print(line, flush=True)

            codes = self._on_hosts("run", self._job.run(self._run), hear)
            code = verdict(codes.values())
            if len(codes) == self._hosts or not (code == DONE or is_temporary(code)):
                return code
            silent = 0 if most.total() > heard else silent + 1
            if self._is_gone() or silent == _SILENT_CONNECTIONS:
                self._give_up_machines()
                return RESTART
            say("the connection broke, the run goes on: connecting again")
            time.sleep(self._job.poll_seconds / 3)

    def _on_hosts(
        self,
        what: str,
        commands: Sequence[Sequence[str]],
        hear: Callable[[str, str], None] = lambda host, line: None,
    ) -> dict[str, int]:
        """Runs something on all hosts; the exit codes of those that told theirs."""
        codes: dict[str, int] = {}
        with self._logs.opened(what) as log, running(commands) as lines:
            looked = time.monotonic()
            while True:
                with contextlib.suppress(queue.Empty):
                    line = lines.get(timeout=self._job.poll_seconds)
                    if line is None:
                        return codes
                    host, kind, text = _parse_line(line)
                    log(host, text)
                    if kind == "=":
                        codes[host] = int(text)
                    elif host:
                        hear(host, text)
                # A preempted host may leave its connection hanging.
                if time.monotonic() - looked > self._job.poll_seconds:
                    looked = time.monotonic()
                    if self._is_gone():
                        return codes

    def _is_gone(self) -> bool:
        state = self._status().state
        return state is None or state in _GONE

    def _give_up_machines(self) -> None:
        state = self._status().state
        self._is_broken = state == _ACTIVE
        why = "preempted" if state in _GONE else f"hosts do not answer, see {self._logs.newest}"
        say(f"{self._name} is {state}: {why}")

    def _status(self, is_strict: bool = False) -> _Status:
        done = call(self._job.describe())
        if done.returncode == 0:
            return _Status.of(json.loads(done.stdout))
        if _is_not_found(done):
            return _Status()
        if is_strict:
            raise RunFailed(f"gcloud: {_last_line(done)}")
        return _Status(_UNKNOWN)

    def _must(self, command: Sequence[str]) -> None:
        done = call(command)
        if done.returncode and not _is_not_found(done):
            raise RunFailed(f"{shlex.join(command[:5])}: {_last_line(done)}")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("launch/tpu_vm.py", description=__doc__.splitlines()[0])
    add_job_flags(parser)
    parser.add_argument("--zone", help="as in us-west4-a; default: that of gcloud config")
    parser.add_argument("--project", help="likewise")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--spot", action="store_true", help="cheaper, may be preempted")
    kinds.add_argument("--reserved", action="store_true", help="of a reservation")
    parser.add_argument("--runtime-version", help="default: the one for this kind of TPU")
    parser.add_argument(
        "--create-flag", action="append", default=[], metavar="FLAG",
        help="of gcloud's create, as in --create-flag=--network=mine; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="for the run; without a value, that of this machine, which is never printed",
    )  # fmt: skip
    parser.add_argument("--restarts", type=int, default=10, help="in a row, before giving up")
    parser.add_argument("--poll-seconds", type=float, default=30.0, help="between two looks")
    parser.add_argument("--logs", default="logs", help="a folder")
    parser.add_argument("--keep", action="store_true", help="do not delete the TPUs at the end")
    return parser.parse_args(argv)


def _tpu_job(arguments: argparse.Namespace) -> TpuJob:
    job = job_of(arguments)
    runtime = arguments.runtime_version or job.topology.generation.runtime
    for entry in arguments.env:
        if not entry.partition("=")[0].isidentifier():
            raise UsageError(f"--env={entry.partition('=')[0]}: expected NAME or NAME=VALUE")
    if runtime is None:
        raise UsageError(
            f"{job.topology.name} is not to be had as TPU VMs: launch it with launch/gke.py"
        )
    if job.workdir is not None and "://" not in job.workdir:
        raise UsageError(
            f"--workdir={job.workdir}: the disks of TPU VMs go with them, give a bucket, as in "
            f"gs://bucket/{job.name}"
        )
    place = [
        f"--{key}={value}" for key in ("zone", "project") if (value := getattr(arguments, key))
    ]
    kinds = [f"--{key}" for key in ("spot", "reserved") if getattr(arguments, key)]
    return TpuJob(
        job=job,
        place=tuple(place),
        creation=(f"--runtime-version={runtime}", *kinds, *arguments.create_flag),
        environment=tuple(arguments.env),
        restarts=arguments.restarts,
        poll_seconds=arguments.poll_seconds,
        keep=arguments.keep,
    )


def _script(tpu_job: TpuJob, skip: str) -> Iterator[str]:
    """What would run, as a shell would have it; what is secret by its name only."""
    if before := preflight_command(tpu_job.job, skip):
        yield from ("# on this machine, before anything is created", shlex.join(before), "")
    yield "# unless there is one; then until it is ACTIVE"
    yield from (shlex.join(tpu_job.create()), shlex.join(tpu_job.describe()), "")
    yield f"# {_TREE}: this tree; {_ENVIRONMENT}: variables of the run"
    for entry in tpu_job.environment:
        name, is_given, value = entry.partition("=")
        yield f"#   {name}={shlex.quote(value) if is_given else '(as here, not shown)'}"
    yield shlex.join(tpu_job.copy(_TREE, _ENVIRONMENT))
    yield from (*map(shlex.join, tpu_job.on_hosts(_INSTALL)), "")
    yield f"# again after exit codes 42 and 127-255, {tpu_job.restarts} times in a row"
    yield from (*map(shlex.join, tpu_job.run("ID")), "")
    yield "# at the end" + (": nothing, it is kept" if tpu_job.keep else "")
    yield ("# " if tpu_job.keep else "") + shlex.join(tpu_job.delete())


def _variables(tpu_job: TpuJob) -> dict[str, str]:
    found = {}
    for entry in tpu_job.environment:
        name, is_given, value = entry.partition("=")
        if not is_given and name not in os.environ:
            raise UsageError(f"--env={name}: there is no such variable here; --env={name}=VALUE")
        found[name] = value if is_given else os.environ[name]
    return found


def _tree_files(job: Job) -> list[str]:
    """What git knows or could know: no environments, no runs."""
    if not (ROOT / "setup.py").is_file():
        raise UsageError(
            "installed vit_jax has no source tree, and that is what is copied to the machines: "
            "launch from a checkout, or use launch/gke.py with an image"
        )
    need_program("git", "install it, this tree is copied by its list of files")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"{ROOT} is no git checkout: launch from one, its files are copied")
    # Those that are deleted, and not yet committed, are listed as well.
    names = [name for name in done.stdout.split("\0") if (ROOT / name).is_file()]
    for argument in job.command:
        found = re.fullmatch(r"--config=([^:]*)(:.*)?", argument)
        if found and found[1] not in names:
            raise UsageError(f"{found[1]} is ignored by git, and so not copied: move it")
    size = sum((ROOT / name).stat().st_size for name in names)
    if size > _LARGE:
        raise UsageError(
            f"the tree has {size / 1e6:,.0f} MB that would be copied to every host: move data "
            f"elsewhere, or have git ignore it"
        )
    return names


def _write_tree(folder: str, names: Sequence[str]) -> str:
    path = os.path.join(folder, _TREE)
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.add(ROOT / name, name)
    return path


def _write_environment(folder: str, variables: dict[str, str]) -> str:
    path = os.path.join(folder, _ENVIRONMENT)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        for name, value in variables.items():
            file.write(f"export {name}={shlex.quote(value)}\n")
    return path


def _parse_line(line: str) -> tuple[str, str, str]:
    """(host, | or =, text); what gcloud itself says has no host."""
    found = re.fullmatch(r"(\d+-\d+)([|=])(.*)", line)
    return (found[1], found[2], found[3]) if found else ("", "|", line)


def _is_not_found(done: subprocess.CompletedProcess) -> bool:
    return "NOT_FOUND" in done.stderr or "not found" in done.stderr.lower()


def _last_line(done: subprocess.CompletedProcess) -> str:
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


if __name__ == "__main__":
    sys.exit(run_verb(launch, sys.argv[1:]))
