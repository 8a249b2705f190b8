"""Whose folder it is: a run, or weights as other libraries keep them. All have a config.json."""

import json
import pathlib
from typing import Any

from vit_jax.errors import UsageError
from vit_jax.weights.paths import exists

CONFIG = "config.json"


def kind_of(folder: pathlib.Path) -> str:
    """What a folder's config.json describes: "hf", "timm", or else "run"."""
    if not exists(folder / CONFIG):
        return "run"
    try:
        config = read_config(folder)
    except UsageError:  # who opens the run will say so
        return "run"
    return "timm" if "architecture" in config else "hf" if "model_type" in config else "run"


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """config.json."""
    try:
        found = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / CONFIG} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{folder / CONFIG} is no JSON object")
    return found
