"""What is wrong with a data set, found by reading all of it the way training does."""

import collections
import concurrent.futures
import dataclasses
import hashlib
import io
import os
import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import PIL.Image

from vit_jax.data.decode import BadImage, decode, read_header
from vit_jax.data.source import Source, where

_EXTENSIONS = {
    "jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "gif": "GIF", "webp": "WEBP", "bmp": "BMP",
    "tif": "TIFF", "tiff": "TIFF",
}  # fmt: skip
_MODES = {"L": "grey", "1": "grey", "CMYK": "CMYK", "P": "palette", "RGBA": "transparent"}
_TINY, _HUGE = 32, 4096  # pixels of a side that are worth a word
_NAMED = 10  # examples of each finding
_AHEAD = 64  # examples under way at a time: memory stays bounded


class _Seen(NamedTuple):
    """One example, looked at."""

    index: int
    labels: tuple[int, ...]
    size: tuple[int, int] | None  # height, width; None if it cannot be read
    digest: bytes
    findings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Split:
    """What one split holds."""

    examples: int
    per_class: dict[str, int]  # class name -> images
    heights: tuple[int, int, int]  # least, median, most
    widths: tuple[int, int, int]
    findings: dict[str, list[str]]  # what is odd -> the images, by name

    @property
    def unreadable(self) -> list[str]:
        return self.findings.get("unreadable", [])


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What a data set holds, and what is wrong with it."""

    splits: dict[str, Split]
    shared: dict[str, list[str]]  # "train, test" -> pairs of names of the same image

    @property
    def is_healthy(self) -> bool:
        """Nothing that spoils training or what is measured after it."""
        return not any(self.shared.values()) and not any(s.unreadable for s in self.splits.values())

    def as_dict(self) -> dict[str, Any]:
        """For scripts."""
        return dataclasses.asdict(self) | {"is_healthy": self.is_healthy}

    def text(self) -> str:
        """For people."""
        lines = []
        for name, split in self.splits.items():
            lines.append(f"{name}: {split.examples:,} images, {len(split.per_class)} classes")
            lines += [f"  {line}" for line in (_sizes(split), *_histogram(split.per_class))]
            for what, names in split.findings.items():
                lines += _listed(f"  {what}", names)
        for splits, names in self.shared.items():
            lines += _listed(f"the same images in {splits}", names)
        lines.append("healthy" if self.is_healthy else "not healthy: see above")
        return "\n".join(lines)


def examine(
    sources: Mapping[str, Source], report: Callable[[int, int], None] = lambda done, total: None
) -> Diagnosis:
    """Reads every example of every split; `report(done, total)` is called on the way."""
    total, done = sum(map(len, sources.values())), 0
    splits: dict[str, Split] = {}
    first: dict[bytes, tuple[str, int]] = {}  # digest -> the split and number where it was first
    shared: dict[str, list[str]] = collections.defaultdict(list)
    for split, source in sources.items():
        sizes, findings = [], collections.defaultdict(list)
        counts = collections.Counter(dict.fromkeys(source.class_names, 0))
        for seen in _look_at_all(source):
            done += 1
            report(done, total)
            name = where(source, seen.index)
            counts.update(source.class_names[label] for label in seen.labels)
            if seen.size:
                sizes.append(seen.size)
            for finding in seen.findings:
                what, _, reason = finding.partition(": ")
                findings[what].append(f"{name} ({reason})" if reason else name)
            earlier, index = first.setdefault(seen.digest, (split, seen.index))
            if earlier != split:
                shared[f"{earlier} and {split}"].append(
                    f"{where(sources[earlier], index)} = {name}"
                )
        heights, widths = zip(*sizes, strict=True) if sizes else ((0,), (0,))
        splits[split] = Split(
            len(source), dict(counts), _spread(heights), _spread(widths), dict(findings)
        )
    return Diagnosis(splits, dict(shared))


def _look_at_all(source: Source):
    """Every example in order, several at a time."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting: collections.deque[concurrent.futures.Future[_Seen]] = collections.deque()
        for index in range(len(source)):
            waiting.append(pool.submit(_look_at, source, index))
            if len(waiting) >= _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _look_at(source: Source, index: int) -> _Seen:
    try:
        example = source[index]
    except BadImage as error:
        return _Seen(index, (), None, str(index).encode(), (f"unreadable: {error}",))
    image = example["image"]
    labels = tuple(int(label) for label in np.atleast_1d(example["label"]) if label >= 0)
    content = image if isinstance(image, bytes) else image.tobytes()
    digest = hashlib.blake2b(content, digest_size=16).digest()
    try:
        pixels = decode(image) if isinstance(image, bytes) else image
    except BadImage as error:
        return _Seen(index, labels, None, digest, (f"unreadable: {error}",))
    findings = _oddities(image, where(source, index)) if isinstance(image, bytes) else []
    height, width = pixels.shape[:2]
    if min(height, width) < _TINY and isinstance(image, bytes):
        findings.append(f"tiny: {width}x{height}")
    if max(height, width) > _HUGE:
        findings.append(f"huge: {width}x{height}")
    return _Seen(index, labels, (height, width), digest, tuple(findings))


def _oddities(data: bytes, name: str) -> list[str]:
    """What is not as its name says, or not plain colour: training reads it all the same."""
    found = []
    with PIL.Image.open(io.BytesIO(data)) as image:
        expected = _EXTENSIONS.get(name.rpartition(".")[2].lower())
        if expected and image.format != expected and image.format != "MPO":
            found.append(f"wrong extension: it is a {image.format}")
        if image.mode in _MODES:
            found.append(_MODES[image.mode])
        if read_header(data).orientation not in (None, 1):
            found.append("turned by its EXIF tag")
    return found


def _spread(values: tuple[int, ...]) -> tuple[int, int, int]:
    return min(values), round(statistics.median(values)), max(values)


def _sizes(split: Split) -> str:
    (h0, h1, h2), (w0, w1, w2) = split.heights, split.widths
    return f"height {h0} to {h2} (median {h1}), width {w0} to {w2} (median {w1})"


def _histogram(per_class: Mapping[str, int]) -> list[str]:
    """A bar for each class, or for the ends of a long list."""
    ranked = sorted(per_class.items(), key=lambda item: -item[1])
    most = max(1, ranked[0][1]) if ranked else 1
    rows = [f"{name[:24]:24} {count:8,} {'#' * round(30 * count / most)}" for name, count in ranked]
    if len(rows) > 2 * _NAMED:
        rows = [*rows[:_NAMED], f"... {len(rows) - 2 * _NAMED} more ...", *rows[-_NAMED:]]
    return rows


def _listed(what: str, names: list[str]) -> list[str]:
    more = [f"    ... {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return [f"{what}: {len(names)}", *(f"    {name}" for name in names[:_NAMED]), *more]
