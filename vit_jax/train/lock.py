"""One job in one folder: the second refuses."""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
from collections.abc import Iterator
from concurrent import futures

import numpy as np
from jax.experimental import multihost_utils

from vit_jax.errors import UsageError
from vit_jax.train.cluster import is_lead
from vit_jax.train.lease import lease
from vit_jax.weights.paths import in_bucket

_FILE = ".lock"


@contextlib.contextmanager
def only_job(workdir: pathlib.Path) -> Iterator[None]:
    """Holds the folder until the end, or the death, of this process."""
    hold = lease if in_bucket(workdir) else _lock
    with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor(1) as thread:
        taking = thread.submit(stack.enter_context, hold(workdir / _FILE)) if is_lead() else None
        # A lease may be waited for, and a process that is alone in a collective is given up.
        while not multihost_utils.broadcast_one_to_all(np.array(_is_done(taking))):
            pass
        other = taking.result() if taking else None
        if multihost_utils.broadcast_one_to_all(np.array(other is not None)):
            raise UsageError(
                f"--workdir={workdir} is in use by {other or 'another job'}: wait for it, stop it, "
                f"or choose another folder"
            )
        yield


def _is_done(taking: futures.Future | None) -> bool:
    """After a second at most."""
    return taking is None or not futures.wait([taking], timeout=1.0).not_done


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[str | None]:
    """Yields who holds it, where that is another.

    The system's lock and not the file is what counts: it goes with its process, however that ends,
    and worker processes do not inherit it.
    """
    with path.open("a+") as file:
        if not _is_ours(file.fileno()):
            file.seek(0)
            yield file.read().strip()
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield None


def _is_ours(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some file systems know no locks; there, nobody can be refused.
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
