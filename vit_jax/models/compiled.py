"""jax.jit for what computes with networks: the compiler of this machine is told what suits them."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import jax

# Not xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED, which would save a seventh of the
# temporaries: the devices of a mesh then come to collectives in different orders, and wait forever.
_OPTIONS = {
    "cpu": {
        # XLA gives matmuls on CPUs, with what is around them, to a library of small kernels
        # (YNNPACK). With its own a forward pass of S/16 takes 0.58 s, not 0.67 (8 images, 2 cores).
        "xla_cpu_experimental_ynn_fusion_type": "",
    }
}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`function`, jitted with the options of jax.jit, and with those of the backend's compiler.

    Inside of another program it is a part of that one, and has no compiler options of its own.
    """
    part = jax.jit(function, **options)

    @functools.cache
    def whole(backend: str) -> Any:
        return jax.jit(function, compiler_options=compiler_options(backend), **options)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        is_part = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs)))
        return (part if is_part else whole(jax.default_backend()))(*args, **kwargs)

    run.jitted = lambda: whole(jax.default_backend())  # to look at what was compiled
    return run


@functools.cache
def compiler_options(backend: str) -> dict[str, str]:
    """Those that this version of the compiler knows."""
    options = _OPTIONS.get(backend, {})
    if _are_known(options):
        return dict(options)
    return {name: value for name, value in options.items() if _are_known({name: value})}


def _are_known(options: dict[str, str]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:  # no such option, or no such value
        return False
    return True


def _give_memory_back(event: str, seconds: float, **_: Any) -> None:
    """Of what compiling took glibc keeps 0.4 GB for later, of which arrays get nothing: they are
    mapped one by one."""
    if event == "/jax/core/compile/backend_compile_duration" and seconds > 1:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # glibc
            trim(0)


jax.monitoring.register_event_duration_secs_listener(_give_memory_back)
