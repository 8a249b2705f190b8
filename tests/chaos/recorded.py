"""The training verb at a pace, with a note of every row of every batch that a process was given.

SECONDS_PER_BATCH=0.1 BATCH_RECORD=FOLDER python -m tests.chaos.recorded --config=... --workdir=...
"""

import os
import pathlib
import sys
import time
import zlib

import numpy as np

from vit_jax.cli import run_verb, train
from vit_jax.data import batches
from vit_jax.train import loop


def paced(*args, start, **kwargs):
    for step, batch in enumerate(batches.on_device(*args, start=start, **kwargs), start):
        time.sleep(float(os.environ["SECONDS_PER_BATCH"]))
        if "BATCH_RECORD" in os.environ:
            record(step, batch)
        yield batch


def record(step, batch):
    lines = []
    for shard in batch["image"].addressable_shards:
        first = shard.index[0].start or 0
        for row, image in enumerate(np.asarray(shard.data), first):
            lines.append(f"{step} {row} {zlib.crc32(image.tobytes())}\n")
    with (pathlib.Path(os.environ["BATCH_RECORD"]) / str(os.getpid())).open("a") as file:
        file.writelines(lines)


if __name__ == "__main__":
    loop.on_device = paced
    sys.exit(run_verb(train, sys.argv[1:]))
