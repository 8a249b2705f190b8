"""Where numbers go: metrics.jsonl, the record of the run, and TensorBoard beside it."""

import json
from collections.abc import Mapping

import tensorboardX

from vit_jax.weights.run_folder import RunFolder, write_text


class MetricsWriter:
    """Appends one record per logged step. A context manager.

    On resume, records after the checkpoint are dropped first: those steps are taken again, and
    the file has each of them once.
    """

    def __init__(self, folder: RunFolder, resume_step: int) -> None:
        kept = [record for record in folder.metrics_records() if record["step"] <= resume_step]
        write_text(folder.metrics, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = folder.metrics.open("a")
        self._tensorboard = tensorboardX.SummaryWriter(
            str(folder.tensorboard), purge_step=resume_step + 1 if resume_step else None
        )

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._tensorboard.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One record: {"step": 10, "train/loss": 2.3, ...}."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for key, value in values.items():
            self._tensorboard.add_scalar(key, value, step)
