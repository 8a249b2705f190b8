"""What the launchers of TPU jobs have in common: the job, its flags, what is looked at before."""

import argparse
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from restarts import DONE

ROOT = pathlib.Path(__file__).resolve().parents[1]  # of the tree that is launched

try:
    from vit_jax.errors import RunFailed, UsageError, closest
    from vit_jax.tpu.topologies import Topology, topology
except ModuleNotFoundError:  # whatever python3 is: the tree has an environment of its own
    python = ROOT / ".venv" / "bin" / "python"
    if not python.exists() or sys.prefix == str(ROOT / ".venv"):
        sys.exit(f"{sys.argv[0]}: vit_jax is not installed; run `make demo` here once")
    os.execv(python, [str(python), *sys.argv])

VERBS = ("train", "vtab")  # that several hosts do together
_NAME = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"  # what gcloud and Kubernetes both take, with room


@dataclasses.dataclass(frozen=True)
class Job:
    """A command, and the slices that it runs on."""

    name: str
    topology: Topology
    command: tuple[str, ...]  # vit-jax VERB ..., its config as found in the tree

    @property
    def workdir(self) -> str | None:
        """Where the run keeps its checkpoints, if it is one."""
        return next((a.partition("=")[2] for a in self.command if a.startswith("--workdir=")), None)


def add_job_flags(parser: argparse.ArgumentParser) -> None:
    """Those of every launcher."""
    parser.add_argument("--name", required=True, help="of the job, as in vit-b16")
    parser.add_argument("--topology", required=True, help="as in v5litepod-256 or v5p-128")
    parser.add_argument("--slices", type=int, default=1, help="of it")
    parser.add_argument(
        "--skip-preflight", default="", metavar="CHECKS", help="as in data,plan; all: none is made"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would run")
    parser.add_argument("command", nargs="+", metavar="-- vit-jax train ...")


def job_of(arguments: argparse.Namespace) -> Job:
    """The job that was typed."""
    if not re.fullmatch(_NAME, arguments.name):
        raise UsageError(
            f"--name={arguments.name}: expected lower-case letters, digits and dashes, a letter "
            f"first, 40 at most, as in vit-b16"
        )
    program, verb = (*arguments.command, "")[:2]
    if program != "vit-jax" or verb not in VERBS:
        raise UsageError(
            f"{f'{program} {verb}'.strip()!r} is nothing for a pod: expected -- vit-jax train "
            f"--config=... --workdir=..., or vit-jax vtab.{closest(verb, VERBS)}"
        )
    command = tuple(_in_tree(argument) for argument in _joined(arguments.command))
    return Job(arguments.name, topology(arguments.topology, arguments.slices), command)


def preflight_command(job: Job, skip: str) -> list[str] | None:
    """What is run on this machine first; None for verbs that are no training."""
    if job.command[1:2] != ("train",) or skip == "all":
        return None
    command = ["vit-jax", "preflight", f"--topology={job.topology.name}"]
    command += [f"--slices={job.topology.slices}"] if job.topology.slices > 1 else []
    command += [f"--skip={skip}"] if skip else []
    return [*command, *(argument for argument in job.command[2:] if argument != "--sweep")]


def preflight(job: Job, skip: str) -> None:
    """Fails before chips are paid for."""
    command = preflight_command(job, skip)
    if command is None:
        return
    say(shlex.join(command))
    program = [sys.executable, "-m", "vit_jax.cli", *command[1:]]
    if subprocess.run(program, cwd=ROOT).returncode != DONE:
        raise RunFailed(
            "preflight: nothing was launched, see above; --skip-preflight=CHECKS leaves some out"
        )


def need_program(name: str, how: str) -> None:
    """A program of others that has to be there."""
    if shutil.which(name) is None:
        raise UsageError(f"{name} is not on PATH: {how}")


def say(text: str) -> None:
    """To whoever watches."""
    print(f"[launch] {text}", file=sys.stderr, flush=True)


def _joined(command: Sequence[str]) -> list[str]:
    """`--config FILE` as `--config=FILE`."""
    joined: list[str] = []
    for argument in command:
        if joined and joined[-1] in ("--config", "--workdir"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _in_tree(argument: str) -> str:
    """A config file by its place in the tree: other machines have the tree, and no other files."""
    found = re.fullmatch(r"--config=([^:]*)(:.*)?", argument)
    if not found:
        return argument
    given = pathlib.Path(found[1]).expanduser()
    path = next((p.resolve() for p in (given, ROOT / given) if p.is_file()), None)
    if path is None:
        raise UsageError(f"no such config file: {given}; expected --config=configs/FILE.py")
    if not path.is_relative_to(ROOT):
        raise UsageError(
            f"{given} is not in the tree that is copied to the machines: put it into configs/"
        )
    return f"--config={path.relative_to(ROOT)}{found[2] or ''}"
