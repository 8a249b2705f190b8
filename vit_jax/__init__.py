"""Vision Transformers in JAX: `vit_jax.create_model("B/16")(images)`.

The names below are imported when they are first used, so that `import vit_jax` stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.models.network import create_model
    from vit_jax.models.variants import list_models
    from vit_jax.weights.files import save_npz
    from vit_jax.weights.load import load, load_with_table
    from vit_jax.weights.table import table_text

__version__ = "0.1.0"
__all__ = [
    "create_model", "list_models", "load", "load_with_table", "save_npz", "table_text",
]  # fmt: skip

_HOMES = {
    "create_model": "vit_jax.models.network",
    "list_models": "vit_jax.models.variants",
    "load": "vit_jax.weights.load",
    "load_with_table": "vit_jax.weights.load",
    "save_npz": "vit_jax.weights.files",
    "table_text": "vit_jax.weights.table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vit_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
