#!/usr/bin/env python3
"""Runs a training command as several processes on this machine that train one model together.

    launch/local.py --processes=2 --devices-per-process=2 -- \
        vit-jax train --config=configs/demo.py --workdir=runs/two

A rehearsal of a pod: real processes, real collectives, CPU devices, and the contract of JobSet and
SLURM. A process that dies (127-255, or by a signal) or asks for it (42) has the whole job started
again, and the run goes on from its newest good checkpoint; any other code ends it. SIGTERM and
Ctrl-C are passed on. Exit code: 0 done, else that of the first process that failed.
"""

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time

from restarts import DIED, DONE, RESTART, Restarts, is_temporary, verdict

GRACE_SAVED = 60.0  # seconds for the other processes: they are saving too
GRACE_DEAD, GRACE_FAILED = 0.3, 5.0  # nobody can go on without the dead; the failed say why


def main() -> int:
    arguments = _parse()
    if arguments.dry_run:
        for number in range(arguments.processes):
            settings = _environment(arguments, "localhost:PORT", number)
            text = " ".join(f"{key}={value}" for key, value in settings.items())
            print(f"{text} {shlex.join(arguments.command)}")
        return DONE
    return _Supervisor(arguments).run()


class _Supervisor:
    """Starts the job, again and again, until it is done, hopeless, or told to stop."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._processes: list[subprocess.Popen] = []
        self._is_stopping = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def run(self) -> int:
        restarts = Restarts(self._arguments.restarts, self._arguments.pause)
        while True:
            restarts.begin()
            code = self._run_once()
            if self._is_stopping or not is_temporary(code):
                return code
            pause = restarts.next_pause()
            if pause is None:
                _say(f"exit code {code}, and {restarts.count} restarts did not help")
                return code
            _say(f"exit code {code}: restart {restarts.count} in {pause:.1f} s")
            self._sleep(pause)
            if self._is_stopping:
                return code

    def _run_once(self) -> int:
        address = f"localhost:{_free_port()}"
        # In sessions of their own: a Ctrl-C reaches them once, from here.
        self._processes = [
            subprocess.Popen(
                self._arguments.command,
                env=os.environ | _environment(self._arguments, address, number),
                start_new_session=True,
            )
            for number in range(self._arguments.processes)
        ]
        if self._is_stopping:  # told while they were being started
            self._pass_on(signal.SIGTERM, None)
        try:
            code = self._first_failure()
            if not code:
                return DONE
            self._wait(_grace(code))
            ended = (_positive(process.poll()) for process in self._processes)
            return verdict([code, *filter(None, ended)])
        finally:
            for process in self._processes:
                if process.poll() is None:
                    process.kill()
                process.wait()

    def _first_failure(self) -> int:
        """The exit code of the first that is not done, or 0 when all are."""
        while True:
            codes = [process.poll() for process in self._processes]
            for code in codes:
                if code:
                    return _positive(code)
            if None not in codes:
                return DONE
            time.sleep(0.05)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(p.poll() is None for p in self._processes):
            time.sleep(0.05)

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._is_stopping:
            time.sleep(0.05)

    def _pass_on(self, number: int, _: object) -> None:
        self._is_stopping = True
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--devices-per-process", type=int, default=1)
    parser.add_argument("--restarts", type=int, default=10, help="in a row, before giving up")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds before the first restart; then doubled"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would run")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    arguments = parser.parse_args()
    for flag in ("processes", "devices_per_process"):
        if getattr(arguments, flag) < 1:
            parser.error(f"--{flag.replace('_', '-')} must be 1 or more")
    # The vit-jax of this environment, which need not be activated.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    if shutil.which(arguments.command[0]) is None:
        parser.error(f"no such program: {arguments.command[0]}")
    return arguments


def _environment(arguments: argparse.Namespace, address: str, number: int) -> dict[str, str]:
    """What vit_jax/train/cluster.py reads, and the virtual devices of one process."""
    return {
        "VIT_JAX_COORDINATOR": address,
        "VIT_JAX_PROCESSES": str(arguments.processes),
        "VIT_JAX_PROCESS": str(number),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(arguments.devices_per_process),
    }


def _grace(code: int) -> float:
    if code == RESTART:
        return GRACE_SAVED
    return GRACE_DEAD if code in DIED else GRACE_FAILED


def _positive(code: int | None) -> int | None:
    """As a shell has it: 137 for a process that was killed by signal 9."""
    return 128 - code if code is not None and code < 0 else code


def _say(text: str) -> None:
    print(f"launch/local.py: {text}", file=sys.stderr, flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
