"""Runs to look at."""

import shutil

import pytest

from tests.train.small_run import small_config
from vit_jax.insight.report import write_report
from vit_jax.train.config import evaluator, run_config
from vit_jax.train.loop import train


@pytest.fixture
def run(trained_run, tmp_path):
    """A copy of a run of three steps, without evaluations."""
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory):
    """A run with evaluations of two kinds, and its report. Not to be changed."""
    path = tmp_path_factory.mktemp("runs") / "evaluated"
    config = small_config(total="4 steps")
    config.evaluators.digits = evaluator("digits", every="50%")
    config.evaluators.few = evaluator("digits", kind="fewshot", every="100%", shots=(1, 2))
    train(run_config(config), path)
    return path, write_report([path]).read_text()
