"""jax.jit for what computes with networks: the compiler of this machine is told what suits them."""

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
    return {
        name: value for name, value in _OPTIONS.get(backend, {}).items() if _is_known(name, value)
    }


def _is_known(name: str, value: str) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:  # no such option, or no such value
        return False
    return True
