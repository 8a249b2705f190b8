"""From any source to a folder of shards that `records.py` reads: once, in parallel, resumable.

A shard is written under another name and renamed when it is complete; a line in the journal then
says what it holds. Starting again writes what the journal lacks, then the manifest.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import cv2
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from vit_jax.data.decode import BadImage, Header, Region, decode, decode_region, read_header
from vit_jax.data.records import (
    FORMAT,
    JOURNAL,
    MANIFEST,
    VERSION,
    local_folder,
    pack,
    read_manifest,
)
from vit_jax.data.source import PADDING_LABEL, Source, where
from vit_jax.errors import UsageError

# Records in a shard: 626 shards of 230 MB for ImageNet. A shard is what a kill costs, what one
# worker does at a time, and a file that readers keep open.
SHARD_SIZE = 2048

Report = Callable[[int, int], None]  # (examples done, of how many)


@dataclasses.dataclass(frozen=True)
class Shard:
    """Examples `start` to `stop` of a split, counted in the order in which they are written."""

    split: str
    file: str
    start: int
    stop: int


def prepare(
    sources: Mapping[str, Source],
    out: str | Path,
    *,
    shard_size: int = SHARD_SIZE,
    workers: int = 0,
    on_bad_image: Literal["skip", "raise"] = "skip",
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Writes the splits into `out` and returns the manifest. Starting again goes on.

    `workers` of 0 is one process per core, of 1 none but this one. Images that cannot be decoded
    are left out and named in the manifest ("skip"), or end it ("raise"). `report` is called first
    with what was there already, then after every shard.
    """
    if on_bad_image not in ("skip", "raise"):
        raise UsageError(f"on_bad_image={on_bad_image!r}: expected one of skip, raise")
    out = local_folder(out)
    plan = _plan(sources, shard_size)
    out.mkdir(parents=True, exist_ok=True)
    with _alone_in(out):
        done = _resume(out, plan)
        shards = _shards(plan)
        todo = [shard for shard in shards if shard.file not in done]
        total = sum(shard.stop - shard.start for shard in shards)
        finished = total - sum(shard.stop - shard.start for shard in todo)
        if todo:
            (out / MANIFEST).unlink(missing_ok=True)
        report(finished, total)
        written = _write_shards(sources, out, todo, workers)
        with (out / JOURNAL).open("a") as journal, contextlib.closing(written):
            for shard, summary in written:
                if on_bad_image == "raise":
                    _refuse_bad_images([summary])
                done[shard.file] = summary
                journal.write(json.dumps(summary) + "\n")
                journal.flush()
                finished += shard.stop - shard.start
                report(finished, total)
        manifest = _manifest(plan, shards, done)
        _replace(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return manifest


def verify(path: str | Path, report: Report = lambda done, total: None) -> dict[str, str]:
    """Reads every shard again: those that are not as they were written, and what is wrong."""
    folder = local_folder(path)
    splits = read_manifest(folder)["splits"].values()
    shards = [shard for split in splits for shard in split["shards"]]
    problems = {}
    # Threads: reading and hashing both leave Python alone.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda shard: _problem(folder, shard), shards)
        for done, (shard, problem) in enumerate(zip(shards, found, strict=True), start=1):
            if problem:
                problems[shard["file"]] = problem
            report(done, len(shards))
    return problems


def permuted(positions: np.ndarray, length: int) -> np.ndarray:
    """Which examples stand at these positions: a fixed permutation of range(length), computed and
    not stored, so that any slice of a split is a fair sample of it.

    A Feistel network over the next power of four; what falls outside goes through it again. Not
    grain's shuffle: that one could change between the two halves of a preparation.
    """
    half = np.uint64(max(1, (length - 1).bit_length() + 1 >> 1))
    mask = np.uint64((1 << int(half)) - 1)
    values = np.array(positions, np.uint64)
    outside = np.ones(values.shape, bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for key in _ROUND_KEYS:
            left, right = right, left ^ (_mixed(right + key) & mask)
        values[outside] = left << half | right
        outside = values >= length
    return values.astype(np.int64)


def _mixed(values: np.ndarray) -> np.ndarray:
    # The finaliser of splitmix64 (Steele et al., OOPSLA 2014), its upper half.
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values >> np.uint64(32)


_ROUND_KEYS = [np.uint64(0x9E3779B97F4A7C15 * i % 2**64) for i in range(1, 7)]


def _plan(sources: Mapping[str, Source], shard_size: int) -> dict[str, Any]:
    """All that the shards are a function of, as far as it can be told without reading images."""
    if shard_size < 1:
        raise UsageError(f"a shard of {shard_size} records: expected 1 or more")
    classes = {split: list(source.class_names) for split, source in sources.items()}
    first, *others = classes
    for split in others:
        if classes[split] != classes[first]:
            raise UsageError(
                f"the splits {first} and {split} have different classes: prepare them apart"
            )
    for split, source in sources.items():
        if not len(source):
            raise UsageError(f"the split {split} of {source.name} has no examples")
    return {
        "format": FORMAT,
        "version": VERSION,
        "shard_size": shard_size,
        "classes": classes[first],
        "splits": {
            split: {
                "examples": len(source),
                "first": _first_names(source),
                "labels": _labels_digest(source),
            }
            for split, source in sources.items()
        },
    }


def _first_names(source: Source) -> list[str]:
    """Of a few examples: enough to tell another folder with as many images."""
    positions = np.arange(min(8, len(source)))
    return [where(source, index) for index in permuted(positions, len(source)).tolist()]


def _labels_digest(source: Source) -> str | None:
    """Of all labels and files, where they are known without reading examples."""
    labels = getattr(source, "labels", None)
    if labels is None:
        return None
    names = "\n".join(getattr(source, "paths", ()))
    content = np.ascontiguousarray(labels).tobytes() + os.fsencode(names)
    return hashlib.sha256(content).hexdigest()


def _shards(plan: dict[str, Any]) -> list[Shard]:
    size, shards = plan["shard_size"], []
    for split, of_split in plan["splits"].items():
        length = of_split["examples"]
        starts = range(0, length, size)
        for number, start in enumerate(starts):
            file = f"{split}-{number:05d}-of-{len(starts):05d}.array_record"
            shards.append(Shard(split, file, start, min(start + size, length)))
    return shards


@contextlib.contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Two at work in one folder would delete each other's unfinished shards."""
    folder = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another prepare is writing to {out}: wait for it") from error
        yield
    finally:
        os.close(folder)  # and with it the lock, as it does when the process is killed


def _resume(out: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """What is known of the shards that are complete, by their file."""
    for leftover in out.glob(".*.new"):
        leftover.unlink()
    journal, done = out / JOURNAL, []
    if journal.is_file():
        *lines, _ = journal.read_text().split("\n")  # what a kill cut off is no line
        begun, *done = map(json.loads, lines)
        _refuse_other_inputs(out, begun, plan)
    elif any(out.iterdir()):
        raise UsageError(f"{out} holds other files: give prepare an empty or a new folder")
    # Shards with bad images are written again: the images may have been repaired.
    done = [
        summary
        for summary in done
        if _size(out / summary["file"]) == summary["bytes"] and not summary["bad_images"]
    ]
    _replace(journal, "".join(json.dumps(line) + "\n" for line in [plan, *done]))
    return {summary["file"]: summary for summary in done}


def _refuse_other_inputs(out: Path, begun: dict[str, Any], plan: dict[str, Any]) -> None:
    def refuse(what: str, before: object, now: object) -> None:
        if before != now:
            raise UsageError(
                f"{out} was begun with other inputs: {what} {before}, now {now}."
                f" Give the same ones to go on, or another folder"
            )

    for key in ("version", "shard_size"):
        refuse(key, begun[key], plan[key])
    refuse("splits", ", ".join(begun["splits"]), ", ".join(plan["splits"]))
    refuse("number of classes", len(begun["classes"]), len(plan["classes"]))
    for before, now in zip(begun["classes"], plan["classes"], strict=True):
        refuse("class", before, now)
    for split, of_split in plan["splits"].items():
        before = begun["splits"][split]
        refuse(f"examples of {split}", before["examples"], of_split["examples"])
        for name_before, name in zip(before["first"], of_split["first"], strict=True):
            refuse(f"an image of {split}", name_before, name)
        if before["labels"] and of_split["labels"]:
            refuse(f"labels or files of {split}", before["labels"][:8], of_split["labels"][:8])


def _refuse_bad_images(summaries: Iterable[dict[str, Any]]) -> None:
    for summary in summaries:
        for bad in summary["bad_images"]:
            raise BadImage(f"cannot read the image {bad['name']}: {bad['error']}")


def _write_shards(
    sources: Mapping[str, Source], out: Path, shards: list[Shard], workers: int
) -> Iterator[tuple[Shard, dict[str, Any]]]:
    """Each shard and what it holds, as they are finished."""
    workers = min(workers or os.cpu_count() or 1, len(shards))
    if workers <= 1:
        yield from ((shard, _write_shard(sources[shard.split], out, shard)) for shard in shards)
        return
    # Processes: 18 % of the time of a JPEG and 40 % of a drawn image are spent holding the
    # interpreter's lock (array_record's writer does not let go of it), so that no more than five or
    # two threads would be busy at a time.
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(cloudpickle.dumps(dict(sources)),),
    )
    try:
        jobs = {pool.submit(_write_in_worker, out, shard): shard for shard in shards}
        for job in concurrent.futures.as_completed(jobs):
            yield jobs[job], job.result()
    except BrokenProcessPool as error:
        raise UsageError(
            f"a worker process died, perhaps for lack of memory ({workers} were at work): run"
            f" prepare again with fewer, what is finished is kept"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_sources_of_worker: dict[str, Source] = {}


def _start_worker(pickled_sources: bytes) -> None:
    """Sources may be large: each worker gets them once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _sources_of_worker.update(cloudpickle.loads(pickled_sources))


def _end_with_parent() -> None:
    """A pool does not notice that its parent was killed: its workers would wait forever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _write_in_worker(out: Path, shard: Shard) -> dict[str, Any]:
    return _write_shard(_sources_of_worker[shard.split], out, shard)


def _name(source: Source, index: int) -> str:
    """Where the image came from, and its own file name where the data set knows it (ReaL does)."""
    place, find = where(source, index), getattr(source, "file_name", None)
    own = find(index) if find else ""
    return place if not own or own in place else f"{place} {own}"


def _write_shard(source: Source, out: Path, shard: Shard) -> dict[str, Any]:
    """Writes one record after the other, never holding more than one, and says what they are."""
    heights, widths, labels_per_image = (collections.Counter() for _ in range(3))
    bad_images, label_shape = [], None
    temporary = out / f".{shard.file}.{os.getpid()}.new"
    # Image files are compressed already. One record per group, to read one without its neighbours.
    writer = ArrayRecordWriter(str(temporary), "group_size:1,uncompressed")
    order = permuted(np.arange(shard.start, shard.stop), len(source))
    for index in order.tolist():
        try:
            example = source[index]
            image = _image_file(example["image"])
            height, width, _ = _checked(image)
        except BadImage as error:
            bad_images.append({"name": where(source, index), "error": str(error)})
            continue
        label_shape = list(example["label"].shape)
        labels = [
            label for label in example["label"].reshape(-1).tolist() if label != PADDING_LABEL
        ]
        writer.write(pack(labels, _name(source, index), image))
        heights[height] += 1
        widths[width] += 1
        labels_per_image[len(labels)] += 1
    try:
        writer.close()  # which is when it tells of a write that failed
    except RuntimeError as error:
        raise UsageError(
            f"cannot write {out / shard.file} ({error}): run prepare again when it can be,"
            f" what is finished is kept"
        ) from error
    with temporary.open("rb") as written:
        sha256 = hashlib.file_digest(written, "sha256").hexdigest()
    size = temporary.stat().st_size
    temporary.replace(out / shard.file)
    return {
        "file": shard.file,
        "count": heights.total(),
        "bytes": size,
        "sha256": sha256,
        "label_shape": label_shape,
        # As pairs: JSON would turn the numbers into strings.
        "heights": sorted(heights.items()),
        "widths": sorted(widths.items()),
        "labels_per_image": sorted(labels_per_image.items()),
        "bad_images": bad_images,
    }


def _image_file(image: np.ndarray | bytes) -> bytes:
    """A file stays as it is; pixels become a PNG, which loses nothing."""
    if isinstance(image, bytes):
        return image
    _, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return data.tobytes()


def _checked(image: bytes) -> Header:
    """The header of an image that can be decoded to its end, which the header alone cannot tell."""
    header = read_header(image)
    if header.is_plain_jpeg:
        # An eighth of the resolution needs every byte of the file and half of the time.
        everything = Region(0, 0, header.height, header.width)
        decode_region(image, header, everything, size=(1, 1))
    else:
        decode(image)
    return header


def _manifest(
    plan: dict[str, Any], shards: list[Shard], done: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    by_split = {
        split: [done[shard.file] for shard in shards if shard.split == split]
        for split in plan["splits"]
    }
    splits = {
        split: _split_manifest(split, plan["splits"][split]["examples"], summaries)
        for split, summaries in by_split.items()
    }
    # One shape for all splits, so that one network can be trained on one and tested on another.
    shapes = {
        tuple(summary["label_shape"])
        for summaries in by_split.values()
        for summary in summaries
        if summary["count"]
    }
    if len({len(shape) for shape in shapes}) > 1:
        raise UsageError(
            "one label per image in some splits, several in others: prepare them apart"
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "shard_size": plan["shard_size"],
        "classes": plan["classes"],
        "label_shape": list(max(shapes)),
        "splits": splits,
    }


def _split_manifest(split: str, examples: int, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    count = sum(summary["count"] for summary in summaries)
    bad_images = [bad for summary in summaries for bad in summary["bad_images"]]
    if not count:
        raise UsageError(
            f"none of the {examples} images of {split} can be read: the first is"
            f" {bad_images[0]['name']}, {bad_images[0]['error']}"
        )
    return {
        "examples": examples,
        "count": count,
        "labels_per_image": _range(summary["labels_per_image"] for summary in summaries),
        "height": _range(summary["heights"] for summary in summaries),
        "width": _range(summary["widths"] for summary in summaries),
        "bad_images": bad_images,
        "shards": [
            {key: summary[key] for key in ("file", "count", "bytes", "sha256")}
            for summary in summaries
        ],
    }


def _range(histograms: Iterable[list[tuple[int, int]]]) -> dict[str, float]:
    """Of values given as (value, how often), in several lists."""
    counts: collections.Counter[int] = collections.Counter()
    for histogram in histograms:
        for value, count in histogram:
            counts[value] += count
    values = np.array(sorted(counts))
    often = np.array([counts[value] for value in values.tolist()])
    median = values[np.searchsorted(often.cumsum(), often.sum() / 2)]
    mean = float(values @ often / often.sum())
    return {
        "min": int(values[0]),
        "median": int(median),
        "mean": round(mean, 4),
        "max": int(values[-1]),
    }


def _problem(folder: Path, shard: dict[str, Any]) -> str:
    """What is wrong with a shard, or ''."""
    size = _size(folder / shard["file"])
    if size is None:
        return "it is missing"
    if size != shard["bytes"]:
        return f"it has {size} bytes, expected {shard['bytes']}"
    with (folder / shard["file"]).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if digest == shard["sha256"] else "its checksum differs"


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def _replace(file: Path, text: str) -> None:
    """In one move, so that nobody ever finds half of it."""
    temporary = file.with_name(f".{file.name}.new")
    temporary.write_text(text)
    temporary.replace(file)
