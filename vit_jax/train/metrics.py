"""Where numbers go: metrics.jsonl, the record of the run, and TensorBoard beside it."""

import json
from collections.abc import Mapping

from vit_jax.errors import CannotWrite
from vit_jax.train.records import cut_lines, open_records, read_lines
from vit_jax.train.tensorboard import TensorBoard
from vit_jax.weights.checkpoint import what_is_left
from vit_jax.weights.run_folder import RunFolder


def drop_records_after(folder: RunFolder, step: int) -> None:
    """For a run that has changed, whose steps will not come out as they did."""
    lines = read_lines(folder.metrics)
    if lines:
        cut_lines(folder.metrics, sum(json.loads(line)["step"] <= step for line in lines))


class MetricsWriter:
    """Appends one record per logged step. A context manager.

    A resumed run takes the steps after its checkpoint again, and they come out the same: those in
    the file stay, and are not written twice.
    """

    def __init__(self, folder: RunFolder, resume_step: int) -> None:
        self._folder = folder
        lines = read_lines(folder.metrics)
        self._written = max((json.loads(line)["step"] for line in lines), default=0)
        self._records = open_records(folder.metrics)
        self._tensorboard = TensorBoard(folder.tensorboard, resume_step)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._records.close()
        self._tensorboard.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One record: {"step": 10, "train/loss": 2.3, ...}."""
        if step > self._written:
            try:
                self._records.append(json.dumps({"step": step, **values}).encode() + b"\n")
            except OSError as error:
                raise self._cannot_write(error) from error
            self._written = step
        self._tensorboard.write(step, values)

    def sync(self) -> None:
        """Until what was written outlives the machine."""
        try:
            self._records.sync()
        except OSError as error:
            raise self._cannot_write(error) from error
        self._tensorboard.sync()

    def _cannot_write(self, error: OSError) -> CannotWrite:
        return CannotWrite(
            f"{self._folder.path}: its metrics could not be written ({error}); "
            f"{what_is_left(self._folder.checkpoints)}. Make room or repair the folder, then start "
            f"again"
        )
