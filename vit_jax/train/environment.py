"""What a run ran on, for whoever has to repeat it."""

import datetime
import importlib.metadata
import platform
import sys
from typing import Any

import jax

_PACKAGES = ("vit_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def environment() -> dict[str, Any]:
    """Versions, devices, command line, time."""
    return {
        "command": sys.argv,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in _PACKAGES},
        "processes": jax.process_count(),
        "devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
    }


def version(package: str) -> str | None:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None  # run from a tree that was never installed
