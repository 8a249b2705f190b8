#!/usr/bin/env python3
"""Runs a training command as several processes on this machine that train one model together.

    launch/local.py --processes=2 --devices-per-process=2 -- \
        vit-jax train --config=configs/demo.py --workdir=runs/two

A rehearsal of a pod: real processes, real collectives, CPU devices. Exit code: the first that is
not 0, after the other processes were stopped.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time


def main() -> int:
    arguments = _parse()
    address = f"localhost:{_free_port()}"
    environments = [
        _environment(arguments, address, number) for number in range(arguments.processes)
    ]
    if arguments.dry_run:
        for environment in environments:
            settings = " ".join(f"{key}={value}" for key, value in environment.items())
            print(f"{settings} {shlex.join(arguments.command)}")
        return 0
    processes = [
        subprocess.Popen(arguments.command, env=os.environ | environment)
        for environment in environments
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `finally`, to the children
    return _wait(processes)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--devices-per-process", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="print what would run")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    return parser.parse_args()


def _environment(arguments: argparse.Namespace, address: str, number: int) -> dict[str, str]:
    """What vit_jax/train/cluster.py reads, and the virtual devices of one process."""
    return {
        "VIT_JAX_COORDINATOR": address,
        "VIT_JAX_PROCESSES": str(arguments.processes),
        "VIT_JAX_PROCESS": str(number),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(arguments.devices_per_process),
    }


def _wait(processes: list[subprocess.Popen]) -> int:
    """Until all are done, or one has failed: one process cannot go on without the others."""
    try:
        while True:
            codes = [process.poll() for process in processes]
            failed = [code for code in codes if code]
            if failed or None not in codes:
                return failed[0] if failed else 0
            time.sleep(0.1)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # JAX holds on to SIGTERM while others are missing
                process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
