"""The lines of metrics.jsonl as they are written: appended to a file, or kept for an object.

`append` and `sync` raise OSError where it cannot be written, after some patience.
"""

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import time

from vit_jax.weights.paths import exists, in_bucket, one_line, write_bytes

_PAUSES = (0.5, 2.0, 8.0)  # seconds, before writing is tried again
_UPLOAD_SECONDS = 10.0  # between uploads; a bucket refuses one object more than once a second


def read_lines(path: pathlib.Path) -> list[bytes]:
    """Those that were written to their end."""
    if not exists(path):
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def cut_lines(path: pathlib.Path, count: int) -> None:
    """All but the first so many are dropped."""
    kept = b"".join(read_lines(path)[:count])
    if in_bucket(path):
        write_bytes(path, kept)
    else:
        os.truncate(path, len(kept))


def open_records(path: pathlib.Path) -> "RecordFile | RecordObject":
    """To be written after the lines that are there."""
    return RecordObject(path) if in_bucket(path) else RecordFile(path)


class RecordFile:
    """On disk: each line is there when `append` returns."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._size = sum(map(len, read_lines(path)))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        os.ftruncate(self._file, self._size)  # what a crash cut off is no record

    def append(self, line: bytes) -> None:
        for pause in (*_PAUSES, None):
            try:
                if not os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                    raise FileNotFoundError("another file is in its place")
                if os.pwrite(self._file, line, self._size) < len(line):
                    raise OSError(errno.ENOSPC, "a part of a record was written, and no more")
                self._size += len(line)
                return
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._size)
                if pause is None or isinstance(error, FileNotFoundError):
                    raise
                time.sleep(pause)

    def sync(self) -> None:
        """Until what was written outlives the machine."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


class RecordObject:
    """In a bucket, where nothing can be appended: the whole is replaced now and then, beside the
    training, and by `sync`. What a crash takes away are steps after the last checkpoint, which are
    taken again."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._lines = read_lines(path)
        self._uploaded = len(self._lines)
        self._due = time.monotonic() + _UPLOAD_SECONDS
        self._background = concurrent.futures.ThreadPoolExecutor(1, "records")
        self._upload: concurrent.futures.Future | None = None

    def append(self, line: bytes) -> None:
        self._lines.append(line)
        is_idle = self._upload is None or self._upload.done()
        if is_idle and time.monotonic() > self._due:
            # One that fails is no harm: the next has all of it, and `sync` is what counts.
            self._upload = self._background.submit(self._write)
            self._due = time.monotonic() + _UPLOAD_SECONDS

    def sync(self) -> None:
        """Until what was written outlives the machine."""
        for pause in (*_PAUSES, None):
            try:
                self._background.submit(self._write).result()
                return
            except Exception as error:  # of many kinds, from the network and Google's libraries
                if pause is None:
                    raise OSError(one_line(error)) from error
                time.sleep(pause)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a run that ends well has synced
            self.sync()
        self._background.shutdown()

    def _write(self) -> None:
        count = len(self._lines)
        if count > self._uploaded:
            write_bytes(self._path, b"".join(self._lines[:count]))
            self._uploaded = count
