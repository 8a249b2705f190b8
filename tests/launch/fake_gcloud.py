#!/usr/bin/env python3
"""A `gcloud` for tests: queued resources whose hosts are folders, and preemption at will.

All is in the folder $FAKE_GCLOUD: calls.jsonl (what it was asked), state, hosts/SLICE-HOST (their
homes, gone with the machines), bin/ (what hosts have on PATH), and settings.json: "slices" and
"hosts" of each, and what goes wrong. A word under "preempt", "disconnect" or "unplug", said by a
host, has the machines preempted, the connection broken, or that host fall silent, once. "unknown":
calls of describe, by number, that get no answer.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

FOLDER = pathlib.Path(os.environ["FAKE_GCLOUD"])
STATE, HOSTS = FOLDER / "state", FOLDER / "hosts"
SETTINGS = json.loads((FOLDER / "settings.json").read_text())
CONNECTIONS: list[subprocess.Popen] = []  # of this call, to its hosts


def main() -> int:
    with (FOLDER / "calls.jsonl").open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    assert sys.argv[1:4] == ["compute", "tpus", "queued-resources"], sys.argv
    verb, *arguments = sys.argv[4:]
    return {"create": create, "describe": describe, "delete": delete, "scp": scp, "ssh": ssh}[verb](
        arguments
    )


def create(arguments):
    assert not STATE.exists(), "it is there already"
    if "refuse" in SETTINGS:
        print(f"ERROR: (gcloud) {SETTINGS['refuse']}", file=sys.stderr)
        return 1
    [kind] = [a.removeprefix("--accelerator-type=") for a in arguments if "accelerator" in a]
    (FOLDER / "kind").write_text(kind)
    if "vanishes" not in SETTINGS:
        STATE.write_text("WAITING_FOR_RESOURCES")
    return 0


def describe(arguments):
    assert arguments[-1] == "--format=json"
    if _count("describe") in SETTINGS.get("unknown", []):
        print("ERROR: (gcloud) UNAVAILABLE: try again", file=sys.stderr)
        return 1
    if not STATE.exists():
        print("ERROR: (gcloud) NOT_FOUND: Resource was not found", file=sys.stderr)
        return 1
    state = STATE.read_text()
    several = {"multisliceParams": {"nodeCount": SETTINGS["slices"]}}
    node = {"node": {"acceleratorType": (FOLDER / "kind").read_text()}}
    told = {"state": {"state": state}, "tpu": {"nodeSpec": [node | several]}}
    if state == "FAILED":
        told["state"]["failedData"] = {"error": {"message": SETTINGS["fails"]}}
    print(json.dumps(told))
    # Waiting takes one look, provisioning another.
    after = {"WAITING_FOR_RESOURCES": "PROVISIONING", "PROVISIONING": "ACTIVE"}.get(state, state)
    after = "FAILED" if after == "PROVISIONING" and "fails" in SETTINGS else after
    if after != state:  # else it may have been preempted meanwhile
        STATE.write_text(after)
    if after == "ACTIVE":
        for home in homes():
            home.mkdir(parents=True, exist_ok=True)
    return 0


def delete(arguments):
    assert "--force" in arguments and "--quiet" in arguments
    if not STATE.exists():
        print("ERROR: (gcloud) NOT_FOUND: Resource was not found", file=sys.stderr)
        return 1
    STATE.unlink()
    (FOLDER / "unplugged").unlink(missing_ok=True)  # the next machine is another
    shutil.rmtree(HOSTS, ignore_errors=True)
    return 0


def scp(arguments):
    files = [a for a in arguments if not a.startswith("--") and not a.endswith(":")]
    for home in homes():
        for file in files:
            shutil.copy(file, home)
    return 0


def ssh(arguments):
    flags = dict(a.removeprefix("--").split("=", 1) for a in arguments if a.startswith("--"))
    # No more than 64 at once, the others when those are done, and a failure of one says little.
    chosen = [home for home in homes() if _is_chosen(home, flags["node"], flags["worker"])]
    for first in range(0, len(chosen), 64):
        threads = [
            threading.Thread(target=on_host, args=(home, flags["command"]))
            for home in chosen[first : first + 64]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0


def _is_chosen(home, *wanted):
    for number, choice in zip(home.name.split("-"), wanted, strict=True):
        first, _, last = choice.partition("-")
        if choice != "all" and not int(first) <= int(number) <= int(last or first):
            return False
    return True


def on_host(home, command):
    if (FOLDER / "unplugged").exists() and (FOLDER / "unplugged").read_text() == home.name:
        return
    environment = {
        "HOME": str(home),
        "PATH": f"{FOLDER / 'bin'}:/usr/bin:/bin",
        "FAKE_HOST": home.name,
        **SETTINGS.get("environment", {}),
    }
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=home, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    CONNECTIONS.append(process)
    for line in process.stdout:
        print(line, end="", flush=True)
        if _once("preempt", line):
            preempt()
        if _once("disconnect", line):
            os._exit(255)
        if _once("unplug", line):
            (FOLDER / "unplugged").write_text(home.name)
            _kill(home)
            return


def _once(what, line):
    done = FOLDER / f"{what}.done"
    if SETTINGS.get(what, "\0") not in line or done.exists():
        return False
    done.touch()
    return True


def _count(what):
    path = FOLDER / f"{what}.count"
    number = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(number))
    return number


def preempt():
    """The machines are gone, with all that ran and lay there, and the connection with them."""
    for connection in CONNECTIONS:  # a host that was still starting its run starts none
        with contextlib.suppress(ProcessLookupError):
            os.killpg(connection.pid, signal.SIGKILL)
    for home in homes():
        _kill(home)
    while HOSTS.exists():  # whoever was about to write may have made removing fail
        shutil.rmtree(HOSTS, ignore_errors=True)
    STATE.write_text("SUSPENDED")  # last: whoever sees it may ask for new ones at once
    os._exit(255)


def _kill(home):
    for file in (home / "vit_jax" / ".job").glob("process"):
        # The process and whoever waits for it; it may have ended by itself.
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.killpg(os.getpgid(int(file.read_text())), signal.SIGKILL)


def homes():
    return [
        HOSTS / f"{part}-{host}"
        for part in range(SETTINGS["slices"])
        for host in range(SETTINGS["hosts"])
    ]


if __name__ == "__main__":
    sys.exit(main())
