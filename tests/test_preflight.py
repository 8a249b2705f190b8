"""What would end a job early is found before: all of it at once, each in one line."""

import json

import pytest

from tests.data.images import broken_folder
from tests.train.small_run import small_config
from vit_jax.cli import dispatch, run_verb
from vit_jax.errors import UsageError
from vit_jax.preflight import Job, preflight
from vit_jax.tpu.topologies import topology
from vit_jax.train.config import run_config


def look(workdir, slice_=None, skip=(), changes=(), **values):
    config = small_config(**values)
    config.update_from_flattened_dict(dict(changes))
    return {c.name: c for c in preflight(Job(run_config(config), str(workdir), slice_), skip)}


def test_a_job_that_can_start(tmp_path):
    checks = look(tmp_path / "new", topology("v5litepod-1"))
    assert all(check.is_good for check in checks.values()), checks
    assert checks["data"].found.startswith("digits train has 1,297 images")
    assert checks["workdir"].found.endswith("can be written to; a new run")
    assert "fits v5litepod-1" in checks["plan"].found


def test_a_run_that_is_there_goes_on(trained_run):
    checks = look(trained_run, skip=["plan"], total="3 steps")
    assert checks["workdir"].found.endswith("goes on from step 3") and "plan" not in checks


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    checks = look(
        tmp_path / "file", topology("v5litepod-1"), batch_size=2**16, image_size=512,
        changes={"data.name": "/no/such", "init": "no/weights"},
    )  # fmt: skip
    assert not any(check.is_good for check in checks.values())
    assert "no such folder: /no/such" in checks["data"].found
    assert "no such file or folder: no/weights" in checks["weights"].found
    assert "is no folder to write to" in checks["workdir"].found


def test_a_step_that_does_not_fit(tmp_path):
    checks = look(
        tmp_path, topology("v5litepod-1"), batch_size=16_384, image_size=256,
        changes={"model.name": "Pico/4"},
    )  # fmt: skip
    assert not checks["plan"].is_good
    assert "of 16 GiB a chip on v5litepod-1" in checks["plan"].found
    assert "`vit-jax plan` with the same flags" in checks["plan"].found


def test_an_image_that_cannot_be_read_matters_where_the_config_says_so(tmp_path):
    folder = str(broken_folder(tmp_path / "images"))
    skip = ["plan", "workdir"]
    assert look(tmp_path, skip=skip, changes={"data.name": folder})["data"].is_good
    strict = {"data.name": folder, "data.on_bad_image": "raise"}
    check = look(tmp_path, skip=skip, changes=strict)["data"]
    assert not check.is_good and "cannot be read, as " in check.found


def test_a_check_that_does_not_exist_cannot_be_left_out(tmp_path):
    with pytest.raises(UsageError, match="Did you mean plan"):
        look(tmp_path, skip=["plans"])


def test_as_a_user_types_it(tmp_path, capsys):
    flags = ["--config=configs/demo.py", f"--workdir={tmp_path}", "--skip=plan"]
    assert run_verb(dispatch, ["preflight", *flags]) == 0
    assert [line[:8] for line in capsys.readouterr().out.splitlines()] == [
        "ok   dat", "ok   wei", "ok   wor",
    ]  # fmt: skip
    assert run_verb(dispatch, ["preflight", *flags, "--config.init=none", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [check["is_good"] for check in told] == [True, False, True]


def test_a_bucket_is_written_to(bucket, bucket_server):
    skip = ["data", "plan"]
    assert look(f"{bucket}/run", skip=skip)["workdir"].is_good
    assert not bucket_server.objects[bucket.removeprefix("gs://")]  # and left as it was
    bucket_server.refuse = lambda method, bucket, name: 403 if method == "POST" else None
    check = look(f"{bucket}/run", skip=skip)["workdir"]
    assert not check.is_good and "cannot be written to" in check.found and "\n" not in check.found
