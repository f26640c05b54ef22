"""The room of stores: the allocator holds real K/V data, and does its own copies.

What is read back is judged by the core, whether it comes from a store or from the suite's
shadow memory; here stands only what a store adds: a write beyond the length.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from kvspec.geometry import Geometry
from kvspec.kernel.generation import live, new_ids
from kvspec.kernel.law import Law, callers_duty
from kvspec.kernel.names import plural, sequence_name
from kvspec.kernel.operation import AnswerShape, Operation, SequenceOperation, Values
from kvspec.kernel.outcome import DONE, Outcome
from kvspec.kernel.perturb import other_answer
from kvspec.kernel.room import Room, ungrouped
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


@frozen
class WriteOutside(SequenceOperation):
    """`write(seq, start, values)` of `num_tokens` rows that do not all lie within the length."""

    capability: ClassVar[str] = "store"
    method: ClassVar[str] = "write"
    answers: ClassVar[AnswerShape] = "nothing"

    start: int
    num_tokens: int

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The id, the position, and rows of zeros."""
        return (self.seq, self.start, Values(self.num_tokens)), {}

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown, or the slots were never reserved."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return frozenset({"UnknownSequence"})
        if self.start < 0 or self.start + self.num_tokens > sequence.length:
            return frozenset({"InvalidLength"})
        return frozenset()

    def sensible(self, state: State) -> bool:
        """Never where it lies within: what a caller writes there is no call of its own."""
        return False

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """There is nothing to choose."""
        yield spec.result(state, self, Outcome(DONE))


def _outside(step: Step) -> bool:
    return isinstance(step.operation, WriteOutside) and bool(step.expected.errors)


def _write_bounds(step: Step) -> str | None:
    operation = step.operation
    assert isinstance(operation, WriteOutside)  # `_outside` has seen to it
    if step.expected.allows(step.answer):
        return None
    sequence = step.before.sequences.get(operation.seq)
    has = plural(sequence.length, "token") if sequence else "no tokens"
    return (
        f"{sequence_name(operation.seq)} has {has}; a write of "
        f"{plural(operation.num_tokens, 'row')} from position {operation.start} must fail with "
        f"{' or '.join(sorted(step.expected.errors))}, but the answer is: {step.answer.kind}."
    )


def _write_beyond(geometry: Geometry) -> tuple[Call, ...]:
    """One row more than was reserved, within the same block and beyond it."""
    return (
        call("allocate", seq=0, num_tokens=1),
        call("write", seq=0, start=1, num_tokens=1),
        call("write", seq=0, start=0, num_tokens=geometry.block_size + 1),
    )


LAWS = (
    Law(
        "write-bounds",
        "store",
        "A write touches only slots that were reserved; any other is an InvalidLength.",
        "vllm-project/vllm#43810, sgl-project/sglang#32477",
        _outside,
        _write_bounds,
        (other_answer,),
        _write_beyond,
        idle=callers_duty,
    ),
)


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    calls: list[Operation] = [WriteOutside(new_ids(state)[0], 0, 1)]
    for seq in live(state)[-1:]:
        length, size = state.sequences[seq].length, spec.geometry.block_size
        calls += [
            WriteOutside(seq, length, 1),
            WriteOutside(seq, max(0, length - 1), 2),
            WriteOutside(seq, 0, length + size),
            WriteOutside(seq, -1, 1),
        ]
    return calls


ROOM = Room(
    capability="store",
    methods=("write", "read"),
    attributes=("width", "dtype"),
    laws=LAWS,
    applies=ungrouped,
    operations=(WriteOutside,),
    wrong=_wrong,
)
