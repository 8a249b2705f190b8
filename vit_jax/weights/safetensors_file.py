"""safetensors files: named arrays on disk, in which nothing can execute."""

import pathlib

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from vit_jax.errors import UsageError
from vit_jax.weights.paths import exists, one_line, write_bytes
from vit_jax.weights.run_folder import read_json

NAME, INDEX = "model.safetensors", "model.safetensors.index.json"

# By hand, because safetensors.numpy knows no bfloat16.
_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip


def read_folder(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of a folder: of one file, or of several that an index lists."""
    names = listed(folder / INDEX) if exists(folder / INDEX) else [NAME]
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        arrays |= read_safetensors(folder / name)
    return arrays


def listed(index: pathlib.Path) -> list[str]:
    """The files that an index lists, which must lie beside it."""
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        strangers = [name for name in names if pathlib.PurePosixPath(name).name != name]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"{index} is no index of safetensors ({error!r})") from error
    if strangers:
        raise UsageError(f"{index} names {strangers[0]!r}: expected files beside it")
    return names


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of a file; floats of 2 bytes become float32."""
    if not exists(path):
        raise UsageError(
            f"no such file: {path}; expected weights as safetensors (where there is only a "
            f"pytorch_model.bin, which can run any code: save it again with save_pretrained)"
        )
    try:
        stored = safetensors.deserialize(path.read_bytes())
    except (safetensors.SafetensorError, OSError) as error:
        raise UsageError(
            f"{path} is no complete safetensors file ({one_line(error)}): it may be cut off, "
            f"copy it again"
        ) from error
    return {name: _array(name, tensor, path) for name, tensor in stored}


def write_safetensors(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """In one move. The mark `pt` is what torch's libraries look for."""
    write_bytes(path, safetensors.numpy.save(arrays, metadata={"format": "pt"}))


def _array(name: str, tensor: dict, path: pathlib.Path) -> np.ndarray:
    if tensor["dtype"] not in _DTYPES:
        raise UsageError(f"{path}: {name} holds {tensor['dtype']}, expected real numbers")
    array = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    small = array.dtype in (np.float16, ml_dtypes.bfloat16)
    return array.astype(np.float32) if small else array
