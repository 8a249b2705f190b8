"""What a process is told before it begins."""

import os
import pathlib
import subprocess
import sys

from vit_jax.startup import CACHE_FOLDER, TUNABLES, huge_pages, keep_compiled

MADVISE, ALWAYS = "always [madvise] never", "[always] madvise never"


def test_compiled_programs_are_kept_among_the_users_caches():
    environment = {"VIT_JAX_CACHE": "/somewhere"}
    keep_compiled(environment)
    assert pathlib.Path(environment[CACHE_FOLDER]).parent == pathlib.Path("/somewhere/compiled")


def test_a_folder_that_was_chosen_stays():
    environment = {CACHE_FOLDER: "/chosen"}
    keep_compiled(environment)
    assert environment == {CACHE_FOLDER: "/chosen"}


def test_large_pages_are_asked_for_where_the_kernel_waits_to_be_asked():
    assert huge_pages({}, MADVISE) == {TUNABLES: "glibc.malloc.hugetlb=1"}
    assert huge_pages({}, ALWAYS) == huge_pages({}, "") == {}


def test_what_was_said_about_pages_stays():
    other = {TUNABLES: "glibc.malloc.arena_max=1"}
    assert huge_pages(other, MADVISE)[TUNABLES].startswith("glibc.malloc.arena_max=1:")
    assert huge_pages({TUNABLES: "glibc.malloc.hugetlb=2"}, MADVISE) == {}
    assert huge_pages({"VIT_JAX_HUGE_PAGES": "0"}, MADVISE) == {}


def test_a_process_starts_again_once_and_with_the_same_arguments():
    script = (
        "import os, sys, vit_jax.startup as s\n"
        f"s._kernel_mode = lambda: {MADVISE!r}\n"
        "s.use_huge_pages(); print(os.environ['GLIBC_TUNABLES'], sys.argv[1:])"
    )
    environment = {key: value for key, value in os.environ.items() if key != TUNABLES}
    result = subprocess.run(
        [sys.executable, "-c", script, "a b"], env=environment, capture_output=True, text=True
    )
    assert result.stdout == "glibc.malloc.hugetlb=1 ['a b']\n", result.stderr


def test_a_program_that_was_damaged_in_the_cache_is_compiled_again(tmp_path):
    script = (
        "import jax, jax.numpy as jnp\n"
        "print(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((3, 3)))[0, 0])"
    )
    environment = os.environ | {
        CACHE_FOLDER: str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def run():
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    first = run().stdout
    entries = list(tmp_path.glob("*-cache"))
    assert entries
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:100])
    assert run().stdout == first
