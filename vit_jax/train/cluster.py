"""Several processes that train one model together."""

import contextlib
import glob
import os
import socket
import sys
import time
from collections.abc import Iterator

import jax

from vit_jax.errors import EXIT_DIED, RunFailed, Stopped, UsageError, told

# What launch/local.py tells the processes that it starts.
COORDINATOR, PROCESSES, PROCESS = "VIT_JAX_COORDINATOR", "VIT_JAX_PROCESSES", "VIT_JAX_PROCESS"

# What SLURM tells a task of a step; it starts tasks with srun only.
_SLURM_STEP, _SLURM_TASKS = "SLURM_STEP_NODELIST", "SLURM_NTASKS"
# Where the chips of a TPU host show up.
_TPU_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")

_REMIND_SECONDS = 10.0
_GO = b"go"


def join(patience: float = 300.0) -> None:
    """Joins the other processes of this job, if there are any; before anything touches a device.

    Gives up after `patience` seconds.
    """
    if COORDINATOR in os.environ:
        _join_local(os.environ[COORDINATOR], patience)
    elif _may_be_in_a_cluster():
        _join_cluster(patience)


@contextlib.contextmanager
def failing_at_once() -> Iterator[None]:
    """One of several processes that fails ends there and then: on a usual exit JAX waits for the
    others, who cannot go on without it and wait as well."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if is_alone() or isinstance(error, Stopped):
            raise
        code = told(error)
        # What is not the run's own failure is most likely the death of another process, as it looks
        # from here; where JAX notices first, it aborts with the same code.
        is_own = isinstance(error, UsageError | RunFailed | KeyboardInterrupt)
        os._exit(code if is_own else EXIT_DIED)


def is_lead() -> bool:
    """True in the one process that writes files and speaks."""
    return jax.process_index() == 0


def is_alone() -> bool:
    """Whether this process has no others to wait for."""
    return not jax.distributed.is_initialized()


def _join_local(address: str, patience: float) -> None:
    """Says which processes are missing after a while."""
    processes, process = int(os.environ[PROCESSES]), int(os.environ[PROCESS])
    # JAX would wait in silence, and abort without a name. So there is a roll call before, at the
    # very port that JAX is going to use.
    host, _, port = address.rpartition(":")
    if process:
        _report_to(host, int(port), process, patience)
    else:
        _call_roll(int(port), set(range(1, processes)), patience)
    jax.distributed.initialize(address, processes, process, shutdown_timeout_seconds=60)


def _may_be_in_a_cluster() -> bool:
    if _SLURM_STEP in os.environ:
        return os.environ.get(_SLURM_TASKS) != "1"
    is_cpu_wanted = os.environ.get("JAX_PLATFORMS", "").startswith("cpu")
    return not is_cpu_wanted and any(glob.glob(pattern) for pattern in _TPU_FILES)


def _join_cluster(patience: float) -> None:
    """On TPU hosts (VMs and GKE) and in SLURM steps JAX finds out by itself who the others are."""
    try:
        jax.distributed.initialize(
            initialization_timeout=int(patience), shutdown_timeout_seconds=60
        )
    except ValueError:  # it is told nothing of others: a host that is alone
        return
    except (RuntimeError, OSError) as error:  # others, or who knows of them, do not answer
        reason = " ".join(str(error).split())[:200]
        raise Stopped(f"the other processes of this job did not start: {reason}") from error


def _call_roll(port: int, missing: set[int], patience: float) -> None:
    began = reminded = time.monotonic()
    present: list[socket.socket] = []
    with socket.create_server(("", port)) as server:
        server.settimeout(0.2)
        while missing:
            try:
                caller, _ = server.accept()
                caller.settimeout(5)
                missing.discard(int(caller.recv(16)))
                present.append(caller)
            except (OSError, ValueError):  # nobody, or somebody else
                pass
            now = time.monotonic()
            names = ", ".join(map(str, sorted(missing)))
            if now - began > patience:
                raise Stopped(f"gave up after {patience:.0f} s: process {names} did not start")
            if now - reminded > _REMIND_SECONDS:
                print(f"vit-jax: waiting for process {names} to start", file=sys.stderr, flush=True)
                reminded = now
    for caller in present:
        with caller, contextlib.suppress(OSError):
            caller.send(_GO)
            caller.recv(1)  # the caller hangs up first, so that the port is free at once


def _report_to(host: str, port: int, process: int, patience: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < patience:
        try:
            with socket.create_connection((host, port), timeout=patience) as lead:
                lead.send(str(process).encode())
                if lead.recv(len(_GO)) == _GO:
                    return
        except OSError:  # not there yet
            pass
        time.sleep(0.2)
    raise Stopped(f"gave up after {patience:.0f} s: process 0 at {host}:{port} did not start")
