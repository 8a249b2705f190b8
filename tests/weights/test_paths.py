"""What a user types becomes a path, on disk or in a bucket, which are used alike."""

import importlib.util
import pathlib

import pytest

from vit_jax.errors import UsageError
from vit_jax.weights.paths import (
    as_path,
    check_bucket,
    exists,
    in_bucket,
    modified_at,
    move_folder,
    resolved,
    size_of,
    walk,
    write_bytes,
)


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
    """An empty one."""
    return as_path(tmp_path if request.param == "disk" else request.getfixturevalue("bucket"))


def test_what_was_typed(bucket, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert as_path("~/run") == pathlib.Path("/home/someone/run") and not in_bucket(as_path("~/run"))
    path = as_path(f"{bucket}/runs/mine") / "config.json"
    assert in_bucket(path) and str(resolved(path)) == f"{bucket}/runs/mine/config.json"
    assert as_path(path) == path


@pytest.mark.parametrize("text", ["s3://bucket/run", "gs:/bucket/run", "gs://", "gs:///run"])
def test_what_is_neither_is_refused(text):
    with pytest.raises(UsageError, match=r"as in gs://bucket/run"):
        as_path(text)


def test_without_gcsfs_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'vit_jax\[gcs\]'"):
        as_path("gs://bucket/run")


def test_files_are_replaced_as_a_whole(folder):
    path = folder / "deep" / "file"
    assert not exists(path)
    for data in (b"one", b"three\r\n--\n", b""):
        write_bytes(path, data)
        assert exists(path) and path.read_bytes() == data and size_of(path) == len(data)
    assert modified_at(path) > 1.7e9
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_folders_are_moved_with_all_that_is_in_them(folder):
    for name in ("5/a", "5/b/c", "50/a"):
        write_bytes(folder / name, name.encode())
    move_folder(folder / "5", folder / "aside" / "5")
    files = {str(place / name) for place, _, names in walk(folder) for name in names}
    assert files == {str(folder / name) for name in ("aside/5/a", "aside/5/b/c", "50/a")}
    assert (folder / "aside/5/b/c").read_bytes() == b"5/b/c"


def test_what_is_taken_out_of_a_walk_is_not_looked_into(folder):
    for name in ("one/config.json", "one/checkpoints/1/array", "two/config.json"):
        write_bytes(folder / name, b"")
    seen = []
    for place, folders, files in walk(folder):
        folders[:] = [name for name in folders if name != "checkpoints"]
        seen += [place.name for name in files]
    assert sorted(seen) == ["one", "two"]


def test_objects_that_stand_for_folders_are_no_files(bucket, bucket_server):
    """As the console makes them, and some tools that copy."""
    for name in ("runs/", "runs/one/", "runs/one/config.json"):
        bucket_server.put(bucket.removeprefix("gs://"), name, b"", {})
    folder = as_path(bucket) / "runs"
    assert list(walk(folder)) == [(folder, ["one"], []), (folder / "one", [], ["config.json"])]


def test_others_that_write_are_seen(bucket, bucket_server):
    """No listing is remembered: TensorStore and other hosts write as well."""
    path = as_path(bucket) / "run"
    write_bytes(path / "a", b"")
    assert [found.name for found in path.iterdir()] == ["a"]
    bucket_server.put(bucket.removeprefix("gs://"), "run/b", b"", {})
    assert [found.name for found in path.iterdir()] == ["a", "b"]


def test_a_bucket_that_gives_no_answer_is_no_empty_one(bucket, bucket_server):
    path = as_path(bucket) / "run" / "config.json"
    write_bytes(path, b"{}")
    bucket_server.refuse = lambda method, bucket, name: 403
    with pytest.raises(UsageError, match=r"cannot look at gs://.*403"):
        exists(path)


def test_buckets_to_write_to_are_looked_at_first(bucket, bucket_server, monkeypatch):
    check_bucket(as_path(bucket) / "run")
    with pytest.raises(UsageError, match="there is no bucket gs://other"):
        check_bucket(as_path("gs://other/run"))
    assert "other" not in bucket_server.objects
    bucket_server.refuse = lambda method, bucket, name: 403
    with pytest.raises(UsageError, match=r"need the roles storage\.objectUser"):
        check_bucket(as_path(bucket) / "run")


def test_without_credentials_it_says_how_to_get_some(bucket, monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="gcloud auth application-default login"):
        check_bucket(as_path(bucket) / "run")
