"""A lock in a bucket, where nothing goes with a process that dies: an object that is written again
every few seconds for as long as its job lives.

Writes are on condition of the object's generation, so that of two jobs one fails. Clocks are never
compared: a job that waits looks whether the generation changes.
"""

import contextlib
import json
import os
import pathlib
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.errors import RunFailed, UsageError, told
from vit_jax.weights.paths import one_line, split_bucket

_REFRESH_SECONDS = 10.0
_LEASE_SECONDS = 60.0  # without a sign of life, until another job may take it
_POLL_SECONDS = 1.0
_TIMEOUT_SECONDS = 8.0


@contextlib.contextmanager
def lease(path: pathlib.Path) -> Iterator[str | None]:
    """Holds the object at `path` until the end. Yields who does, where that is another.

    A lease that is held is waited for, until its holder gives a sign of life or was silent for too
    long: that may have been killed. One that died on this very machine is known to be dead.
    """
    mine = _Lease(path)
    other = mine.take()
    if other is not None:
        yield other
        return
    keeper = threading.Thread(target=mine.keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield None
    finally:
        mine.is_over.set()
        keeper.join()
        mine.give_back()


class _Found(NamedTuple):
    """What the object says, and its generation: 0 where there is none."""

    generation: int
    holder: dict[str, Any]

    @property
    def name(self) -> str:
        return self.holder.get("holder", "")


class _Lease:
    def __init__(self, path: pathlib.Path) -> None:
        from google.cloud import storage

        bucket, self._name = split_bucket(path)
        self._path = path
        self._bucket = storage.Client().bucket(bucket)
        self._generation = 0
        self._holder = {
            "holder": f"process {os.getpid()} on {socket.gethostname()}",
            "machine": _machine(),
            "process": os.getpid(),
            "started": _started(os.getpid()),
            "lease": uuid.uuid4().hex,
        }
        self.is_over = threading.Event()

    def take(self) -> str | None:
        """Who holds it, where that is another that lives."""
        found = self._read()
        if found.generation and not _is_dead(found.holder):
            print(
                f"{self._path.parent} is in use by {found.name}, or was until it was killed: "
                f"waiting up to {_LEASE_SECONDS:.0f} s for a sign of life",
                file=sys.stderr,
                flush=True,
            )
            latest = self._await_change(found)
            if latest.generation not in (0, found.generation):
                return latest.name
            found = latest
        while not self._write(found.generation):  # another was faster, or a last sign of the dead
            found = self._read()
            if not _is_dead(found.holder):
                return found.name
        return None

    def keep(self) -> None:
        """Writes it again and again; ends the process when another has taken it."""
        while not self.is_over.wait(_REFRESH_SECONDS):
            try:
                is_ours = self._write(self._generation, retry=None)
            except UsageError:  # the bucket cannot be reached: a later try will tell
                continue
            if not is_ours:
                # At once, whatever the run is doing: the files that it writes are another's now.
                os._exit(told(RunFailed(f"{self._path.parent} was taken over by another job")))

    def give_back(self) -> None:
        """For the next job to start without waiting."""
        with contextlib.suppress(Exception):
            self._blob().delete(if_generation_match=self._generation, timeout=_TIMEOUT_SECONDS)

    def _await_change(self, found: _Found) -> _Found:
        """What is there when it has changed, or has not for the time of a lease."""
        end = time.monotonic() + _LEASE_SECONDS
        latest = found
        while latest.generation == found.generation and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            latest = self._read()
        return latest

    def _read(self) -> _Found:
        from google.api_core.exceptions import NotFound

        with self._told():
            while blob := self._bucket.get_blob(self._name, timeout=_TIMEOUT_SECONDS):
                with contextlib.suppress(NotFound):  # it has been written again since
                    text = blob.download_as_text(timeout=_TIMEOUT_SECONDS)
                    return _Found(int(blob.generation), _parsed(text))
            return _Found(0, {})

    def _write(self, generation: int, **options: Any) -> bool:
        """Whether it was of that generation, and is ours now."""
        from google.api_core.exceptions import PreconditionFailed

        blob = self._blob()
        try:
            with self._told():
                blob.upload_from_string(
                    json.dumps(self._holder),
                    content_type="application/json",
                    if_generation_match=generation,
                    timeout=_TIMEOUT_SECONDS,
                    **options,
                )
        except PreconditionFailed:
            blob = self._read()
            if blob.holder != self._holder:  # else an attempt whose answer was lost
                return False
        self._generation = int(blob.generation)
        return True

    def _blob(self) -> Any:
        return self._bucket.blob(self._name)  # a new one: it remembers the generation it has seen

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        from google.api_core.exceptions import PreconditionFailed

        try:
            yield
        except PreconditionFailed:
            raise
        except Exception as error:  # of many kinds, from the network and from Google's libraries
            raise UsageError(
                f"--workdir={self._path.parent} is no folder to write to: {one_line(error)}"
            ) from error


def _parsed(text: str) -> dict[str, Any]:
    """Of a lock that was copied from a disk, who held it there."""
    try:
        return json.loads(text)
    except ValueError:
        return {"holder": text.strip()}


def _is_dead(holder: dict[str, Any]) -> bool:
    """Whether it is known to be: a process of this machine that is no more."""
    is_here = holder.get("machine") and holder["machine"] == _machine()
    return bool(is_here) and _started(holder["process"]) != holder["started"]


def _machine() -> str:
    """This machine since it was switched on, and this container; empty where nothing tells."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> str:
    """When a process was, in the kernel's ticks: numbers of processes are used again."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
