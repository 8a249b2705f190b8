"""Checksums of values: the same on any mesh, different for any change."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.errors import UsageError
from vit_jax.train.config import MeshConfig
from vit_jax.train.sharding import make_mesh
from vit_jax.weights.manifest import (
    MANIFEST,
    Damaged,
    check_forms,
    make_manifest,
    read_manifest,
    verify,
)


@pytest.fixture(scope="module")
def items():
    rng = np.random.default_rng(0)
    return {
        "params": {"kernel": rng.normal(size=(8, 16, 4)).astype(np.float32), "bias": np.zeros(16)},
        "progress": {"step": np.int32(7), "moment": jnp.ones((8, 4), jnp.bfloat16)},
    }


def test_any_layout_has_the_same_checksums(items):
    whole = make_manifest({"params": items["params"]}, {})
    mesh = make_mesh(MeshConfig(replica=2, fsdp=2, tensor=2))
    for spec in (P(), P("fsdp"), P(("replica", "fsdp"), "tensor"), P(None, ("fsdp", "tensor"))):
        kernel = jax.device_put(items["params"]["kernel"], NamedSharding(mesh, spec))
        laid_out = make_manifest({"params": items["params"] | {"kernel": kernel}}, {})
        assert laid_out["leaves"] == whole["leaves"]


def test_any_flipped_bit_shows(items):
    manifest, kernel = make_manifest(items, {}), items["params"]["kernel"]
    for bit in range(32):
        changed = kernel.copy()
        changed.view(np.uint32)[3, 5, bit % 4] ^= np.uint32(1 << bit)
        with pytest.raises(Damaged, match=r"checksums are wrong: params/kernel$"):
            verify(manifest, items | {"params": items["params"] | {"kernel": changed}})


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::-1],
        lambda x: -x,
        lambda x: np.zeros_like(x),
        lambda x: np.roll(x, 1),
        lambda x: np.where(np.arange(4) < 2, -x, x),
    ],
)
def test_more_than_one_change_shows(items, change):
    changed = items["params"] | {"kernel": change(items["params"]["kernel"])}
    with pytest.raises(Damaged, match="params/kernel"):
        verify(make_manifest(items, {}), items | {"params": changed})


def test_what_differs_is_named(items):
    manifest = make_manifest(items, {})
    check_forms(manifest, {"params": items["params"]}, "runs/a")
    other = {"kernel": np.zeros((8, 16, 5), np.float32), "scale": np.zeros(3, np.float32)}
    with pytest.raises(UsageError) as error:
        check_forms(manifest, {"params": other}, "runs/a")
    assert "params/kernel is float32[8, 16, 4], expected float32[8, 16, 5]" in str(error.value)
    assert "params/bias is float64[16], expected missing" in str(error.value)
    assert "params/scale is missing, expected float32[3]" in str(error.value)


def test_the_manifest_guards_itself(items, tmp_path):
    manifest = make_manifest(items, {"goodput": {"step": 1.25}})
    file = tmp_path / MANIFEST / "metadata"
    file.parent.mkdir()
    with pytest.raises(Damaged, match="incomplete"):
        read_manifest(tmp_path)
    file.write_text(json.dumps(manifest))
    assert read_manifest(tmp_path)["notes"] == {"goodput": {"step": 1.25}}
    for text in ("", "{}", "[1]", json.dumps(manifest)[:-9], json.dumps(manifest | {"notes": {}})):
        file.write_text(text)
        with pytest.raises(Damaged, match="manifest is damaged"):
            read_manifest(tmp_path)
