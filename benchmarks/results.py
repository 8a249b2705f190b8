"""benchmarks/RESULTS.md: a section for each program, which writes its own and no other."""

import datetime
import importlib.metadata
import os
import pathlib
import platform

RESULTS = pathlib.Path(__file__).parent / "RESULTS.md"


def write(program: str, section: str) -> None:
    """Puts the section of a program, such as "input.py", in its place."""
    text = RESULTS.read_text() if RESULTS.exists() else "# Results\n"
    RESULTS.write_text(replaced(text, program, section))


def write_lines(program: str, title: str, what: str, lines: list[str], *packages: str) -> None:
    """A section that shows what a program printed; `what` was measured, in a few words."""
    shown = ["```", *lines, "```"]
    write(program, "\n".join([f"## {title}", "", f"{origin(program, *packages)} {what}.", *shown]))


def replaced(text: str, program: str, section: str) -> str:
    """`text` with this section of a program; what others wrote stays as it is."""
    start, end = f"<!-- {program} -->", f"<!-- /{program} -->"
    before, _, rest = text.partition(start)
    after = rest.partition(end)[2].strip()
    parts = [before.strip(), f"{start}\n{section.strip()}\n{end}", after]
    return "\n\n".join(filter(None, parts)) + "\n"


def origin(program: str, *packages: str) -> str:
    """The sentence that says where and when numbers were measured, and with which versions."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    today = datetime.datetime.now(datetime.UTC).date()
    busy = f"{os.getloadavg()[1]:.0f} processes wanted to run in the minutes before"
    return f"Written by `benchmarks/{program}` on {today}: {machine()}; {versions}; {busy}."


def machine() -> str:
    """As in "Intel(R) Xeon(R) Processor, 2 cores, 25 GB of memory"."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GB of memory"


def _processor() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
