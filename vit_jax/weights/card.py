"""A model card: the README.md of a folder of weights, with the numbers of the run behind it."""

from typing import Any

from vit_jax.models.config import NetworkConfig
from vit_jax.models.network import parameter_count
from vit_jax.weights.paths import exists
from vit_jax.weights.run_folder import RunFolder, read_json

_LIBRARIES = {"hf": "transformers", "timm": "timm"}

_USE = {
    "hf": """from transformers import AutoImageProcessor, {kind}

processor = AutoImageProcessor.from_pretrained("FOLDER")
model = {kind}.from_pretrained("FOLDER")
outputs = model(**processor(image, return_tensors="pt"))""",
    "timm": """import timm

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()
logits = model(images)  # [batch, channel, height, width] in [-1, 1]""",
}


def model_card(
    network: NetworkConfig, layout: str, source: RunFolder, class_names: tuple[str, ...]
) -> str:
    """Markdown; `layout` is hf or timm, `source` where the weights come from, a run or not."""
    height, width = network.image_size
    kind = "ViTForImageClassification" if network.num_classes else "ViTModel"
    sections = [
        f"""---
library_name: {_LIBRARIES[layout]}
pipeline_tag: {"image-classification" if network.num_classes else "image-feature-extraction"}
tags: [vision, vit, vit_jax]
---

# {network.name}, {height}x{width} pixels

A Vision Transformer trained with vit_jax: {parameter_count(network):,} parameters, \
{network.num_classes or "no"} classes. Images are RGB from -1 to 1 (mean = std = 0.5), resized \
bilinearly to {height}x{width}.""",
        f"## Use\n\n```python\n{_USE[layout].format(kind=kind)}\n```",
        _training(source),
        _classes(class_names),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _training(source: RunFolder) -> str:
    if not source.is_run() or not exists(source.summary):
        return ""
    config, summary = read_json(source.config), read_json(source.summary)
    rows = _settings(config, summary) | _measured(summary)
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"## Training\n\n| | |\n|---|---|\n{table}"


def _settings(config: dict[str, Any], summary: dict[str, Any]) -> dict[str, str]:
    rows = {
        "data": config["data"]["name"],
        "loss": config["loss"],
        "optimizer": f"{config['optimizer']['name']}, {config['optimizer']['learning_rate']:g}",
        "batch size": f"{config['batch_size']:,}",
        "steps": f"{summary['steps']:,}",
        "images seen": f"{summary['examples']:,}",
    }
    if config["init"]:
        # The last part of its name: where it lay on somebody's disk is nobody's business.
        rows["started from"] = config["init"].rstrip("/").split("/")[-1]
    if config["data"]["name"].startswith(("/", "~", ".")):
        rows["data"] = config["data"]["name"].rstrip("/").split("/")[-1]
    return rows


def _measured(summary: dict[str, Any]) -> dict[str, str]:
    """What evaluators found, which have a slash in their names: of the best step, or the last."""
    metrics = summary.get("best", summary)["metrics"]
    found = {k: v for k, v in metrics.items() if "/" in k and isinstance(v, float | int)}
    return {key: f"{value:.4f}" for key, value in found.items()}


def _classes(class_names: tuple[str, ...]) -> str:
    if not class_names:
        return ""
    more = f", ... ({len(class_names)} in all)" if len(class_names) > 20 else ""
    return f"## Classes\n\n{', '.join(class_names[:20])}{more}"
