"""Reads a compiled program's text: computations, instructions, loops, groups of devices.

Only as much as the cost of a step needs. The text is that of a scheduled module, so the order of
instructions is the order in which they run.
"""

import dataclasses
import functools
import math
import re

import numpy as np

_HEADER = re.compile(r"(ENTRY )?%([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"\s+(ROOT )?%([\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
_IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"  # numbers in a shape, and its axes in another order
_BITS = re.compile(r"[a-z]+(\d+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: %name = type opcode(arguments), attributes."""

    name: str
    type: str
    opcode: str
    arguments: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        return _OPERAND.findall(self.arguments)

    @property
    def bytes(self) -> int:
        """Of its result, without padding."""
        return type_bytes(self.type)

    def attribute(self, pattern: str) -> str | None:
        """What the group of a pattern finds in the attributes."""
        found = re.search(pattern, self.attributes)
        return found and found[1]

    def called(self, key: str) -> str | None:
        """The computation under a key such as `calls` or `body`."""
        return self.attribute(rf"\b{key}=%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they run; the root is the one that is the result."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}


@dataclasses.dataclass(frozen=True)
class Module:
    """A program."""

    computations: dict[str, Computation]
    entry: Computation

    def trips(self, loop: Instruction, inside: Computation) -> int | None:
        """How often the body of a `while` runs, where the text tells."""
        if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        condition = self.computations[loop.called("condition")]
        compared = _comparison(self, condition)
        if compared is None:
            return None
        index, limit, includes = compared
        start = _initial(loop, inside, index)
        step = _increment(self.computations[loop.called("body")], index)
        if step < 0:
            start, limit, step = limit, start, -step
        return max(0, math.ceil((limit + includes - start) / step))


def parse(text: str) -> Module:
    """The module of `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    entry = None
    name, lines, is_entry = "", [], False
    for line in text.splitlines():
        if header := _HEADER.match(line):
            name, lines, is_entry = header[2], [], bool(header[1])
        elif line == "}" and lines:
            computations[name] = _computation(name, lines)
            entry = computations[name] if is_entry else entry
            lines = []
        elif _NAME.match(line):
            lines.append(line)
        elif lines:
            lines[-1] += line  # what a kernel says of itself has lines of its own
    if entry is None:
        raise ValueError("no ENTRY computation: not the text of a compiled module")
    return Module(computations, entry)


def _computation(name: str, lines: list[str]) -> Computation:
    starts = [_NAME.match(line) for line in lines]
    instructions = [
        _instruction(start[2], line[start.end() :])
        for start, line in zip(starts, lines, strict=True)
    ]
    roots = [i for i, start in zip(instructions, starts, strict=True) if start[1]]
    return Computation(name, tuple(instructions), (roots or instructions)[-1])


def type_bytes(text: str) -> int:
    """Of an array's type, or of a tuple's."""
    bits = (
        math.prod(int(size) for size in sizes.split(",") if size) * _item_bits(kind)
        for kind, sizes in _ARRAY.findall(text)
    )
    return sum(-(-count // 8) for count in bits)


def device_groups(attributes: str, devices: int) -> np.ndarray:
    """The groups of a collective, [group, device], from any of the ways to write them."""
    if found := re.search(
        r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]+\})\}", attributes
    ):
        return np.array([_numbers(group) for group in re.findall(r"\{([\d,]+)", found[1])])
    if found := re.search(rf"replica_groups=\[([\d,]+)\]<={_IOTA}", attributes):
        return _iota(found[2], found[3]).reshape(_numbers(found[1]))
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\](.*?)\{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        shape = [int(size) for size in sizes.values()]
        order = re.search(rf"device_ids=\({_IOTA}\)", found[2])
        ids = _iota(*order.groups()) if order else np.arange(math.prod(shape))
        axes = [list(sizes).index(axis) for axis in re.findall(r"'(\w+)'", found[3])]
        last = range(-len(axes), 0)
        grouped = np.moveaxis(ids.reshape(shape), axes, last)
        return grouped.reshape(-1, math.prod(shape[axis] for axis in axes))
    return np.arange(devices)[None]  # {}: all of them


def _instruction(name: str, text: str) -> Instruction:
    """From what follows the equals sign."""
    end = _closing(text) + 1 if text.startswith("(") else text.index(" ")
    kind, rest = text[:end], text[end:].lstrip()
    opened = rest.index("(")
    closed = opened + _closing(rest[opened:])
    return Instruction(name, kind, rest[:opened], rest[opened + 1 : closed], rest[closed + 1 :])


def _closing(text: str) -> int:
    """Where the parenthesis that `text` opens with is closed."""
    depth = 0
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    raise ValueError(f"a parenthesis is not closed: {text[:80]}")


def _item_bits(kind: str) -> int:
    if kind == "pred":
        return 8
    bits = _BITS.match(kind)
    return int(bits[1]) if bits else 0  # a token has none


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _iota(shape: str, order: str | None) -> np.ndarray:
    ids = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return (ids.transpose(_numbers(order)) if order else ids).reshape(-1)


def _comparison(module: Module, condition: Computation) -> tuple[int, int, int] | None:
    """(index of the counter in the loop's tuple, its limit, 1 if the limit is included)."""
    compare, scope = condition.root, condition
    if compare.opcode == "fusion":
        inner = module.computations[compare.called("calls")]
        outer = [condition.by_name[name] for name in compare.operands]
        compare = inner.root
        found = [inner.by_name[name] for name in compare.operands]
        values = [outer[int(i.arguments)] if i.opcode == "parameter" else i for i in found]
    else:
        values = [scope.by_name[name] for name in compare.operands]
    if compare.opcode != "compare" or len(values) != 2:
        return None
    counter, limit = (_behind(value, scope) for value in values)
    direction = compare.attribute(r"direction=(\w+)")
    if counter.opcode == "constant":
        counter, limit = limit, counter
    if limit.opcode != "constant" or counter.opcode != "get-tuple-element":
        return None
    return int(counter.attribute(r"index=(\d+)")), int(limit.arguments), direction in ("LE", "GE")


def _behind(instruction: Instruction, scope: Computation) -> Instruction:
    """What a copy or a bitcast is of."""
    while instruction.opcode in ("copy", "bitcast", "convert") and instruction.operands:
        inner = scope.by_name.get(instruction.operands[0])
        if inner is None:
            return instruction
        instruction = inner
    return instruction


def _initial(loop: Instruction, scope: Computation, index: int) -> int:
    """Of the counter: 0 where the text does not tell."""
    tuple_ = _behind(scope.by_name[loop.operands[0]], scope)
    if tuple_.opcode != "tuple":
        return 0
    value = _behind(scope.by_name[tuple_.operands[index]], scope)
    return int(value.arguments) if value.opcode == "constant" else 0


def _increment(body: Computation, index: int) -> int:
    """Of the counter in one round: 1 where the text does not tell."""
    if body.root.opcode != "tuple":
        return 1
    value = _behind(body.by_name[body.root.operands[index]], body)
    if value.opcode != "add":
        return 1
    parts = [_behind(body.by_name[name], body) for name in value.operands]
    constants = [int(part.arguments) for part in parts if part.opcode == "constant"]
    return constants[0] if constants and constants[0] else 1
