"""One job in one folder: the second refuses."""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
from collections.abc import Iterator

import numpy as np
from jax.experimental import multihost_utils

from vit_jax.errors import UsageError
from vit_jax.train.cluster import is_lead

_FILE = ".lock"


@contextlib.contextmanager
def only_job(workdir: pathlib.Path) -> Iterator[None]:
    """Holds the folder until the end, or the death, of this process.

    The system's lock and not the file is what counts: it goes with its process, however that ends,
    and worker processes do not inherit it.
    """
    with (workdir / _FILE).open("a+") as file:
        is_ours = _lock(file.fileno()) if is_lead() else True
        if not multihost_utils.broadcast_one_to_all(np.array(is_ours)):
            file.seek(0)
            raise UsageError(
                f"--workdir={workdir} is in use by {file.read().strip() or 'another job'}: wait "
                f"for it, stop it, or choose another folder"
            )
        if is_lead():
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        yield


def _lock(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some file systems know no locks; there, nobody can be refused.
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
