"""Images that could not be read and were replaced: told once, kept in the run folder, limited."""

import contextlib
import pathlib

import jax
import numpy as np

from vit_jax.data.batches import NONE_REPLACED
from vit_jax.data.source import Source, where
from vit_jax.errors import UsageError
from vit_jax.train.progress import Progress
from vit_jax.weights.paths import in_bucket
from vit_jax.weights.run_folder import write_text

_TOLD = 10  # by name, on the screen
_FEWEST = 20  # bad images before their share means anything


class BadImages:
    """Counts the rows of batches as they come. Each host has its own file of names."""

    def __init__(
        self, source: Source, folder: pathlib.Path, allowed: float, progress: Progress
    ) -> None:
        self._source, self._allowed, self._progress = source, allowed, progress
        host = f"-{jax.process_index()}" if jax.process_index() else ""
        self._file = folder / f"bad_images{host}.txt"
        lines = self._file.read_text().splitlines() if self._file.is_file() else []
        self._names = dict.fromkeys(lines)
        self._kept = len(lines)  # of them, in the file
        self._rows = self._bad_rows = 0

    def __len__(self) -> int:
        """Different images that were bad."""
        return len(self._names)

    def see(self, replaced: np.ndarray) -> None:
        """Takes note of a batch's `replaced`; raises when too many of all rows were."""
        bad = replaced[replaced != NONE_REPLACED]
        self._rows += len(replaced)
        self._bad_rows += len(bad)
        for name in dict.fromkeys(where(self._source, int(index)) for index in bad):
            if name not in self._names:
                self._tell(name)
        is_telling = self._bad_rows >= _FEWEST or not self._allowed
        if is_telling and self._bad_rows > self._allowed * self._rows:
            self.sync()
            raise UsageError(
                f"{self._bad_rows} of the {self._rows} images read so far are bad, more than "
                f"data.bad_images_allowed={self._allowed}; their names are in {self._file}. Repair "
                f"or remove them (vit-jax doctor --data={self._source.name}), or allow more"
            )

    def sync(self) -> None:
        """Writes what the file does not hold yet: in a bucket it can only be written as a whole."""
        names = list(self._names)  # others may be told of meanwhile
        if self._kept < len(names):
            with contextlib.suppress(Exception):  # no run ends for it; it is tried again
                write_text(self._file, "".join(f"{name}\n" for name in names))
                self._kept = len(names)

    def _tell(self, name: str) -> None:
        self._names[name] = None
        if not in_bucket(self._file):
            with self._file.open("a") as file:
                file.write(name + "\n")
            self._kept += 1
        if len(self._names) <= _TOLD:
            more = f"; further ones only in {self._file.name}" if len(self._names) == _TOLD else ""
            self._progress.note(f"another image in place of {name}, which cannot be read{more}")
