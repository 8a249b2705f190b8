"""Programs that a launcher starts: their lines, their logs, and what Ctrl-C does to them."""

import contextlib
import dataclasses
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

TOLD_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def call(command: Sequence[str]) -> subprocess.CompletedProcess:
    """Out of reach of Ctrl-C: what was begun is ended."""
    return subprocess.run(command, capture_output=True, text=True, start_new_session=True)


@contextlib.contextmanager
def running(commands: Sequence[Sequence[str]]) -> Iterator["queue.Queue[str | None]"]:
    """The lines of processes, None when all have ended. Ctrl-C does not reach them."""
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            text=True, errors="replace", start_new_session=True,
        )
        for command in commands
    ]  # fmt: skip
    lines: queue.Queue[str | None] = queue.Queue()

    def read(process: subprocess.Popen) -> None:
        for line in process.stdout:
            lines.put(line.rstrip("\n"))

    readers = [threading.Thread(target=read, args=(p,), daemon=True) for p in processes]

    def tell_the_end() -> None:
        for reader in readers:
            reader.join()
        lines.put(None)

    for thread in (*readers, threading.Thread(target=tell_the_end, daemon=True)):
        thread.start()
    try:
        yield lines
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the connections that it opened
            process.wait()


@dataclasses.dataclass(frozen=True)
class Logs:
    """logs/NAME/TIME-WHAT/HOST.log: of every host, what it said."""

    folder: pathlib.Path

    @property
    def newest(self) -> pathlib.Path:
        """That of the last thing that was done."""
        return max(self.folder.iterdir(), key=os.path.getmtime)

    @contextlib.contextmanager
    def opened(self, what: str) -> Iterator[Callable[[str, str], None]]:
        folder = self.folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{what}"
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, IO[str]] = {}

        def log(host: str, line: str) -> None:
            if not (host or line):  # what goes before an exit code
                return
            name = host or "gcloud"
            if name not in files:
                files[name] = stack.enter_context((folder / f"{name}.log").open("a"))
            files[name].write(line + "\n")
            files[name].flush()

        with contextlib.ExitStack() as stack:
            yield log


@contextlib.contextmanager
def told_to_stop_is_an_interrupt() -> Iterator[None]:
    """Ctrl-C, a scheduler, a terminal that is closed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in TOLD_TO_STOP}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
