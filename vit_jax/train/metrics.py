"""Where numbers go: metrics.jsonl, the record of the run, and TensorBoard beside it."""

import contextlib
import errno
import json
import os
import time
from collections.abc import Mapping

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from vit_jax.errors import CannotWrite
from vit_jax.weights.checkpoint import what_is_left
from vit_jax.weights.run_folder import RunFolder

_PAUSES = (0.5, 2.0, 8.0)  # seconds, before writing is tried again


def drop_records_after(folder: RunFolder, step: int) -> None:
    """For a run that has changed, whose steps will not come out as they did."""
    kept = [line for line in _lines(folder) if json.loads(line)["step"] <= step]
    if folder.metrics.is_file():
        os.truncate(folder.metrics, sum(map(len, kept)))


class MetricsWriter:
    """Appends one record per logged step. A context manager.

    A resumed run takes the steps after its checkpoint again, and they come out the same: those in
    the file stay, and are not written twice.
    """

    def __init__(self, folder: RunFolder, resume_step: int) -> None:
        self._folder = folder
        lines = _lines(folder)
        self._written = max((json.loads(line)["step"] for line in lines), default=0)
        self._size = sum(map(len, lines))
        self._file = os.open(folder.metrics, os.O_WRONLY | os.O_CREAT, 0o666)
        os.ftruncate(self._file, self._size)  # what a crash cut off is no record
        folder.tensorboard.mkdir(exist_ok=True)
        self._tensorboard = EventsWriter(str(folder.tensorboard / "events"))
        if resume_step:  # TensorBoard forgets what it has seen of later steps
            start = SessionLog(status=SessionLog.START)
            self._tell_tensorboard(Event(step=resume_step + 1, session_log=start))

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        with contextlib.suppress(OSError):
            self._tensorboard.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One record: {"step": 10, "train/loss": 2.3, ...}."""
        if step > self._written:
            self._append(json.dumps({"step": step, **values}).encode() + b"\n")
            self._written = step
        scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        self._tell_tensorboard(Event(step=step, summary=Summary(value=scalars)))

    def sync(self) -> None:
        """Until what was written outlives the machine."""
        os.fsync(self._file)

    def _append(self, line: bytes) -> None:
        for pause in (*_PAUSES, None):
            try:
                if not os.path.samestat(os.fstat(self._file), os.stat(self._folder.metrics)):
                    raise FileNotFoundError("another file is in its place")
                if os.pwrite(self._file, line, self._size) < len(line):
                    raise OSError(errno.ENOSPC, "a part of a record was written, and no more")
                self._size += len(line)
                return
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._size)
                if pause is None or isinstance(error, FileNotFoundError):
                    raise self._cannot_write(error) from error
                time.sleep(pause)

    def _tell_tensorboard(self, event: Event) -> None:
        event.wall_time = time.time()
        with contextlib.suppress(OSError):  # a copy only, and what is held up is written later
            self._tensorboard.write_event(event)
            self._tensorboard.flush()

    def _cannot_write(self, error: OSError) -> CannotWrite:
        return CannotWrite(
            f"{self._folder.path}: its metrics could not be written ({error}); "
            f"{what_is_left(self._folder.checkpoints)}. Make room or repair the folder, then start "
            f"again"
        )


def _lines(folder: RunFolder) -> list[bytes]:
    """Those that were written to their end."""
    if not folder.metrics.is_file():
        return []
    with folder.metrics.open("rb") as file:
        return [line for line in file if line.endswith(b"\n")]
