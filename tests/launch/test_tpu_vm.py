"""TPU VMs on paper: a gcloud that makes folders of machines, everything else as it is."""

import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

from vit_jax.weights.paths import as_path
from vit_jax.weights.run_folder import RunFolder

ROOT = pathlib.Path(__file__).parents[2]
TRAIN = ["vit-jax", "train", "--config=configs/demo.py", "--workdir=gs://bucket/run"]
GCLOUD = "gcloud compute tpus queued-resources"


def command(*flags, job=TRAIN, topology="v5litepod-16"):
    flags = ["--name=vit", "--zone=z", f"--topology={topology}", *flags, "--", *job]
    return [sys.executable, "launch/tpu_vm.py", *flags]


def launch(*flags, environment=None, cwd=ROOT, **options):
    return subprocess.run(
        command(*flags, **options), capture_output=True, text=True, cwd=cwd,
        env=environment or os.environ, timeout=400,
    )  # fmt: skip


DRY = """\
# on this machine, before anything is created
vit-jax preflight --topology=v5p-128 --slices=2 --config=configs/demo.py --workdir=gs://bucket/run \
'--config.total=3 steps'

# unless there is one; then until it is ACTIVE
{gcloud} create vit --zone=z --project=p --accelerator-type=v5p-128 --node-count=2 \
--node-prefix=vit --runtime-version=v2-alpha-tpuv5 --spot --network=mine --async
{gcloud} describe vit --zone=z --project=p --format=json

# vit_jax.tar.gz: this tree; vit_jax.environment: variables of the run
#   SECRET=(as here, not shown)
#   PLAIN='a b'
{gcloud} scp vit_jax.tar.gz vit_jax.environment vit: --zone=z --project=p --worker=all --node=all
{gcloud} ssh vit --zone=z --project=p --worker=all --node=all --batch-size=64 \
--ssh-flag=-oServerAliveInterval=30 --ssh-flag=-oServerAliveCountMax=4 \
'--command=mkdir -p vit_jax && tar -xzf vit_jax.tar.gz -C vit_jax && install -m 600 \
vit_jax.environment vit_jax/.environment && rm vit_jax.environment && bash \
vit_jax/launch/worker.sh install'

# again after exit codes 42 and 127-255, 10 times in a row
{gcloud} ssh vit --zone=z --project=p --worker=all --node=all --batch-size=64 \
--ssh-flag=-oServerAliveInterval=30 --ssh-flag=-oServerAliveCountMax=4 \
'--command=bash vit_jax/launch/worker.sh run ID vit-jax train --config=configs/demo.py \
--workdir=gs://bucket/run '"'"'--config.total=3 steps'"'"''

# at the end
{gcloud} delete vit --zone=z --project=p --force --quiet
"""


def test_a_dry_run_prints_what_would_run_and_no_secret():
    result = launch(
        "--project=p", "--slices=2", "--spot", "--create-flag=--network=mine", "--env=SECRET",
        "--env=PLAIN=a b", "--dry-run", topology="v5p-128", job=[*TRAIN, "--config.total=3 steps"],
        environment=os.environ | {"SECRET": "swordfish"},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == DRY.format(gcloud=GCLOUD)


@pytest.mark.parametrize(
    ("flags", "options", "says"),
    [
        ([], {"topology": "v5litpod-16"}, "Did you mean v5litepod?"),
        ([], {"topology": "v5p-9"}, "v5p comes in sizes"),
        ([], {"topology": "tpu7x-128"}, "launch it with launch/gke.py"),
        (["--slices=0"], {}, "slices=0: expected 1 or more"),
        (["--name=Vit"], {}, "--name=Vit: expected lower-case"),
        ([], {"job": ["python", "x.py"]}, "'python x.py' is nothing for a pod"),
        ([], {"job": ["vit-jax", "trian"]}, "Did you mean train?"),
        (["--env=A-B=c"], {}, "--env=A-B: expected NAME or NAME=VALUE"),
        ([], {"job": [*TRAIN[:3], "--workdir=runs/x"]}, "give a bucket, as in gs://bucket/vit"),
        ([], {"job": ["vit-jax", "train", "--config=no.py"]}, "no such config file: no.py"),
        ([], {"job": ["vit-jax", "train", f"--config={__file__}"]}, None),
        ([], {"job": ["vit-jax", "train", "--config=/etc/hostname"]}, "is not in the tree"),
    ],
)
def test_a_mistake_gets_one_line(flags, options, says):
    result = launch(*flags, "--dry-run", **options)
    if says is None:  # a config anywhere in the tree will do
        assert result.returncode == 0 and "--config=tests/launch/test_tpu_vm.py" in result.stdout
        return
    assert result.returncode == 2 and says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_config_that_is_not_copied_is_refused():
    ignored = ROOT / "runs" / "ignored_by_git.py"
    ignored.parent.mkdir(exist_ok=True)
    ignored.touch()
    try:
        result = launch("--dry-run", job=["vit-jax", "train", f"--config={ignored}"])
    finally:
        ignored.unlink()
    assert result.returncode == 2 and "is ignored by git, and so not copied" in result.stderr


def test_as_many_hosts_as_gcloud_takes_at_once():
    flags = ("--dry-run", "--slices=2")
    lines = launch(*flags, topology="v5p-1024").stdout.splitlines()
    runs = [line for line in lines if "worker.sh run" in line]
    chosen = [re.search(r"--worker=(\S+) --node=(\S+)", line).groups() for line in runs]
    assert chosen == [("0-63", "0"), ("64-127", "0"), ("0-63", "1"), ("64-127", "1")]


def test_a_missing_gcloud_gets_one_line(tmp_path):
    (tmp_path / "git").symlink_to(shutil.which("git"))
    result = launch(environment={"PATH": str(tmp_path), "JAX_PLATFORMS": "cpu"})
    assert result.returncode == 2
    assert re.fullmatch(r"vit-jax: gcloud is not on PATH: .*\n", result.stderr)


# A run of six steps, one file each in the "bucket", that goes on where it was.
RUN = """#!/usr/bin/env bash
trap 'echo saved; exit 42' TERM
step=$(ls "$BUCKET" | wc -l)
echo "from step $step with $SECRET"
while [ "$step" -lt 6 ]; do
  sleep ${PACE:-0.2}
  step=$((step + 1))
  [ "$FAKE_HOST" = 0-0 ] && touch "$BUCKET/$step"
  echo "step $step"
  [ "$step" = "${FAILS_AT:-none}" ] && exit "${FAILS_WITH}"
done
echo "all done: $*"
"""
UV = """#!/usr/bin/env bash
case "$1 $2" in
  "venv "*) mkdir -p .venv/bin; cp {run} .venv/bin/vit-jax ;;
  "pip freeze") echo "jax==1"; [ "$FAKE_HOST" = "${{ODD_HOST:-none}}" ] && echo "flax==0" ;;
esac
exit 0
"""
CURL = """#!/usr/bin/env bash
case "${@: -1}" in
  */tpu-env) echo "MEGASCALE_SLICE_ID: '${FAKE_HOST%-*}'" ;;
  */agent-worker-number) echo -n "${FAKE_HOST#*-}" ;;
esac
"""


class Cloud:
    """A fake gcloud on PATH, its hosts, and a bucket."""

    def __init__(self, folder, *, slices=1, hosts=1, **settings):
        self.folder, self.bucket = folder, folder / "bucket"
        self.hosts = slices * hosts
        for name in ("bin", "path", "bucket"):
            (folder / name).mkdir()
        run = self.program("run", RUN)
        self.program("bin/uv", UV.format(run=run))
        self.program("bin/curl", CURL)
        fake = pathlib.Path(__file__).with_name("fake_gcloud.py")
        self.program("path/gcloud", f'#!/bin/sh\nexec {sys.executable} {fake} "$@"\n')
        seen = {"BUCKET": str(self.bucket), **settings.pop("environment", {})}
        settings = {"slices": slices, "hosts": hosts, "environment": seen, **settings}
        (folder / "settings.json").write_text(json.dumps(settings))
        self.environment = os.environ | {
            "PATH": f"{folder / 'path'}:{os.environ['PATH']}",
            "FAKE_GCLOUD": str(folder),
            "SECRET": "swordfish",
        }

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def launch(self, *flags, topology="v5litepod-4"):
        flags = ("--poll-seconds=0.3", f"--logs={self.folder / 'logs'}", "--env=SECRET", *flags)
        return launch(
            *flags, "--skip-preflight=all", topology=topology, environment=self.environment
        )

    def state(self):
        path = self.folder / "state"
        return path.read_text() if path.exists() else None

    def verbs(self):
        """What gcloud was asked, without the looks at the state."""
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        calls = [json.loads(line) for line in lines]
        return [self._word(call) for call in calls if call[3] != "describe"]

    def _word(self, call):
        found = re.search(r"worker.sh (\w+)", " ".join(call))
        return found[1] if found else call[3]

    def logs(self, what, host):
        paths = sorted((self.folder / "logs" / "vit").glob(f"*-{what}/{host}.log"))
        return [path.read_text() for path in paths]


def test_create_run_preempted_create_again_resume_delete(tmp_path):
    cloud = Cloud(tmp_path, hosts=4, preempt="0-0|step 3")
    result = cloud.launch("--spot", topology="v5litepod-16")
    assert result.returncode == 0, result.stderr
    once = ["create", "scp", "install", "run"]
    assert cloud.verbs() == [*once, "delete", *once, "delete"]
    assert len(list(cloud.bucket.iterdir())) == 6
    assert "vit is SUSPENDED: preempted" in result.stderr
    # Shown is host 0, kept is every host.
    assert result.stdout.splitlines()[:2] == ["from step 0 with swordfish", "step 1"]
    assert "from step 3 with swordfish" in result.stdout
    assert result.stdout.endswith("all done: train --config=configs/demo.py "
                                  "--workdir=gs://bucket/run\n")  # fmt: skip
    assert all("all done" in cloud.logs("run", f"0-{host}")[-1] for host in range(4))
    # The secret reached the hosts, and no log of the launcher or of gcloud.
    assert "swordfish" not in result.stderr
    assert "swordfish" not in (tmp_path / "calls.jsonl").read_text()


def test_the_slices_of_a_job_are_one_job(tmp_path):
    cloud = Cloud(tmp_path, slices=2, hosts=1)
    result = cloud.launch("--slices=2")
    assert result.returncode == 0, result.stderr
    assert cloud.verbs() == ["create", "scp", "install", "run", "delete"]
    assert result.stdout.count("all done") == 1
    assert "all done" in cloud.logs("run", "1-0")[0]


def test_machines_that_are_kept_are_used_again_and_nothing_is_installed_twice(tmp_path):
    cloud = Cloud(tmp_path)
    assert cloud.launch("--keep").returncode == 0
    shutil.rmtree(cloud.bucket)
    cloud.bucket.mkdir()
    assert cloud.launch().returncode == 0
    once = ["scp", "install", "run"]
    assert cloud.verbs() == ["create", *once, "busy", *once, "delete"]


def test_a_connection_that_breaks_costs_nothing(tmp_path):
    cloud = Cloud(tmp_path, disconnect="0-0|step 3")
    result = cloud.launch()
    assert result.returncode == 0, result.stderr
    assert "the connection broke, the run goes on" in result.stderr
    assert cloud.verbs() == ["create", "scp", "install", "run", "run", "delete"]
    # The run was not started again, and nothing is shown twice.
    steps = [line for line in result.stdout.splitlines() if line.startswith("step")]
    assert steps == [f"step {n}" for n in range(1, 7)]
    assert result.stdout.count("from step 0") == 1


def test_a_run_that_ends_while_nobody_listens_tells_its_exit_code_later(tmp_path):
    failing = {"FAILS_AT": "4", "FAILS_WITH": "1"}
    cloud = Cloud(tmp_path, environment=failing, disconnect="0-0|step 3")
    result = cloud.launch("--poll-seconds=3")
    assert result.returncode == 1, result.stderr
    assert result.stdout.splitlines()[-1] == "step 4" and cloud.state() is None


def test_gcloud_gives_no_answer_for_a_while(tmp_path):
    cloud = Cloud(tmp_path, unknown=[2, 5, 6, 7])
    result = cloud.launch()
    assert result.returncode == 0, result.stderr
    assert cloud.verbs().count("run") == 1 and cloud.state() is None


def test_a_host_that_falls_silent_has_the_machines_replaced(tmp_path):
    cloud = Cloud(tmp_path, hosts=4, unplug="0-2|step 3")
    result = cloud.launch(topology="v5litepod-16")
    assert result.returncode == 0, result.stderr
    assert "vit is ACTIVE: hosts do not answer, see " in result.stderr
    assert [verb for verb in cloud.verbs() if verb in ("create", "delete")] == [
        "create", "delete", "create", "delete",
    ]  # fmt: skip


@pytest.mark.parametrize(("code", "runs"), [(42, 2), (137, 2), (1, 1), (2, 1)])
def test_exit_codes_decide_on_a_restart(tmp_path, code, runs):
    failing = {"FAILS_AT": "4", "FAILS_WITH": str(code)}
    cloud = Cloud(tmp_path, environment=failing)
    result = cloud.launch()
    assert result.returncode == (0 if runs == 2 else code), result.stderr
    assert cloud.verbs().count("run") == runs and cloud.verbs()[-1] == "delete"


def test_other_versions_on_one_host_are_found_before_the_run(tmp_path):
    cloud = Cloud(tmp_path, hosts=4, environment={"ODD_HOST": "0-2"})
    result = cloud.launch(topology="v5litepod-16")
    assert result.returncode == 1
    assert "hosts 0-2 have other versions than the rest" in result.stderr
    assert cloud.verbs() == ["create", "scp", "install", "delete"]


def test_slices_that_cannot_be_had(tmp_path):
    cloud = Cloud(tmp_path, fails="no quota for v5e")
    result = cloud.launch()
    assert result.returncode == 1 and "cannot be had: no quota for v5e" in result.stderr
    assert cloud.verbs() == ["create", "delete"]


def test_gcloud_refuses(tmp_path):
    cloud = Cloud(tmp_path, refuse="PERMISSION_DENIED: not yours")
    result = cloud.launch()
    assert result.returncode == 1 and result.stderr.endswith("PERMISSION_DENIED: not yours\n")


def test_slices_that_are_created_and_never_seen(tmp_path):
    cloud = Cloud(tmp_path, vanishes=True)
    result = cloud.launch()
    assert result.returncode == 1 and "was created, and is not there" in result.stderr


def begin(cloud, *flags, until="step 2\n", job=TRAIN):
    flags = ("--poll-seconds=0.3", f"--logs={cloud.folder / 'logs'}", "--env=SECRET", *flags)
    launcher = subprocess.Popen(
        command(*flags, "--skip-preflight=all", topology="v5litepod-4", job=job), cwd=ROOT,
        env=cloud.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while launcher.stdout.readline() != until:
        assert launcher.poll() is None
    return launcher


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_stop_the_run_saves_and_the_machines_go(tmp_path, number):
    cloud = Cloud(tmp_path)
    launcher = begin(cloud)
    launcher.send_signal(number)
    said = launcher.communicate(timeout=60)[1]
    assert launcher.returncode == 42, said
    assert cloud.verbs() == ["create", "scp", "install", "run", "stop", "delete"]
    assert len(list(cloud.bucket.iterdir())) < 6


def test_told_to_stop_again_and_again_the_machines_still_go(tmp_path):
    cloud = Cloud(tmp_path)
    launcher = begin(cloud)
    for _ in range(4):
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.05)
    launcher.communicate(timeout=60)
    assert cloud.verbs()[-1] == "delete" and cloud.state() is None


SLOWLY = {"PACE": "4"}  # a second launcher takes a while to start


def test_a_launcher_that_died_leaves_a_run_that_another_follows(tmp_path):
    cloud = Cloud(tmp_path, environment=SLOWLY)
    launcher = begin(cloud)
    launcher.kill()
    launcher.communicate()
    result = cloud.launch()
    assert result.returncode == 0, result.stderr
    assert cloud.verbs() == ["create", "scp", "install", "run", "busy", "run", "delete"]
    assert result.stdout.count("from step 0") == 1 and "all done" in result.stdout


def test_machines_that_do_something_else_are_left_alone(tmp_path):
    cloud = Cloud(tmp_path, environment=SLOWLY)
    launcher = begin(cloud, job=[*TRAIN, "--config.seed=1"])
    result = cloud.launch()
    assert result.returncode == 2
    assert "--name=vit is busy with vit-jax train" in result.stderr.splitlines()[-1]
    assert launcher.wait(timeout=60) == 0


def test_machines_of_another_size_are_left_alone(tmp_path):
    cloud = Cloud(tmp_path)
    assert cloud.launch("--keep").returncode == 0
    result = cloud.launch(topology="v5litepod-16")
    assert result.returncode == 2 and cloud.state() == "ACTIVE"
    assert "--name=vit is there, as v5litepod-4: choose another name" in result.stderr


def test_a_job_that_would_not_fit_is_not_launched(tmp_path):
    cloud = Cloud(tmp_path)
    job = ["vit-jax", "train", "--config=configs/demo.py", "--workdir=gs://b/x",
           "--config.mesh.fsdp=3"]  # fmt: skip
    result = launch("--skip-preflight=workdir", job=job, environment=cloud.environment)
    assert result.returncode == 1
    assert "BAD  plan     mesh replica=-1 x fsdp=3 x tensor=1 does not fit 16" in result.stdout
    assert "nothing was launched" in result.stderr
    assert cloud.verbs() == []


REAL_UV = """#!/usr/bin/env bash
case "$1 $2" in
  "venv "*)
    mkdir -p .venv/bin
    printf '#!/bin/sh\\nexec {python} -m vit_jax.cli "$@"\\n' > .venv/bin/vit-jax
    chmod +x .venv/bin/vit-jax ;;
  "pip freeze") echo "jax==1" ;;
esac
"""


@pytest.mark.slow
def test_a_real_run_is_preempted_and_resumes_from_its_bucket(tmp_path, bucket, bucket_server):
    """The copied tree trains; all that survives of it is in the bucket."""
    seen = {key: value for key, value in os.environ.items() if key.startswith(("JAX_", "XLA_"))}
    seen |= bucket_server.environment | {"JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": "."}
    cloud = Cloud(tmp_path, environment=seen, preempt="] step 40/")
    cloud.program("bin/uv", REAL_UV.format(python=sys.executable))
    job = [
        "vit-jax", "train", "--config=configs/demo.py:stage=finetune", f"--workdir={bucket}/run",
        "--config.total=400 steps", "--config.batch_size=8", "--config.image_size=16",
        "--config.optimizer.warmup=2 steps", "--config.log_every=40 steps",
        "--config.checkpoint_every=10 steps", "--config.evaluators.digits.every=100%",
    ]  # fmt: skip
    flags = ("--poll-seconds=0.3", f"--logs={tmp_path / 'logs'}", "--skip-preflight=plan")
    result = launch(*flags, job=job, topology="v5litepod-4", environment=cloud.environment)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert f"ok   workdir  {bucket}/run can be written to; a new run" in result.stdout
    once = ["create", "scp", "install", "run"]
    assert cloud.verbs() == [*once, "delete", *once, "delete"]
    resumed = int(re.search(r"resuming at step (\d+)", result.stdout)[1])
    assert 10 <= resumed < 400
    records = RunFolder(as_path(f"{bucket}/run")).metrics_records()
    assert [record["step"] for record in records] == list(range(40, 401, 40))
