"""What a checkpoint says about itself: name, shape, type and checksum of every array in it.

Checksums are of values, not of files. They are computed where the arrays are, on the devices, the
same for any mesh: saving reads nothing back, and restoring verifies what arrived, read once.
"""

import json
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.errors import UsageError
from vit_jax.weights.paths import in_bucket

MANIFEST = "manifest"
_FILE = pathlib.Path(MANIFEST) / "metadata"  # where Orbax puts a JSON item of that name


class Damaged(Exception):
    """A checkpoint that is not what was saved; says how."""


def make_manifest(items: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Of the arrays in `items`, with `notes`: plain values that are kept beside them."""
    leaves = _named(items)
    checksums = jax.device_get(_checksums(list(leaves.values())))
    body = {
        "leaves": {
            name: [*_form(leaf), int(checksum)]
            for (name, leaf), checksum in zip(leaves.items(), checksums, strict=True)
        },
        "notes": dict(notes),
    }
    return {"crc32": _crc32(body), **body}


def read_manifest(step: pathlib.Path) -> dict[str, Any]:
    """That of a step's folder; a step without one was never finished."""
    try:
        text = (step / _FILE).read_text()
    except (OSError, UnicodeDecodeError) as error:
        if in_bucket(step) and not isinstance(error, FileNotFoundError | UnicodeDecodeError):
            raise  # a bucket that gives no answer says nothing about the checkpoint
        raise Damaged("it is incomplete: it has no manifest that can be read") from error
    try:
        found = json.loads(text)
        crc32 = found.pop("crc32")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Damaged("its manifest is damaged") from error
    if crc32 != _crc32(found):
        raise Damaged("its manifest is damaged")
    return found


def check_forms(manifest: Mapping[str, Any], items: Mapping[str, Any], place: str) -> None:
    """Refuses a checkpoint whose `items` are of other names, shapes or types than these."""
    stored = {
        name: (shape, dtype)
        for name, (shape, dtype, _) in manifest["leaves"].items()
        if name.split("/")[0] in items
    }
    wanted = {name: _form(leaf) for name, leaf in _named(items).items()}
    differing = [
        f"{name} is {_text(stored.get(name))}, expected {_text(wanted.get(name))}"
        for name in stored | wanted
        if stored.get(name) != wanted.get(name)
    ]
    if differing:
        more = f"; and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise UsageError(
            f"{place} is of another network or optimizer: {'; '.join(differing[:5])}{more}. "
            f"Give the config that it was trained with, or choose another folder"
        )


def verify(manifest: Mapping[str, Any], items: Mapping[str, Any]) -> None:
    """Raises Damaged with the names of arrays that are not what was saved."""
    leaves = _named(items)
    checksums = jax.device_get(_checksums(list(leaves.values())))
    wrong = [
        name
        for name, checksum in zip(leaves, checksums, strict=True)
        if manifest["leaves"][name][2] != int(checksum)
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise Damaged(f"its checksums are wrong: {', '.join(wrong[:3])}{more}")


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(leaf) for leaf in leaves]


def _checksum(leaf: jax.Array) -> jax.Array:
    """A sum of mixed words. Each is mixed with its place by steps that can be undone, so that a
    change of one word always shows, and of several but once in 2^32; sums of whole numbers are the
    same in any order, so on any mesh."""
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    words = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")
    words = words.astype(jnp.uint32) ^ (_places(leaf.shape) * jnp.uint32(0x9E3779B1))
    for shift, factor in ((16, 0xA2D3C6B5), (15, 0x6F4D8E2B)):
        words = (words ^ (words >> shift)) * jnp.uint32(factor)
    words ^= words >> 16
    for _ in leaf.shape:
        # One axis after another: on CPUs five times as fast as a sum over all of them at once,
        # which is what the compiler would make of it without a barrier in between.
        words = jax.lax.optimization_barrier(jnp.sum(words, axis=0, dtype=jnp.uint32))
    return words


def _places(shape: tuple[int, ...]) -> jax.Array:
    """The number of each element, counted row by row, modulo 2^32."""
    place = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return place


def _named(items: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by names as in params/head/kernel."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(dict(items))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _form(leaf: Any) -> tuple[list[int], str]:
    return list(leaf.shape), str(leaf.dtype)


def _text(form: tuple[list[int], str] | None) -> str:
    return "missing" if form is None else f"{form[1]}{form[0]}"


def _crc32(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
