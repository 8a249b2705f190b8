"""Where configs/ and launch/ lie: beside the package in a source tree, in it once installed."""

import os
import pathlib
import sys
from collections.abc import Sequence

from vit_jax.errors import EXIT_DONE, UsageError, closest

LAUNCHERS = ("tpu_vm", "gke", "local")


def home() -> pathlib.Path:
    """The folder that has configs/ and launch/."""
    package = pathlib.Path(__file__).parent
    return package if (package / "launch").is_dir() else package.parent


def launch(argv: Sequence[str]) -> int:
    """Becomes launch/NAME.py with the flags that follow; without a name, tells where they lie."""
    folder = home() / "launch"
    if not argv:
        print(folder)
        return EXIT_DONE
    name, *flags = argv
    if name in ("-h", "--help"):
        print(f"usage: vit-jax launch {{{','.join(LAUNCHERS)}}} FLAGS -- vit-jax train ...\n")
        print(f"Runs {folder}/NAME.py; without a name, tells that folder.")
        return EXIT_DONE
    if name not in LAUNCHERS:
        raise UsageError(
            f"vit-jax launch {name}: expected one of {', '.join(LAUNCHERS)}."
            f"{closest(name, LAUNCHERS)}"
        )
    script = str(folder / f"{name}.py")
    os.execv(sys.executable, [sys.executable, script, *flags])  # signals reach it as if typed
