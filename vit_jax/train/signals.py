"""Being asked to stop: SIGTERM (a preemption) or Ctrl-C. Twice Ctrl-C stops at once.

All processes of a job stop after the same step, whichever of them was asked.
"""

import os
import signal
import socket
import sys
import threading

from jax.experimental import multihost_utils

from vit_jax.train.cluster import is_alone

_INTERRUPTED = 130


class StopSignals:
    """Listens for them. A context manager."""

    def __init__(self) -> None:
        self._is_asked = False
        self._answers = 0
        self._interrupts = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python handles signals nowhere else
        # Read by a thread of its own: the main one may hang in a collective and never see it.
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        threading.Thread(target=self._listen, daemon=True).start()
        self._fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        # Among several processes SIGTERM is JAX's: it tells the others.
        for number in (signal.SIGINT, signal.SIGTERM) if is_alone() else (signal.SIGINT,):
            self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._fd)
            self._sender.close()  # which ends the thread

    def is_asked(self) -> bool:
        """Whether to stop now; the same answer in all processes, so ask after each step."""
        if is_alone():
            return self._is_asked
        # JAX agrees on the answer after the latest one, of which it knows the number only: those
        # are counted, from 1. The number of a step that is resumed would leave out the answer
        # that is agreed on when the signal comes before the first.
        self._answers += 1
        return multihost_utils.reached_preemption_sync_point(self._answers)

    def _listen(self) -> None:
        with self._receiver:
            while number := self._receiver.recv(1):
                if number[0] == signal.SIGINT:
                    self._interrupts += 1
                    if self._interrupts > 1:
                        os._exit(_INTERRUPTED)
                    print("\nvit-jax: saving; once more to stop at once", file=sys.stderr)
                self._is_asked = True
                if not is_alone() and number[0] == signal.SIGINT:
                    os.kill(os.getpid(), signal.SIGTERM)
