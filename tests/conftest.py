"""Eight virtual CPU devices for every test, so that meshes are real."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # libtpu is installed for its compiler; there is no TPU

import jax

jax.config.update("jax_num_cpu_devices", 8)
