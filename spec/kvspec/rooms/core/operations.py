"""The calls of the core: start a sequence, grow it, end it, and look at its table."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from kvspec.contract import History
from kvspec.geometry import blocks_for
from kvspec.kernel.events import Ended, Event, Grew, Started, Written
from kvspec.kernel.growth import beginnings, growth, growths, reservation
from kvspec.kernel.operation import (
    AnswerShape,
    Need,
    SequenceOperation,
    length_errors,
    whole,
)
from kvspec.kernel.outcome import DONE, Answer, Observation, Outcome
from kvspec.kernel.state import State

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


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

    def needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """All the blocks of the reservation are fresh."""
        return reservation(state, spec, self._past(spec))

    def asks(self, state: State, spec: "Specification") -> int:
        """The reservation; the blocks that the tokens fill, where the lengths make no sense."""
        bound = () if self.limit is None else (whole(self.limit),)
        if length_errors(self.num_tokens, *bound) or None in bound:
            return blocks_for(max(0, whole(self.num_tokens) or 0), spec.geometry.block_size)
        return sum(spec.least(self._past(spec), group) for group in spec.groups)

    def _past(self, spec: "Specification") -> History:
        return History(
            allocated=self.num_tokens,
            limit=self.limit,
            length=self.num_tokens,
            reserved=0,
            max_tokens=spec.geometry.max_tokens,
        )

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequence starts."""
        yield Started(self.seq, whole(self.num_tokens) or 0, self.limit)

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """All its slots are written at once."""
        yield self.writes(state, spec)

    def writes(self, state: State, spec: "Specification") -> Written:
        """All that was reserved."""
        return Written(self.seq, 0, spec.cells(state, self.seq, 0, whole(self.num_tokens) or 0))

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Any free blocks, as many as the reservation allows, where the placement allows."""
        for tables in beginnings(state, spec, self.seq, self._past(spec)):
            yield spec.result(state, self, Outcome(DONE, Observation(tables=tables)))


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

    def added(self, seq: int) -> int:
        """The length, where it is one."""
        return max(0, whole(self.num_tokens) or 0) if seq == self.seq else 0

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown, or the length is not one or leads beyond a bound."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return length_errors(self.num_tokens, spec.geometry.max_tokens) | {"UnknownSequence"}
        most = spec.geometry.max_tokens
        limit, length = sequence.limit, sequence.length
        return length_errors(
            self.num_tokens,
            None if limit is None else limit - length,
            None if most is None else most - length,
        )

    def needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """The growth of the reservation, and one block for each shared entry written into."""
        return growth(state, spec, self.seq, self.num_tokens)

    def asks(self, state: State, spec: "Specification") -> int:
        """The blocks that the tokens fill."""
        return blocks_for(max(0, whole(self.num_tokens) or 0), spec.geometry.block_size)

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequence grows."""
        yield Grew(self.seq, whole(self.num_tokens) or 0)

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The new slots are written, and with them those before that were not yet."""
        yield self.writes(state, spec)

    def writes(self, state: State, spec: "Specification") -> Written:
        """All that was not written before, up to the new length."""
        sequence, added = state.sequences[self.seq], whole(self.num_tokens) or 0
        start = sequence.written
        stop = sequence.length + added if added else start
        return Written(self.seq, start, spec.cells(state, self.seq, start, stop))

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Any free blocks; for each entry written into, each way of getting it alone."""
        for answer, tables in growths(state, spec, self.seq, self.num_tokens):
            yield spec.result(state, self, Outcome(answer, Observation(tables=tables)))


@frozen
class Free(SequenceOperation):
    """`free(seq)`: never refused."""

    capability: ClassVar[str] = "core"
    method: ClassVar[str] = "free"
    everywhere: ClassVar[bool] = True

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequence that ends."""
        return (self.seq,)

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequence ends."""
        yield Ended(self.seq)


@frozen
class ShowTable(SequenceOperation):
    """`block_table(seq)` as a call of its own: how it answers for an id that is not in use."""

    capability: ClassVar[str] = "core"
    method: ClassVar[str] = "block_table"
    answers: ClassVar[AnswerShape] = "table"
    queries: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True
