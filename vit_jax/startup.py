"""What a process is told before it imports anything heavy: where programs and memory come from.

Both are environment variables of others, read when a process or JAX begins; whoever sets them has
the last word.
"""

import hashlib
import os
import pathlib
import platform
import sys
from collections.abc import Mapping, MutableMapping

CACHE_FOLDER = "JAX_COMPILATION_CACHE_DIR"
TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES_SWITCH = "VIT_JAX_HUGE_PAGES"  # "0": none

_HUGE_PAGES = "glibc.malloc.hugetlb=1"
_KERNEL_MODE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CPU = pathlib.Path("/proc/cpuinfo")


def keep_compiled(environment: MutableMapping[str, str] = os.environ) -> None:
    """Lets JAX find again what it compiled on this kind of machine; JAX_ENABLE_COMPILATION_CACHE=0
    turns it off.

    JAX itself skips entries that it cannot read, and of several processes only one writes.
    """
    folder = environment.get("VIT_JAX_CACHE") or "~/.cache/vit_jax"
    compiled = pathlib.Path(folder).expanduser() / "compiled" / _kind_of_machine()
    environment.setdefault(CACHE_FOLDER, str(compiled))


def use_huge_pages() -> None:
    """Starts this process again, once, with memory in pages of 2 MB where the kernel leaves that to
    programs.

    A train step on a CPU gets its temporaries from the kernel anew, and page by page of 4 KB that
    is a fifth of its time (S/16, 8 images: 0.8 s of system time in 3.5 s). glibc can ask for large
    ones, but looks only when a process begins.
    """
    added = huge_pages()
    if added:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})


def huge_pages(
    environment: Mapping[str, str] = os.environ, kernel_mode: str | None = None
) -> dict[str, str]:
    """What to add to a process's environment: nothing where the kernel decides by itself, or where
    somebody has said something about it."""
    mode = _kernel_mode() if kernel_mode is None else kernel_mode
    tunables = environment.get(TUNABLES, "")
    is_said = "glibc.malloc.hugetlb" in tunables or environment.get(HUGE_PAGES_SWITCH) == "0"
    if "[madvise]" not in mode or is_said:
        return {}
    return {TUNABLES: ":".join(filter(None, [tunables, _HUGE_PAGES]))}


def memory_text() -> str:
    """How this process gets its memory, in words."""
    mode = _kernel_mode()
    if "[always]" in mode:
        return "pages of 2 MB, by the kernel"
    if _HUGE_PAGES in os.environ.get(TUNABLES, "") and "[madvise]" in mode:
        return f"pages of 2 MB, by {TUNABLES}={os.environ[TUNABLES]}"
    if huge_pages():
        return "pages of 4 KB here; `vit-jax train` asks for 2 MB"
    return "pages of 4 KB"


def _kernel_mode() -> str:
    return _KERNEL_MODE.read_text() if _KERNEL_MODE.exists() else ""


def _kind_of_machine() -> str:
    """Programs compiled for one CPU may not run on another that shares the home folder."""
    lines = _CPU.read_text().splitlines() if _CPU.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    name = f"{platform.machine()} {features}"
    return f"{platform.machine()}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
