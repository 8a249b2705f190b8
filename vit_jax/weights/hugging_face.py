"""Networks as folders of Hugging Face's transformers: model.safetensors and its JSON files."""

import pathlib
import re
from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, ViTConfig, as_size
from vit_jax.weights.foreign import (
    check_unused,
    exact_name,
    named_classes,
    with_normalization,
)
from vit_jax.weights.kind import read_config
from vit_jax.weights.layouts import from_arrays, to_arrays
from vit_jax.weights.paths import exists
from vit_jax.weights.refusals import check_fits
from vit_jax.weights.run_folder import read_json, write_json
from vit_jax.weights.safetensors_file import NAME, read_folder, write_safetensors
from vit_jax.weights.stored import Stored

PREPROCESSOR = "preprocessor_config.json"

_ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_WRITTEN = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}

# What transformers 5 calls modules in memory, and how it still spells them on disk.
_IN_MEMORY = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def read_hugging_face(folder: pathlib.Path) -> Stored:
    """The ViT in a folder; ViTModel's files as well, whose pooler is the tanh layer of ours."""
    config = read_config(folder)
    if config.get("model_type") != "vit":
        raise UsageError(
            f"{folder} holds a {config.get('model_type')!r} of transformers: expected model_type "
            f"'vit', no other is known here"
        )
    arrays = on_disk_names(read_folder(folder))
    network = _network(config, arrays, folder)
    params, unused = from_arrays(arrays, network, "hf", str(folder))
    unused = [name for name in unused if not name.startswith("vit.pooler.")]  # nothing reads it
    check_unused(unused, folder)
    mean, std = _normalization(folder)
    params = with_normalization(params, network, mean, std, folder)
    return Stored(network, params, (), _class_names(config, network.num_classes))


def write_hugging_face(
    folder: pathlib.Path,
    network: NetworkConfig,
    params: dict[str, Any],
    class_names: tuple[str, ...] = (),
) -> None:
    """A folder that `ViTForImageClassification.from_pretrained` takes; without a head, ViTModel."""
    check_fits(network, "hf")
    arrays = to_arrays(params, "hf")
    if not network.num_classes:
        arrays = {name.removeprefix("vit."): value for name, value in arrays.items()}
    write_safetensors(folder / NAME, arrays)
    write_json(folder / "config.json", _config(network, class_names))
    write_json(folder / PREPROCESSOR, _preprocessor(network))


def on_disk_names(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of any ViT of transformers by the names that are on disk, under `vit.`."""
    renamed = {}
    for name, value in arrays.items():
        bare = not name.startswith(("vit.", "classifier."))  # ViTModel
        name = f"vit.{name}" if bare else name
        if match := re.fullmatch(r"vit\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
            module = _IN_MEMORY.get(match[2], match[2])
            name = f"vit.encoder.layer.{match[1]}.{module}.{match[3]}"
        renamed[name] = value
    return renamed


def _network(
    config: dict[str, Any], arrays: dict[str, np.ndarray], folder: pathlib.Path
) -> ViTConfig:
    activation = config.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise UsageError(
            f"{folder}: hidden_act={activation!r} is not known here, only {', '.join(_ACTIVATIONS)}"
        )
    if not config.get("qkv_bias", True) or config.get("pooler_act", "tanh") != "tanh":
        raise UsageError(f"{folder}: expected qkv_bias=true and pooler_act='tanh' in config.json")
    head, pooler = arrays.get("classifier.weight"), arrays.get("vit.pooler.dense.weight")
    try:
        found = ViTConfig(
            name=str(folder),
            width=config["hidden_size"],
            depth=config["num_hidden_layers"],
            mlp_dim=config["intermediate_size"],
            heads=config["num_attention_heads"],
            patch_size=as_size(config["patch_size"], "patch_size"),
            image_size=as_size(config["image_size"], "image_size"),
            channels=config.get("num_channels", 3),
            num_classes=0 if head is None else len(head),
            representation_size=len(pooler) if head is None and pooler is not None else 0,
            activation=_ACTIVATIONS[activation],
            norm_epsilon=config.get("layer_norm_eps", 1e-12),
        )
    except KeyError as error:
        raise UsageError(f"{folder}/config.json has no {error.args[0]!r}") from error
    return exact_name(found)


def _normalization(folder: pathlib.Path) -> tuple[list[float], list[float]]:
    """Mean and deviation of its images, as the processor has them; it is silent where 0.5."""
    half = [0.5, 0.5, 0.5]
    if not exists(folder / PREPROCESSOR):
        return half, half
    found = read_json(folder / PREPROCESSOR)
    return found.get("image_mean", half), found.get("image_std", half)


def _class_names(config: dict[str, Any], count: int) -> tuple[str, ...]:
    labels = config.get("id2label") or {}
    names = [str(labels.get(str(number), "")) for number in range(count)]
    return named_classes(names, "LABEL_{}")


def _config(network: ViTConfig, class_names: tuple[str, ...]) -> dict[str, Any]:
    names = class_names or tuple(f"LABEL_{number}" for number in range(network.num_classes))
    has_head = bool(network.num_classes)
    more = {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    pooler = {"pooler_act": "tanh", "pooler_output_size": network.representation_size}
    return {
        "architectures": ["ViTForImageClassification" if has_head else "ViTModel"],
        "model_type": "vit",
        "hidden_size": network.width,
        "num_hidden_layers": network.depth,
        "num_attention_heads": network.heads,
        "intermediate_size": network.mlp_dim,
        "hidden_act": _WRITTEN[network.activation],
        "layer_norm_eps": network.norm_epsilon,
        "hidden_dropout_prob": network.dropout,
        "attention_probs_dropout_prob": 0.0,
        "image_size": _size(network.image_size),
        "patch_size": _size(network.patch_size),
        "num_channels": network.channels,
        "qkv_bias": True,
        "dtype": "float32",
        **(more if has_head else {}),
        **(pooler if network.representation_size else {}),
    }


def _preprocessor(network: ViTConfig) -> dict[str, Any]:
    height, width = network.image_size
    half = [0.5] * network.channels
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": half,
        "image_std": half,
    }


def _size(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
