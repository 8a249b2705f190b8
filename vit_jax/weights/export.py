"""A network as one file that serves without this package: StableHLO by jax.export, or ONNX.

uint8 [batch, height, width, channel] in, float32 probabilities [batch, class] out, for any batch.
"""

import dataclasses
import importlib.util
import logging
import pathlib
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.data.augment import normalize
from vit_jax.errors import UsageError, closest
from vit_jax.models.config import NetworkConfig, ViTConfig
from vit_jax.models.network import graphdef
from vit_jax.weights.load import read_weights
from vit_jax.weights.locate import locate
from vit_jax.weights.paths import exists, in_bucket, one_line
from vit_jax.weights.run_folder import RunFolder, read_json, write_json
from vit_jax.weights.stored import Stored

FORMATS = ("stablehlo", "onnx")
PLATFORMS = ("cpu", "tpu")
ABOUT = "model.json"
_NEEDS = {"stablehlo": (), "onnx": ("jax2onnx", "onnxruntime")}

Function = Callable[[jax.Array], jax.Array]


class Exported(NamedTuple):
    """What was written, and how far its answers are from those of the network."""

    file: pathlib.Path
    network: NetworkConfig
    bytes: int
    largest_difference: float


def export(
    source: str | pathlib.Path, target: pathlib.Path, file_format: str = "stablehlo"
) -> Exported:
    """Writes the network that `source` stands for, as in `load`, into the new folder `target`.

    The file is read back and run on batches of 1 and 3 before it appears.
    """
    _check(target, file_format)
    path = locate(source)
    stored = read_weights(path)
    network = _served(stored.network, file_format)
    if not network.num_classes:
        raise UsageError(f"{source} has no head to give probabilities: fine-tune it first")
    activation = _activation(path)
    serve = _function(network, stored, activation)
    write, run = (
        (_write_onnx, _run_onnx) if file_format == "onnx" else (_write_stablehlo, _run_stablehlo)
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        folder = pathlib.Path(place) / target.name
        folder.mkdir()
        file = folder / f"model.{file_format}"
        write(file, serve, network)
        difference = _difference(serve, run(file), network)
        write_json(folder / ABOUT, _about(network, stored, activation, file_format))
        folder.rename(target)
    file = target / file.name
    size = sum(part.stat().st_size for part in target.glob(f"{file.name}*"))  # ONNX may have two
    return Exported(file, network, size, difference)


def _check(target: pathlib.Path, file_format: str) -> None:
    if file_format not in FORMATS:
        raise UsageError(
            f"--format={file_format}: expected one of {', '.join(FORMATS)}."
            f"{closest(file_format, FORMATS)}"
        )
    if in_bucket(target):
        raise UsageError(f"{target}: export to a folder on disk, and copy it there")
    if exists(target):
        raise UsageError(f"{target} is there already: choose another name, or delete it first")
    missing = [name for name in _NEEDS[file_format] if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"--format=onnx needs {missing[0]}: pip install 'vit_jax[onnx]'")


def _served(network: NetworkConfig, file_format: str) -> NetworkConfig:
    """Computed by plain operations, which every platform has; one after the other for ONNX."""
    network = dataclasses.replace(network, remat="none")
    if isinstance(network, ViTConfig):
        network = dataclasses.replace(network, attention="plain")
    if file_format == "onnx":  # of which runtimes on CPUs know no bfloat16
        network = dataclasses.replace(network, dtype="float32")
        if isinstance(network, ViTConfig):
            network = dataclasses.replace(network, scan=False)
    return network


def _activation(path: pathlib.Path) -> str:
    """What made probabilities of logits in training: a run with several labels has the sigmoid."""
    folder = RunFolder(path)
    is_sigmoid = folder.is_run() and read_json(folder.config).get("loss") == "sigmoid"
    return "sigmoid" if is_sigmoid else "softmax"


def _function(network: NetworkConfig, stored: Stored, activation: str) -> Function:
    model = nnx.merge(graphdef(network), jax.tree.map(jnp.asarray, stored.params))
    probabilities = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid}[activation]
    return lambda images: probabilities(model(normalize(images)))


def _write_stablehlo(file: pathlib.Path, serve: Function, network: NetworkConfig) -> None:
    from jax import export as jax_export

    (batch,) = jax_export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *network.image_size, network.channels), jnp.uint8)
    exported = jax_export.export(jax.jit(serve), platforms=PLATFORMS)(images)
    file.write_bytes(exported.serialize())


def _run_stablehlo(file: pathlib.Path) -> Callable[[np.ndarray], np.ndarray]:
    from jax import export as jax_export

    return jax_export.deserialize(bytearray(file.read_bytes())).call


def _write_onnx(file: pathlib.Path, serve: Function, network: NetworkConfig) -> None:
    import jax2onnx

    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of every shape it infers
    images = jax.ShapeDtypeStruct(("batch", *network.image_size, network.channels), jnp.uint8)
    try:
        jax2onnx.to_onnx(
            serve,
            [images],
            model_name=network.name,
            return_mode="file",
            output_path=file,
            input_names=["images"],
            output_names=["probabilities"],
        )
    except Exception as error:  # whatever operation its library does not know
        raise UsageError(
            f"{network.name} cannot be written as ONNX ({one_line(error)}): use --format=stablehlo"
        ) from error


def _run_onnx(file: pathlib.Path) -> Callable[[np.ndarray], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # else it tells of every constant that it does not need
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images})[0]


def _difference(
    serve: Function, run: Callable[[np.ndarray], np.ndarray], network: NetworkConfig
) -> float:
    """The largest of probabilities, on random images in batches of two sizes."""
    rng, largest = np.random.default_rng(0), 0.0
    for batch in (1, 3):
        shape = (batch, *network.image_size, network.channels)
        images = rng.integers(0, 256, shape, dtype=np.uint8)
        found = np.abs(np.asarray(run(images)) - np.asarray(serve(jnp.asarray(images)))).max()
        largest = max(largest, float(found))
    tolerance = 1e-4 if network.dtype == "float32" else 1e-2
    if not largest <= tolerance:
        raise RuntimeError(f"exported, but probabilities differ by {largest}")
    return largest


def _about(
    network: NetworkConfig, stored: Stored, activation: str, file_format: str
) -> dict[str, object]:
    """What a server has to know."""
    size = [*network.image_size, network.channels]
    return {
        "network": network.name,
        "input": {"dtype": "uint8", "shape": ["batch", *size], "range": [0, 255]},
        "output": {"dtype": "float32", "shape": ["batch", network.num_classes]},
        "probabilities": activation,
        "resize": "bilinear, without antialiasing, to the whole of the shape",
        "platforms": list(PLATFORMS) if file_format == "stablehlo" else ["onnxruntime"],
        "class_names": list(stored.class_names),
    }
