"""What an image costs on its way from a JPEG file to a batch: ours, tf.data, torch, decoding alone.

    pip install tensorflow-cpu torch    # what is absent is left out
    python -m benchmarks.input --images=FOLDER_OF_JPEGS [--json]

Each contestant lives in a process of its own and has its turn in every round, so that a busy
machine slows all alike, and rests before the next begins. CPU time is that of the process and all
its descendants. Ratios are the medians of the rounds' ratios to tf.data: above 1 is better than
tf.data in both. Those are the numbers to compare between machines and commits.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import glob
import io
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks import results

SIZE = 224
BATCH = 64
AREA = (0.05, 1.0)
ASPECT = (3 / 4, 4 / 3)
WORKERS = 2
EPOCH = 20_000  # files are named again and again up to this many: no turn meets an epoch's end
DRAINED = 8  # batches taken before the clock starts: those made beforehand
YARDSTICK = "tf.data"


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one contestant needed for its batches in one round."""

    cpu_ms: float  # per image
    rate: float  # images per second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", required=True, help="folder of .jpg files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=20, help=f"of {BATCH} images, in each turn")
    parser.add_argument("--json", action="store_true", help="every turn, instead of the table")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    options = parser.parse_args()
    files = sorted(glob.glob(os.path.join(options.images, "*.jp*g")))
    if not files:
        parser.error(f"--images={options.images}: expected a folder that holds .jpg files")
    paths = list(itertools.islice(itertools.cycle(files), max(EPOCH, len(files))))
    turns = compete(paths, options.rounds, options.batches)
    if options.json:
        print(json.dumps({name: [dataclasses.asdict(t) for t in ts] for name, ts in turns.items()}))
        return
    lines = table(turns)
    print("\n".join(lines))
    if options.write:
        what = f"{len(files)} JPEG files, batches of {BATCH}, {options.rounds} rounds"
        results.write_lines("input.py", "Images into batches", what, lines, "numpy", "grain")


def compete(paths: list[str], rounds: int, batches: int) -> dict[str, list[Turn]]:
    """The turns of each contestant that is installed."""
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for name in CONTESTANTS:
        pipes[name], theirs = spawn.Pipe()
        spawn.Process(target=contestant, args=(name, paths, theirs)).start()
        theirs.close()
        if missing := pipes[name].recv():  # it has warmed up, or cannot
            print(f"{name} is left out: pip install {missing}", flush=True)
            del pipes[name]
    turns: dict[str, list[Turn]] = {name: [] for name in pipes}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            pipe.send(batches)
            turns[name].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(None)
    return turns


def contestant(name: str, paths: list[str], pipe: Connection) -> None:
    """A process: says what it lacks or None, then takes a turn for each number it is sent."""
    begin, package = CONTESTANTS[name]
    try:
        batches = begin(paths)
    except ModuleNotFoundError:
        return pipe.send(package)
    take(batches, DRAINED)
    rest()
    pipe.send(None)
    while count := pipe.recv():
        take(batches, DRAINED)
        cpu, wall = cpu_seconds(), time.perf_counter()
        take(batches, count)
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
        rest()
        pipe.send(Turn(1000 * cpu / (count * BATCH), count * BATCH / wall))


def ours(paths: list[str], workers: int = 0) -> Iterator[Any]:
    from vit_jax.data.batches import host_batches, train_batches
    from vit_jax.data.folder import ImageFiles

    source = ImageFiles("jpegs", ("any",), tuple(paths), np.zeros(len(paths), np.int32))
    batches = train_batches(
        source, batch_size=BATCH, image_size=(SIZE, SIZE), seed=0, crop="inception"
    )
    return host_batches(batches, workers=workers)


def ours_in_processes(paths: list[str]) -> Iterator[Any]:
    return ours(paths, WORKERS)


def tf_data(paths: list[str]) -> Iterator[Any]:
    import tensorflow as tf

    def load(path: Any) -> Any:
        data = tf.io.read_file(path)
        start, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data),
            tf.zeros([0, 0, 4]),
            area_range=AREA,
            aspect_ratio_range=ASPECT,
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([start[:2], extent[:2]], 0)
        image = tf.io.decode_and_crop_jpeg(data, window, channels=3)
        return tf.cast(tf.image.resize(image, [SIZE, SIZE]), tf.uint8)

    shuffled = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    images = shuffled.map(load, num_parallel_calls=tf.data.AUTOTUNE)
    # As far ahead as ours: AUTOTUNE would grow here until a whole turn is made beforehand.
    batches = images.batch(BATCH, drop_remainder=True).prefetch(2)
    return batches.as_numpy_iterator()


def torch_loader(paths: list[str]) -> Iterator[Any]:
    import PIL.Image  # noqa: F401
    import torch

    loader = torch.utils.data.DataLoader(
        PillowCrops(paths),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


@dataclasses.dataclass(frozen=True)
class PillowCrops:
    """A torch data set: what torchvision's RandomResizedCrop does, without torchvision."""

    paths: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> np.ndarray:
        import PIL.Image

        with open(self.paths[index], "rb") as file:
            image = PIL.Image.open(io.BytesIO(file.read())).convert("RGB")
        box = random_box(*image.size)
        return np.array(image.resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR, box=box))


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right, bottom."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def decoding(paths: list[str]) -> Iterator[Any]:
    """Whole files to pixels with libjpeg-turbo, in threads: no crop, no resize, no batch."""
    import simplejpeg

    def load(path: str) -> np.ndarray:
        with open(path, "rb") as file:
            return simplejpeg.decode_jpeg(file.read(), strict=False)

    endless = itertools.cycle(random.sample(paths, len(paths)))
    made: collections.deque[Iterator[np.ndarray]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        while True:
            while len(made) < 3:
                made.append(pool.map(load, itertools.islice(endless, BATCH)))
            yield list(made.popleft())


# What begins each one's batches, and what to install for it.
CONTESTANTS: dict[str, tuple[Callable[[list[str]], Iterator[Any]], str]] = {
    "ours, threads": (ours, "-e ."),
    f"ours, {WORKERS} workers": (ours_in_processes, "-e ."),
    YARDSTICK: (tf_data, "tensorflow-cpu"),
    f"torch, {WORKERS} workers": (torch_loader, "torch pillow"),
    "decoding alone": (decoding, "simplejpeg"),
}


def take(batches: Iterator[Any], count: int) -> None:
    for _ in itertools.islice(batches, count):
        pass


def rest() -> None:
    """Returns when this process and its descendants have made all they make in advance."""
    for _ in range(40):
        before = cpu_seconds()
        time.sleep(0.25)
        if cpu_seconds() - before < 0.05:
            return


def cpu_seconds() -> float:
    """User and system time of this process, and of its descendants, dead or alive."""
    ticks, parents = {}, {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                pid, rest = file.read().split(" (", 1)
        except OSError:  # it ended meanwhile
            continue
        fields = rest.rpartition(") ")[2].split()
        parents[int(pid)] = int(fields[1])
        ticks[int(pid)] = sum(map(int, fields[11:15]))

    def is_ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid]))

    return sum(ticks[pid] for pid in parents if is_ours(pid)) / os.sysconf("SC_CLK_TCK")


def table(turns: dict[str, list[Turn]]) -> list[str]:
    lines = [f"{'':<18}{'CPU ms / image':>22}{'x tf.data':>11}{'images/s':>22}{'x tf.data':>11}"]
    for name, own in turns.items():
        cells = ""
        for field, sign in (("cpu_ms", -1), ("rate", 1)):
            values = [getattr(turn, field) for turn in own]
            digits = 2 if field == "cpu_ms" else 0
            low, middle, high = (f"{f(values):.{digits}f}" for f in (min, statistics.median, max))
            cells += f"{f'{middle} ({low}-{high})':>22}{ratio(turns, values, field, sign):>11}"
        lines.append(f"{name:<18}{cells}")
    return lines


def ratio(turns: dict[str, list[Turn]], values: list[float], field: str, sign: int) -> str:
    if YARDSTICK not in turns:
        return "-"
    theirs = [getattr(turn, field) for turn in turns[YARDSTICK]]
    return f"{statistics.median((a / b) ** sign for a, b in zip(values, theirs, strict=True)):.2f}"


if __name__ == "__main__":
    main()
