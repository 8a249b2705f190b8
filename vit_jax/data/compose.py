"""Data sets made of others: a slice of a split, a mixture with weights."""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np

from vit_jax.data.folder import in_order
from vit_jax.data.source import Example, Source, check_index, some_label, where
from vit_jax.errors import UsageError

# A mixture goes through its sources in blocks of this many examples, of which each has its share.
_BLOCK = 1000


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some examples of another source, by number."""

    source: Source
    examples: Sequence[int]  # a range for a slice, which takes no memory

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.source.class_names

    @property
    def num_classes(self) -> int:
        return self.source.num_classes

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        check_index(self, index)
        return self.source[int(self.examples[index])]

    def where(self, index: int) -> str:
        return where(self.source, int(self.examples[index]))


class Mixture:
    """Several sources side by side, each with its share of the examples.

    Every example of the one that takes longest occurs once, those of the others again and again.
    Classes of the same name are the same.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[float]) -> None:
        self.name = " + ".join(source.name for source in sources)
        total = sum(weights)
        if total <= 0 or min(weights) < total / _BLOCK:
            raise UsageError(
                f"{self.name}: weights {', '.join(map(str, weights))}; expected each to be at "
                f"least a thousandth of all"
            )
        shares = [round(_BLOCK * weight / total) for weight in weights]
        self._sources, self._shares = tuple(sources), shares
        self._starts = np.cumsum([0, *shares])
        blocks = max(
            math.ceil(len(source) / share) for source, share in zip(sources, shares, strict=True)
        )
        self._length = blocks * int(self._starts[-1])
        names = in_order({name for source in sources for name in source.class_names})
        self.class_names = tuple(names)
        number = {name: label for label, name in enumerate(names)}
        self._labels = [
            np.array([number[name] for name in source.class_names], np.int32) for source in sources
        ]
        widths = [some_label(source).shape for source in sources]
        if len(set(widths)) > 1:
            raise UsageError(
                f"{self.name}: sources with another number of labels per image cannot be mixed"
            )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Example:
        check_index(self, index)
        which, place = self._find(index)
        example = self._sources[which][place]
        label = example["label"]
        return Example(
            image=example["image"],
            label=np.where(label < 0, label, self._labels[which][label]).astype(np.int32),
        )

    def where(self, index: int) -> str:
        which, place = self._find(index)
        return where(self._sources[which], place)

    def _find(self, index: int) -> tuple[int, int]:
        """The source and the example in it."""
        block, offset = divmod(index, int(self._starts[-1]))
        which = int(np.searchsorted(self._starts, offset, side="right")) - 1
        place = block * self._shares[which] + offset - int(self._starts[which])
        return which, place % len(self._sources[which])


def mixture_parts(name: str) -> list[tuple[str, float]]:
    """ "glyphs*0.7 + digits*0.3" -> names and weights; nothing if it is no mixture."""
    parts = re.split(r"\s*\+\s*", name)
    number = r"\d*\.?\d+(?:e-?\d+)?"
    matches = [re.fullmatch(rf"(.+?)\s*\*\s*({number})", part.strip()) for part in parts]
    if len(parts) < 2 or not all(matches):
        return []
    return [(match[1].strip(), float(match[2])) for match in matches if match]


def split_parts(split: str) -> tuple[str, str | None]:
    """ "train[:98%]" -> ("train", ":98%")."""
    match = re.fullmatch(r"(\w+)(?:\[(.*)\])?", split)
    if not match:
        raise UsageError(f"split {split!r}: expected as in train, train[:98%] or train[1000:]")
    return match[1], match[2]


def sliced(source: Source, bounds: str, split: str) -> Subset:
    """The part of a source between two bounds, each a number of examples or a percentage."""
    match = re.fullmatch(r"(-?\d+%?)?:(-?\d+%?)?", bounds.replace("_", ""))
    if not match:
        raise UsageError(
            f"split {split!r}: expected [FROM:TO] with numbers or percentages, as in train[:98%]"
        )

    def place(text: str | None, default: int) -> int:
        if text is None:
            return default
        value = int(text.removesuffix("%"))
        if text.endswith("%"):
            value = round(len(source) * value / 100)
        return min(len(source), max(0, value + len(source) if text.startswith("-") else value))

    examples = range(place(match[1], 0), place(match[2], len(source)))
    if not examples:
        raise UsageError(
            f"split {split!r} of {source.name} is empty: it has {len(source)} examples"
        )
    return Subset(source, examples)
