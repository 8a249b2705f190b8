"""Eight virtual CPU devices for every test, so that meshes are real."""

import os
import pathlib

# Read by JAX when it is imported, and by the processes that tests start. libtpu is installed for
# its compiler only. Tests spend their time compiling small programs, many of them more than once.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "JAX_COMPILATION_CACHE_DIR": str(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
}

import jax

jax.config.update("jax_num_cpu_devices", 8)
