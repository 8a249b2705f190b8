import functools

import pytest
from jax.experimental import pallas as pl


@pytest.fixture
def interpreted(monkeypatch):
    """TPU kernels run on the CPU."""
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))
