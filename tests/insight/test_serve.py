"""A report that follows its run."""

import http.client
import json
import signal
import socket
import subprocess
import sys

import pytest

from vit_jax.cli import dispatch, run_verb

# What a shell runs in its background, these tests say, is deaf to Ctrl-C: not so in a terminal.
VERB = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from vit_jax.cli import main
sys.exit(main())
"""


@pytest.fixture
def server(run):
    """The verb in a process of its own: (process, port)."""
    command = [sys.executable, "-c", VERB, "report", "--serve", str(run), "--port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = process.stdout.readline()
    assert address.startswith("http://127.0.0.1:"), process.stderr.read()
    yield process, int(address.split("/")[2].split(":")[1])
    process.kill()
    process.communicate()


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_it_follows_the_run_and_ends_with_ctrl_c(run, server):
    process, port = server
    status, page = get(port, "/")
    assert status == 200 and "data-live" in page
    assert "nothing is drawn yet: vit-jax report" in page  # the machine is the run's
    before = json.loads(get(port, "/curves.json")[1])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "train/loss": 0.5}\n')
    after = json.loads(get(port, "/curves.json")[1])
    assert after["runs"][0]["x"]["step"] == [*before["runs"][0]["x"]["step"], 7]
    assert after["panels"][0]["series"][0]["y"][-1] == 0.5
    assert get(port, "/etc/passwd")[0] == 404
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0 and error == ""


def test_a_port_that_is_taken_gets_one_line(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_verb(dispatch, ["report", "--serve", str(run), f"--port={port}"]) == 2
    error = capsys.readouterr().err
    assert f"--port={port} cannot be used" in error and len(error.splitlines()) == 1


def test_a_port_that_is_none_gets_one_line(run, capsys):
    assert run_verb(dispatch, ["report", "--serve", str(run), "--port=70000"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_is_no_run_is_told_at_once(tmp_path, capsys):
    assert run_verb(dispatch, ["report", "--serve", str(tmp_path)]) == 2
    assert "is no run folder" in capsys.readouterr().err
