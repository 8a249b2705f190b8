"""Runs of the demo's configs, a few steps each, and how two networks are compared."""

import os
import pathlib

# As in tests/conftest.py: time goes into compiling small programs, many of them more than once.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
    "JAX_COMPILATION_CACHE_DIR": str(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    "HF_HUB_OFFLINE": "1",
}

import numpy as np
import pytest

from vit_jax.train.config import run_config
from vit_jax.train.flags import load_config
from vit_jax.train.loop import train


def demo_run(workdir, **model):
    """The demo's fine-tuning from random weights, cut short."""
    config = load_config("configs/demo.py:stage=scratch")
    config.update(total="12 steps", batch_size=32)
    config.optimizer.update(name="adamw", learning_rate=1e-3)  # SGD would leave the head near 0
    config.model.update(**model)
    train(run_config(config), workdir)
    return workdir


@pytest.fixture(scope="session")
def gap_run(tmp_path_factory):
    """As the demo has it, pooling by the mean."""
    return demo_run(tmp_path_factory.mktemp("gap_run"))


@pytest.fixture(scope="session")
def token_run(tmp_path_factory):
    """With a class token, the only pooling that transformers knows."""
    return demo_run(tmp_path_factory.mktemp("token_run"), pooling="token")


@pytest.fixture
def images():
    """uint8 images of the demo's size."""
    return np.random.default_rng(0).integers(0, 256, (3, 48, 48, 3), dtype=np.uint8)
