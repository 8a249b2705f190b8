"""What became of stored parameters, one by one, and as a table to print."""

import math
from collections.abc import Sequence
from typing import NamedTuple

LOADED, RESIZED, NEW, LEFT_OUT = "loaded", "resized", "new", "left out"


class Row(NamedTuple):
    """One parameter, by its path; `was` is its shape where it comes from, None where it is new."""

    fate: str
    name: str
    was: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None  # None: it is not in the network
    note: str = ""

    @property
    def is_stray(self) -> bool:
        """Whether it is in the file but belongs to no network that is known here."""
        return self.fate == LEFT_OUT and self.was is None


def table_text(rows: Sequence[Row]) -> str:
    """A line for each module with one fate; what was resized is shown by itself."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        name = row.name if row.fate == RESIZED else row.name.split("/")[0]
        groups.setdefault((row.fate, name), []).append(row)
    lines = [_cells(fate, name, members) for (fate, name), members in groups.items()]
    lines.sort(key=lambda line: (LOADED, RESIZED, NEW, LEFT_OUT).index(line[0]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(fate: str, name: str, rows: Sequence[Row]) -> tuple[str, str, str, str]:
    shapes = [row.shape or row.was or () for row in rows]
    if fate == RESIZED:
        what = f"{rows[0].was} -> {rows[0].shape}"
    else:
        plural = "s" if len(rows) > 1 else ""
        what = f"{len(rows)} array{plural}, {sum(map(math.prod, shapes)):,} numbers"
    notes = dict.fromkeys(row.note for row in rows if row.note)
    return fate, name, what, ", ".join(notes)
