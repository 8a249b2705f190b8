"""The training verb, with a note of every row of every batch that a process was given.

BATCH_RECORD=FOLDER python -m tests.chaos.recorded --config=... --workdir=...
"""

import os
import pathlib
import sys
import zlib

import numpy as np

from vit_jax.cli import run_verb, train
from vit_jax.data import batches
from vit_jax.train import loop


def recorded(*args, start, **kwargs):
    path = pathlib.Path(os.environ["BATCH_RECORD"]) / str(os.getpid())
    with path.open("a") as file:
        for step, batch in enumerate(batches.on_device(*args, start=start, **kwargs), start):
            for shard in batch["image"].addressable_shards:
                first = shard.index[0].start or 0
                for row, image in enumerate(np.asarray(shard.data), first):
                    file.write(f"{step} {row} {zlib.crc32(image.tobytes())}\n")
            file.flush()
            yield batch


if __name__ == "__main__":
    if "BATCH_RECORD" in os.environ:
        loop.on_device = recorded
    sys.exit(run_verb(train, sys.argv[1:]))
