"""Several processes that train one model together."""

import os

import jax

# What launch/local.py tells the processes that it starts.
COORDINATOR, PROCESSES, PROCESS = "VIT_JAX_COORDINATOR", "VIT_JAX_PROCESSES", "VIT_JAX_PROCESS"


def join() -> None:
    """Joins the other processes of this job, if there are any; before anything touches a device."""
    if address := os.environ.get(COORDINATOR):
        jax.distributed.initialize(address, int(os.environ[PROCESSES]), int(os.environ[PROCESS]))


def is_lead() -> bool:
    """True in the one process that writes files and speaks."""
    return jax.process_index() == 0
