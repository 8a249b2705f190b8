"""A run's numbers for TensorBoard: a copy, which no run ends for. For a bucket it is written on
this machine, and copied there when the run is saved."""

import contextlib
import os
import pathlib
import tempfile
import time
from collections.abc import Mapping

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from vit_jax.weights.paths import in_bucket, write_bytes


class TensorBoard:
    """One file of events below `folder` for each start of the run."""

    def __init__(self, folder: pathlib.Path, resume_step: int) -> None:
        self._folder = folder
        self._here = tempfile.TemporaryDirectory() if in_bucket(folder) else None
        if self._here is None:
            folder.mkdir(exist_ok=True)
        place = self._here.name if self._here else folder
        self._writer = EventsWriter(os.path.join(place, "events"))
        if resume_step:  # TensorBoard forgets what it has seen of later steps
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=resume_step + 1, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """What a record of metrics.jsonl holds."""
        scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=scalars)))

    def sync(self) -> None:
        """To where the run is."""
        if self._here:
            with contextlib.suppress(Exception):  # of many kinds; the next time it is all of it
                for file in pathlib.Path(self._here.name).iterdir():
                    write_bytes(self._folder / file.name, file.read_bytes())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()
        self.sync()
        if self._here:
            self._here.cleanup()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        with contextlib.suppress(OSError):  # what is held up is written later
            self._writer.write_event(event)
            self._writer.flush()
