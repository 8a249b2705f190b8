"""Programs are compiled with what suits this machine, and parts of programs with them."""

import ctypes
import pathlib

import jax
import jax.numpy as jnp
import pytest

from vit_jax.models import compiled as module
from vit_jax.models.compiled import compiled, compiler_options


@pytest.fixture
def double():
    return compiled(lambda x, times: times * x, static_argnums=1)


def test_matmuls_are_xlas_own():
    product = compiled(lambda x, y: x @ y)
    x = jnp.ones((64, 64))
    assert product(x, x)[0, 0] == 64
    assert "ynn_fusion" not in product.jitted().lower(x, x).compile().as_text()
    default = jax.jit(lambda x, y: x @ y).lower(x, x).compile().as_text()
    assert "ynn_fusion" in default  # else there is no need for the option any more


def test_inside_of_another_program_it_is_a_part_of_that(double):
    assert jax.jit(lambda x: double(x, 3) + 1)(2.0) == 7
    assert jax.grad(lambda x: double(x, 3))(2.0) == 3


def test_it_is_compiled_once(double):
    for value in (1.0, 2.0, 3.0):
        double(value, 2)
    assert double.jitted()._cache_size() == 1


def test_an_option_that_the_compiler_does_not_know_is_left_out(monkeypatch):
    known = compiler_options("cpu")
    options = {"cpu": {**known, "xla_cpu_of_another_version": "1"}}
    monkeypatch.setattr(module, "_OPTIONS", options)
    compiler_options.cache_clear()
    assert compiler_options("cpu") == known != {}


def test_memory_that_compiling_took_is_given_back():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes, size = [ctypes.c_void_p], 2**16

    def held():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

    blocks = [libc.malloc(size) for _ in range(2000)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:  # the last one keeps the end of the heap where it is
        libc.free(block)
    before = held()
    event = "/jax/core/compile/backend_compile_duration"
    jax.monitoring.record_event_duration_secs(event, 0.1)  # a small program: not worth the while
    assert held() > before - 50e6
    jax.monitoring.record_event_duration_secs(event, 2.0)
    assert held() < before - 100e6
    libc.free(blocks[-1])
