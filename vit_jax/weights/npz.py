"""npz files: named arrays on disk, read without ever executing anything."""

import io
import pathlib
import zipfile
import zlib

import ml_dtypes
import numpy as np

from vit_jax.errors import UsageError
from vit_jax.weights.paths import in_bucket, write_bytes

_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, SyntaxError, RuntimeError,
)  # fmt: skip
_PICKLE = "it holds pickled Python objects, which can run any code and are never read here"


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of a file. bfloat16, which numpy stores as two bytes of void, becomes float32."""
    if not path.is_file():
        raise UsageError(f"no such file: {path}; expected an npz with weights")
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if start[:1] == b"\x80":
        raise UsageError(f"{path} is no npz: {_PICKLE}; save arrays with numpy.savez")
    if start == b"\x93NUMPY":
        raise UsageError(f"{path} is one array (npy): expected an npz with all weights")
    if start[:2] != b"PK":  # numpy would take anything else for a pickle
        raise UsageError(f"{path} is no complete npz: it does not start as one; copy it again")
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            if foreign := [name for name in file.zip.namelist() if not name.endswith(".npy")]:
                torch = any(name.endswith("data.pkl") for name in foreign)
                raise UsageError(
                    f"{path} is no npz but {'a PyTorch file' if torch else 'another archive'} "
                    f"(with {foreign[0]}): save its arrays with numpy.savez"
                )
            return {key: _readable(file[key]) for key in file.files}
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise UsageError(f"{path} is damaged: {_line(error)}; copy it again") from error
        raise UsageError(f"{path} is refused: {_PICKLE}; save arrays with numpy.savez") from error
    except _DAMAGE as error:
        raise UsageError(
            f"{path} is no complete npz ({_line(error)}): it may be cut off, copy it again"
        ) from error


def write_arrays(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes a file in one move, so that nobody ever finds half of it."""
    if in_bucket(path):
        memory = io.BytesIO()
        np.savez(memory, **arrays)
        write_bytes(path, memory.getvalue())
        return
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _readable(array: np.ndarray | bytes) -> np.ndarray:
    if isinstance(array, bytes):  # numpy's way to say that it is none
        raise ValueError("it holds a file that is no array")
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    if array.dtype in (ml_dtypes.bfloat16, np.float16):
        return array.astype(np.float32)
    return array


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
