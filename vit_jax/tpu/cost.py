"""How long a compiled step takes, by the compiler's own estimates: its schedule, replayed.

Each instruction takes its `estimated_cycles`, a kernel of our own what tpu/kernels.py says; a
collective takes its bytes over its links. One that was started early runs beside what follows,
until it is waited for. A loop is its body, many times.
"""

import collections
import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from vit_jax.tpu.hlo import Computation, Instruction, Module, device_groups, type_bytes
from vit_jax.tpu.kernels import kernel_cycles
from vit_jax.train.chips import Chip

_KINDS_OF_WORK = {
    "matmul": {"convolution", "dot"},
    "reduction": {"reduce", "reduce-window"},
    "sort": {"sort", "scatter", "gather"},
    "random": {"rng-bit-generator"},
}
# What computes nothing.
_MOVING = {
    "bitcast", "broadcast", "concatenate", "constant", "convert", "copy", "dynamic-slice",
    "dynamic-update-slice", "get-tuple-element", "pad", "parameter", "reshape", "slice",
    "transpose", "tuple",
}  # fmt: skip

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind over one network, summed over a step. Per device."""

    kind: str
    network: str  # "ICI" within a slice, "DCN" between slices
    count: int
    bytes: int  # of the tensors: gathered, reduced, exchanged
    seconds: float  # on its links, hidden behind compute or not


@dataclasses.dataclass(frozen=True)
class Work:
    """Instructions of one kind, summed over a step. Per device."""

    kind: str  # "matmul", "kernel", "reduction", "copy", "elementwise"
    count: int
    cycles: int
    bytes: int  # of operands and results, without padding, wherever they lie


@dataclasses.dataclass(frozen=True)
class Cost:
    """One step on one device."""

    cycles: int  # the compiler's estimate, and that of our own kernels
    seconds: float  # of the whole schedule
    waiting: float  # seconds of those in which nothing but a collective runs
    collectives: tuple[Collective, ...]
    work: tuple[Work, ...]  # what the cycles are for, the most expensive kind first
    without_estimate: int  # kernels that nothing is known of
    unknown_loops: int  # whose rounds the text does not tell: counted once


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a program runs on: its chip, and where the devices of a slice are in the torus."""

    chip: Chip
    coordinates: Sequence[Sequence[int]]  # of each device of a slice, in the order of the mesh
    slices: int = 1

    def ici_bandwidth(self, group: Sequence[int]) -> float:
        """Bytes a second that a device can send to its group: by the axes that the group spans."""
        coordinates = np.array(self.coordinates)
        axes = int((np.ptp(coordinates, axis=0) > 0).sum()) or 1
        spanned = int((np.ptp(coordinates[list(group)], axis=0) > 0).sum()) or 1
        return self.chip.ici * 1e9 * spanned / axes

    def seconds(self, kind: str, network: str, size: int, group: Sequence[int]) -> float:
        """Of one collective on tensors of so many bytes, by the best algorithm there is: a ring."""
        members = self.slices if network == "DCN" else len(group)
        bandwidth = self.chip.dcn * 1e9 if network == "DCN" else self.ici_bandwidth(group)
        return _sent(kind, size, members) / bandwidth


def replay(module: Module, machine: Machine) -> Cost:
    """Runs the schedule on paper."""
    run = _Run(module, machine)
    seconds, cycles = run.computation(module.entry, 1)
    return Cost(
        cycles=cycles,
        seconds=seconds,
        waiting=seconds - cycles / (machine.chip.clock * 1e9),
        collectives=tuple(
            Collective(kind, network, count, size, time)
            for (network, kind), (count, size, time) in sorted(run.totals.items(), reverse=True)
        ),
        work=tuple(
            sorted((Work(kind, *sums) for kind, sums in run.work.items()), key=lambda w: -w.cycles)
        ),
        without_estimate=run.without_estimate,
        unknown_loops=run.unknown_loops,
    )


@dataclasses.dataclass(frozen=True)
class _Transfer:
    """One collective as the schedule meets it."""

    kind: str
    network: str
    size: int
    group: tuple[int, ...]
    channel: str


class _Run:
    """Adds up what is met on the way."""

    def __init__(self, module: Module, machine: Machine) -> None:
        self.module, self.machine = module, machine
        self.totals: dict[tuple[str, str], list[float]] = collections.defaultdict(
            lambda: [0, 0, 0.0]
        )
        self.work: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
        self.without_estimate = self.unknown_loops = 0

    def computation(self, computation: Computation, times: int) -> tuple[float, int]:
        """(seconds, cycles) of one run of it; collectives are counted `times` times."""
        now, cycles, link_free = 0.0, 0, {"ICI": 0.0, "DCN": 0.0}
        ready: dict[str, float] = {}  # channel -> when its transfer is there
        hertz = self.machine.chip.clock * 1e9
        for instruction in computation.instructions:
            inner_seconds, inner_cycles = self._inner(instruction, computation, times)
            own = self._own(instruction, computation, times)
            now += inner_seconds + own / hertz
            cycles += inner_cycles + own
            channel = _waits_for(instruction, computation, self.module)
            if channel is not None:
                now = max(now, ready.pop(channel, now))
                continue
            transfer, is_started = _transfer(instruction, self.module, self.machine)
            if transfer is None or transfer.channel in ready:
                continue  # or a part of one that is under way
            seconds = self._add(transfer, times)
            end = max(now, link_free[transfer.network]) + seconds
            link_free[transfer.network] = end
            if is_started:
                ready[transfer.channel] = end
            else:
                now = end
        return now, cycles

    def _own(self, instruction: Instruction, scope: Computation, times: int) -> int:
        """Cycles of one instruction."""
        if kernel := self._kernel(instruction):
            kind, cycles = "kernel", kernel_cycles(kernel, self.machine.chip)
            if cycles is None:
                self.without_estimate += times
        else:
            cycles = int(instruction.attribute(r'"estimated_cycles":"(\d+)"') or 0)
            if instruction.opcode == "rng-bit-generator" and not cycles:
                cycles = self.machine.chip.cycles_to_move(
                    instruction.bytes
                )  # no estimate: at least
            kind = _kind(instruction, self.module) if cycles else ""
        if not cycles:
            return 0
        operands = (scope.by_name.get(name) for name in instruction.operands)
        moved = instruction.bytes + sum(operand.bytes for operand in operands if operand)
        done = self.work[kind]
        done[0] += times
        done[1] += times * cycles
        done[2] += times * moved
        return cycles

    def _kernel(self, instruction: Instruction) -> Instruction | None:
        """A call of a kernel: alone, or with what is fused into its operands."""
        if 'custom_call_target="tpu_custom_call"' in instruction.attributes:
            return instruction
        if instruction.opcode != "fusion":
            return None
        inner = self.module.computations[instruction.called("calls")].instructions
        return next((found for i in inner if (found := self._kernel(i))), None)

    def _inner(self, instruction: Instruction, scope: Computation, times: int) -> tuple[float, int]:
        computations = self.module.computations
        if instruction.opcode == "while":
            trips = self.module.trips(instruction, scope)
            if trips is None:
                trips, self.unknown_loops = 1, self.unknown_loops + 1
            body = computations[instruction.called("body")]
            seconds, cycles = self.computation(body, times * trips)
            return seconds * trips, cycles * trips
        if instruction.opcode == "call":
            return self.computation(computations[instruction.called("to_apply")], times)
        if instruction.opcode == "conditional":  # one of its branches runs: say, the longest
            names = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
            names = re.findall(r"%([\w.\-]+)", names[1]) if names else []
            names = names or [
                instruction.called(f"{which}_computation") for which in ("true", "false")
            ]
            return max(self.computation(computations[name], times) for name in names)
        return 0.0, 0

    def _add(self, transfer: _Transfer, times: int) -> float:
        seconds = self.machine.seconds(
            transfer.kind, transfer.network, transfer.size, transfer.group
        )
        total = self.totals[transfer.network, transfer.kind]
        total[0] += times
        total[1] += times * transfer.size
        total[2] += times * seconds
        return seconds


def _kind(instruction: Instruction, module: Module) -> str:
    """By the most expensive operation in it."""
    opcodes = _opcodes(instruction, module)
    for kind, those in _KINDS_OF_WORK.items():
        if opcodes & those:
            return kind
    return "copy" if opcodes <= _MOVING else "elementwise"


def _opcodes(instruction: Instruction, module: Module) -> set[str]:
    """Its own, or those of what is fused into it."""
    if instruction.opcode != "fusion":
        return {instruction.opcode}
    inner = module.computations[instruction.called("calls")].instructions
    return set().union(*(_opcodes(i, module) for i in inner))


def _sent(kind: str, size: int, members: int) -> float:
    """Bytes that a device sends in a collective over tensors of so many."""
    share = (members - 1) / members
    if kind == "collective-permute":
        return size
    return size * share * (2 if kind == "all-reduce" else 1)


def _transfer(
    instruction: Instruction, module: Module, machine: Machine
) -> tuple[_Transfer | None, bool]:
    """The collective that an instruction is or starts, and whether it only starts it."""
    if instruction.opcode == "send" and "megascale" in instruction.attributes:
        kind = instruction.attribute(r'_xla_megascale_transfer_type="(\w+)"') or "send"
        size = type_bytes(instruction.type)
        channel = _rendezvous(instruction)
        return _Transfer(kind.lower().replace("_", "-"), "DCN", size, (), channel), True
    kind = instruction.opcode.removesuffix("-start")
    if kind in KINDS:
        found = _of(kind, instruction, machine)
        return found, instruction.opcode.endswith("-start")
    if instruction.opcode not in ("fusion", "async-start"):
        return None, False
    inner = module.computations[instruction.called("calls")]
    collective = next((i for i in inner.instructions if i.opcode in KINDS), None)
    if collective is None:
        return None, False
    # The compiler's name for an all-reduce of which each device keeps its part.
    kind = "reduce-scatter" if "all-reduce-scatter" in inner.name else collective.opcode
    is_started = instruction.opcode == "async-start" or _has(inner, "AsyncCollectiveStart")
    return _of(kind, collective, machine), is_started


def _of(kind: str, instruction: Instruction, machine: Machine) -> _Transfer:
    group = device_groups(instruction.attributes, len(machine.coordinates))[0]
    size = instruction.bytes
    if instruction.opcode.endswith("-start"):  # its type has the operand beside the result
        size = max(map(type_bytes, re.findall(r"\w+\[[\d,]*\]", instruction.type)))
    if instruction.opcode == "reduce-scatter":
        size *= len(group)  # what is reduced, not what is left of it
    channel = instruction.attribute(r"channel_id=(\d+)") or instruction.name
    return _Transfer(kind, "ICI", size, tuple(map(int, group)), channel)


def _waits_for(instruction: Instruction, scope: Computation, module: Module) -> str | None:
    """The channel of the transfer whose end an instruction is."""
    if instruction.opcode == "recv-done":
        received = scope.by_name.get(instruction.operands[0])
        return received and _rendezvous(received)
    if instruction.opcode.endswith("-done") and instruction.opcode != "send-done":
        started = scope.by_name.get(instruction.operands[0])
        if started is None:
            return None
        if started.opcode == "async-start":
            inner = module.computations[started.called("calls")]
            started = next((i for i in inner.instructions if i.opcode in KINDS), started)
        return started.attribute(r"channel_id=(\d+)") or started.name
    if instruction.opcode == "fusion":
        inner = module.computations[instruction.called("calls")]
        if _has(inner, "AsyncCollectiveDone"):
            collective = next(i for i in inner.instructions if i.opcode in KINDS)
            return collective.attribute(r"channel_id=(\d+)")
    return None


def _has(computation: Computation, target: str) -> bool:
    return any(f'custom_call_target="{target}"' in i.attributes for i in computation.instructions)


def _rendezvous(instruction: Instruction) -> str:
    name = instruction.attribute(r'_xla_host_transfer_rendezvous="([^"]*)"')
    return f"DCN {name or instruction.name}"
