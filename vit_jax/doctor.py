"""What this machine has: for whoever wonders why something does not run."""

import importlib.util
import os
import pathlib
import platform
import shutil
from typing import Any

# What vit_jax runs on, and what only some of its verbs need.
_PACKAGES = (
    "vit_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "array_record",
    "numpy", "opencv-python-headless", "simplejpeg", "pillow", "ml_collections",
)  # fmt: skip
_OPTIONAL = {
    "libtpu": "vit-jax plan, and TPUs: pip install 'vit_jax[tpu]'",
    "tensorflow_datasets": "data=tfds:NAME: pip install 'vit_jax[tfds]'",
    "gcsfs": "runs and data in gs://: pip install 'vit_jax[gcs]'",
}
_LITTLE_DISK = 5e9


def examine_machine() -> dict[str, Any]:
    """Versions, devices, memory and disk, and what is wrong with them, line by line."""
    import jax

    from vit_jax.startup import CACHE_FOLDER, memory_text
    from vit_jax.train.environment import version

    problems = []
    try:
        devices = [f"{d.device_kind} ({d.platform})" for d in jax.local_devices()]
    except RuntimeError as error:  # another process holds the TPU, or a driver is missing
        devices = []
        problems.append(f"JAX finds no devices: {str(error).splitlines()[0]}")
    disk = shutil.disk_usage(pathlib.Path.cwd())
    if disk.free < _LITTLE_DISK:
        problems.append(f"only {disk.free / 1e9:.1f} GB of disk are free here")
    versions = {name: version(name) for name in _PACKAGES}
    problems += [f"{name} is not installed" for name, version in versions.items() if not version]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "free_disk_gb": disk.free / 1e9,
        "devices": devices,
        "memory_pages": memory_text(),
        "compiled_programs": os.environ.get(CACHE_FOLDER, "not kept"),
        "packages": versions,
        "optional": {name: importlib.util.find_spec(name) is not None for name in _OPTIONAL},
        "problems": problems,
    }


def machine_text(found: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"Python {found['python']} on {found['platform']}",
        f"{found['cores']} cores, {found['memory_gb']:.0f} GB of memory, "
        f"{found['free_disk_gb']:.0f} GB of disk free here",
        f"devices: {', '.join(found['devices']) or 'none'}",
        f"memory: {found['memory_pages']}",
        f"compiled programs: {found['compiled_programs']}",
        *(f"  {name:24} {version or 'missing'}" for name, version in found["packages"].items()),
        *(
            f"  {name:24} {'there' if found['optional'][name] else f'not there (for {use})'}"
            for name, use in _OPTIONAL.items()
        ),
        *(f"problem: {problem}" for problem in found["problems"]),
        "healthy" if not found["problems"] else "not healthy: see above",
    ]
    return "\n".join(lines)
