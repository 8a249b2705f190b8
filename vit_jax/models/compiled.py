"""jax.jit for what computes with networks: the compiler of this machine is told what suits them."""

import functools
from collections.abc import Callable
from typing import Any

import jax

# XLA gives matmuls on CPUs, with what is around them, to a library of small kernels (YNNPACK). With
# its own matmuls a train step of S/16 takes 2.1 s where it took 3.2 (8 images, two cores).
_OPTIONS = {"cpu": {"xla_cpu_experimental_ynn_fusion_type": ""}}


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
    """Those that this version of the compiler knows: all, or none."""
    options = _OPTIONS.get(backend, {})
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:  # no such option
        return {}
    return options
