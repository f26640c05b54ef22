"""The calls of the core: start a sequence, grow it, end it, and look at its table."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen

from kvspec.contract import History, Unspecified
from kvspec.geometry import blocks_for, table_index
from kvspec.interface import Copy
from kvspec.kernel.events import Ended, Event, Grew, Started, Written
from kvspec.kernel.operation import (
    AnswerShape,
    Need,
    SequenceOperation,
    length_errors,
    whole,
)
from kvspec.kernel.outcome import DONE, Answer, Observation, Outcome
from kvspec.kernel.state import Cell, Entries, State

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


def _cells(
    seq: int, start: int, num_tokens: Any, state: State, spec: "Specification"
) -> tuple[Cell, ...]:
    # No more than the pool holds: an allocator that grants an absurd length breaks a law,
    # and must not make the caller write for ever.
    stop = start + min(whole(num_tokens) or 0, spec.geometry.capacity)
    return tuple(Cell(p, seq, state.clock) for p in range(start, stop))


@frozen
class Allocate(SequenceOperation):
    """`allocate(seq, num_tokens)`, with a bound on the final length where one is given."""

    capability: ClassVar[str] = "core"
    method: ClassVar[str] = "allocate"

    num_tokens: Any
    limit: Any = None

    @property
    def subjects(self) -> tuple[int, ...]:
        """None: the id is a new one."""
        return ()

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The limit goes by keyword, and only where there is one."""
        bound = {} if self.limit is None else {"limit": self.limit}
        return (self.seq, self.num_tokens), bound

    @property
    def touched(self) -> tuple[int, ...]:
        """The new sequence."""
        return (self.seq,)

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is in use, or a length is not one or is beyond its bound."""
        most = spec.geometry.max_tokens
        errors = length_errors(self.num_tokens, most)
        if self.limit is not None:
            errors |= length_errors(self.limit, most) or length_errors(
                self.num_tokens, whole(self.limit)
            )
        if self.seq in state.sequences:
            errors |= {"SequenceExists"}
        return errors

    def need(self, state: State, spec: "Specification") -> Need:
        """All the blocks of the reservation are fresh."""
        return Need(
            spec.least(self._past(spec)),
            may_refuse=isinstance(spec.contract.reservation, Unspecified),
        )

    def asks(self, state: State, spec: "Specification") -> int:
        """The reservation; the blocks that the tokens fill, where the lengths make no sense."""
        bound = () if self.limit is None else (whole(self.limit),)
        if length_errors(self.num_tokens, *bound) or None in bound:
            return blocks_for(max(0, whole(self.num_tokens) or 0), spec.geometry.block_size)
        return spec.least(self._past(spec))

    def _past(self, spec: "Specification") -> History:
        return History(
            allocated=self.num_tokens,
            limit=self.limit,
            length=self.num_tokens,
            reserved=0,
            max_tokens=spec.geometry.max_tokens,
        )

    def history(self, state: State, spec: "Specification") -> Iterator[Event]:
        """The sequence starts."""
        yield Started(self.seq, whole(self.num_tokens) or 0, self.limit)

    def effects(self, state: State, spec: "Specification") -> Iterator[Event]:
        """All its slots are written at once."""
        yield Written(self.seq, 0, _cells(self.seq, 0, self.num_tokens, state, spec))

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Any free blocks, as many as the reservation allows, where the placement allows."""
        for count in spec.holdings(self._past(spec)) if self.num_tokens else (0,):
            for table in spec.places(state, count):
                seen = Observation(tables={self.seq: table})
                yield spec.result(state, self, Outcome(DONE, seen))


@frozen
class Append(SequenceOperation):
    """`append(seq, num_tokens)`: reserve, then the caller writes.

    An entry that is written into and whose block another table has too needs a block of its
    own: either the writer gets it, or all the others do. Where only a lease pins the block,
    the writer may stay, or get a copy if one is to be had.
    """

    capability: ClassVar[str] = "core"
    method: ClassVar[str] = "append"

    num_tokens: Any

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Both by position."""
        return (self.seq, self.num_tokens), {}

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequence that grows."""
        return (self.seq,)

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown, or the length is not one or leads beyond a bound."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return length_errors(self.num_tokens, spec.geometry.max_tokens) | {"UnknownSequence"}
        room = [
            bound - sequence.length
            for bound in (sequence.limit, spec.geometry.max_tokens)
            if bound is not None
        ]
        return length_errors(self.num_tokens, *room)

    def need(self, state: State, spec: "Specification") -> Need:
        """The growth of the reservation, and one block for each shared entry written into."""
        if self.num_tokens == 0:
            return Need(0)
        held, grown = state.table(self.seq), self._grown(state, spec)
        copied = len(self._shared(state, spec))
        return Need(
            max(0, spec.least(grown) - len(held)) + copied,
            copied=copied,
            held=held,
            target=spec.target(grown),
            may_refuse=isinstance(spec.contract.reservation, Unspecified),
        )

    def asks(self, state: State, spec: "Specification") -> int:
        """The blocks that the tokens fill."""
        return blocks_for(max(0, whole(self.num_tokens) or 0), spec.geometry.block_size)

    def _grown(self, state: State, spec: "Specification") -> History:
        """The past of the sequence, with the length that it is to have."""
        sequence = state.sequences[self.seq]
        grown = evolve(sequence, length=sequence.length + self.num_tokens)
        return spec.past(grown, len(state.table(self.seq)))

    def _written_into(self, state: State, spec: "Specification") -> Iterator[tuple[int, int]]:
        """The entries that exist and are written into, with their blocks."""
        size, length = spec.geometry.block_size, state.sequences[self.seq].length
        table = state.table(self.seq)
        last = table_index(length + self.num_tokens - 1, size)
        for i in range(table_index(length, size), min(len(table), last + 1)):
            block = table[i]
            if block is not None:
                yield i, block

    def _shared(self, state: State, spec: "Specification") -> list[tuple[int, int]]:
        users = state.at().users
        return [
            (i, block)
            for i, block in self._written_into(state, spec)
            if len(users.get(block, ())) > 1
        ]

    def history(self, state: State, spec: "Specification") -> Iterator[Event]:
        """The sequence grows."""
        yield Grew(self.seq, whole(self.num_tokens) or 0)

    def effects(self, state: State, spec: "Specification") -> Iterator[Event]:
        """The new slots are written."""
        start = state.sequences[self.seq].length
        yield Written(self.seq, start, _cells(self.seq, start, self.num_tokens, state, spec))

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Any free blocks; for each entry written into, each way of getting it alone."""
        if self.num_tokens == 0:
            yield spec.result(state, self, Outcome(DONE))
            return
        table = state.table(self.seq)
        holdings = spec.holdings(self._grown(state, spec))
        growths = sorted({max(0, n - len(table)) for n in holdings})
        more = [place for growth in growths for place in spec.places(state, growth, table)]
        entries = list(self._written_into(state, spec))
        ways = product(*(self._ways(state, spec, i, block) for i, block in entries))
        for grown, chosen in product(more, ways):
            free = [block for block in spec.free_blocks(state) if block not in grown]
            if sum(bool(movers) for movers, _ in chosen) > len(free):
                continue
            tables: dict[int, list[int | None]] = {self.seq: list(table)}
            copies: list[Copy] = []
            for (_, block), (movers, copied) in zip(entries, chosen, strict=True):
                if not movers:
                    continue
                fresh = free.pop(0)
                for seq in movers:
                    theirs = tables.setdefault(seq, list(state.table(seq)))
                    theirs[theirs.index(block)] = fresh
                if copied:
                    copies.append(Copy(block, fresh))
            tables[self.seq] += grown
            seen: dict[int, Entries] = {seq: tuple(shown) for seq, shown in tables.items()}
            answer = Answer("done", copies=tuple(copies))
            yield spec.result(state, self, Outcome(answer, Observation(tables=seen)))

    def _ways(
        self, state: State, spec: "Specification", index: int, block: int
    ) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Which sequences get another block for that entry, and whether a copy is reported.

        It must be where they have written into the block, and else it may be.
        """
        occupancy, start = state.at(), index * spec.geometry.block_size
        others = tuple(user.seq for user in occupancy.users[block] if user.seq != self.seq)
        if not others:
            yield (), False
        if others or block in occupancy.pins:
            for movers in ((self.seq,), others) if others else ((self.seq,),):
                yield movers, True
                if all(state.sequences[seq].written <= start for seq in movers):
                    yield movers, False


@frozen
class Free(SequenceOperation):
    """`free(seq)`: never refused."""

    capability: ClassVar[str] = "core"
    method: ClassVar[str] = "free"

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequence that ends."""
        return (self.seq,)

    def history(self, state: State, spec: "Specification") -> Iterator[Event]:
        """The sequence ends."""
        yield Ended(self.seq)


@frozen
class ShowTable(SequenceOperation):
    """`block_table(seq)` as a call of its own: how it answers for an id that is not in use."""

    capability: ClassVar[str] = "core"
    method: ClassVar[str] = "block_table"
    answers: ClassVar[AnswerShape] = "table"
    queries: ClassVar[bool] = True
