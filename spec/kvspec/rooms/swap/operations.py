"""The calls of swapping: a sequence goes to the host as a whole, and comes back."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from kvspec.geometry import HOST, Place
from kvspec.interface import Copy
from kvspec.kernel.events import Event, Moved
from kvspec.kernel.operation import ANY_ERROR, AnswerShape, Need, SequenceOperation
from kvspec.kernel.outcome import Answer, Observation, Outcome
from kvspec.kernel.state import Entries, State, TableOf, table_of

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

Pair = tuple[int, int]
"""The source and the destination of a copy."""


@frozen
class Swap(SequenceOperation):
    """A move of a whole sequence to the other tier."""

    capability: ClassVar[str] = "swap"

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequence that moves."""
        return (self.seq,)

    @classmethod
    def goes_to(cls, state: State, group: int) -> Place:
        """Where the blocks of a group go."""
        return HOST if cls.tiers[1] == "host" else state.places[group]

    def needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """A fresh block there for each entry that has a block here."""
        return tuple(
            Need(len(present(state.entries(table))), place=self.goes_to(state, table.group))
            for table in state.homes(self.seq)
        )

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequence moves."""
        yield Moved(self.seq, self.tiers[1])

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Any free blocks there; copies of what was never written may be left out."""
        tables: dict[TableOf, Entries] = {}
        needed, idle = [], []
        for table in state.homes(self.seq):
            place = self.goes_to(state, table.group)
            free = iter(spec.free_blocks(state, place))
            before = state.entries(table)
            after = tuple(None if block is None else next(free) for block in before)
            tables[table] = ()
            tables[table_of(self.seq, table.group, place)] = after
            needed += copy_pairs(state, spec, table, before, after)[0]
            idle += copy_pairs(state, spec, table, before, after)[1]
        for told in product((True, False), repeat=len(idle)):
            pairs = [*needed, *(pair for pair, one in zip(idle, told, strict=True) if one)]
            answer = Answer("done", copies=tuple(Copy(*pair) for pair in pairs))
            yield spec.result(state, self, Outcome(answer, Observation(tables=tables)))


@frozen
class SwapOut(Swap):
    """`swap_out(seq)`: the copies name (device, host)."""

    method: ClassVar[str] = "swap_out"
    tiers: ClassVar[tuple[str, str]] = ("device", "host")


@frozen
class SwapIn(Swap):
    """`swap_in(seq)`: the copies name (host, device)."""

    method: ClassVar[str] = "swap_in"
    tiers: ClassVar[tuple[str, str]] = ("host", "device")
    everywhere: ClassVar[bool] = True

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown; a sequence that is on the device is outside the conventions."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return frozenset({"UnknownSequence"})
        return frozenset({ANY_ERROR}) if sequence.resident else frozenset()


@frozen
class ShowHostTable(SequenceOperation):
    """`host_block_table(seq)` as a call of its own: how it answers for an id not in use."""

    capability: ClassVar[str] = "swap"
    method: ClassVar[str] = "host_block_table"
    answers: ClassVar[AnswerShape] = "table"
    queries: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True


def present(entries: Entries) -> list[int]:
    """The blocks of the entries that were not released."""
    return [block for block in entries if block is not None]


def copy_pairs(
    state: State, spec: "Specification", table: TableOf, before: Entries, after: Entries
) -> tuple[list[Pair], list[Pair]]:
    """The copies that a move takes, from the old block of each entry to its new one.

    First those that must be made, then those of blocks into which nothing was written.
    """
    size, cells = spec.block_size(table), state.sequences[table.seq].cells
    needed: list[Pair] = []
    idle: list[Pair] = []
    for i, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not None and new is not None:
            written = any(cell is not None for cell in cells[i * size : (i + 1) * size])
            (needed if written else idle).append((old, new))
    return needed, idle


def swapped_out(state: State) -> list[int]:
    """The sequences that are swapped out."""
    return [seq for seq, sequence in state.sequences.items() if not sequence.resident]
