"""The room of introspection: the allocator can tell how many have a block, and which are free.

What it tells are its own books, which are judged against the facts. They are asked in every full
look, since a count that went wrong shows in nothing else until the block is let go of.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from kvspec.geometry import DEVICE, Geometry
from kvspec.kernel.law import Law
from kvspec.kernel.names import blocks_text, plural, table_name
from kvspec.kernel.operation import ANY_ERROR, AnswerShape, Operation
from kvspec.kernel.outcome import Answer, Outcome
from kvspec.kernel.perturb import other_asked, other_number
from kvspec.kernel.room import Room, ungrouped
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

AT_ONCE = 8
"""Of so many blocks the count is asked in one look; of the others in later ones."""

LARGE = 64
"""In a pool of more blocks than these, which are free is asked in every so manieth look only."""


@frozen
class RefCount(Operation):
    """`ref_count(block)`: in how many entries of the tables on the device the block is."""

    capability: ClassVar[str] = "introspection"
    method: ClassVar[str] = "ref_count"
    answers: ClassVar[AnswerShape] = "number"
    queries: ClassVar[bool] = True

    block: int

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The block."""
        return (self.block,), {}

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """There is no such block; nobody asks for one, since no error is fixed for it."""
        return frozenset() if self.block in state.blocks() else frozenset({ANY_ERROR})

    def value(self, state: State, spec: "Specification") -> str:
        """Leases and caches are not counted."""
        return str(len(state.at().users.get(self.block, ())))

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """The one right answer."""
        yield spec.result(state, self, Outcome(Answer("done", value=self.value(state, spec))))


@frozen
class FreeBlocks(Operation):
    """`free_blocks()`: the ids that the count of free blocks counts."""

    capability: ClassVar[str] = "introspection"
    method: ClassVar[str] = "free_blocks"
    answers: ClassVar[AnswerShape] = "blocks"
    queries: ClassVar[bool] = True

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """None."""
        return (), {}

    def value(self, state: State, spec: "Specification") -> str:
        """What nobody pins, where that is all that may be said."""
        least, most = _surely_free(state, spec), _perhaps_free(state, spec)
        return " ".join(map(str, sorted(least))) if least == most else ""

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """All that is free; where the contract leaves out what is cached, all but that."""
        least = _surely_free(state, spec)
        yield spec.result(
            state, self, Outcome(Answer("done", value=" ".join(map(str, sorted(least)))))
        )


def _surely_free(state: State, spec: "Specification") -> frozenset[int]:
    """The blocks that must be among the free ones."""
    free = frozenset(state.blocks()) - state.at().held
    return free if spec.contract.free_counts_cached else free - state.at().idle


def _perhaps_free(state: State, spec: "Specification") -> frozenset[int]:
    """The blocks that may be among them: not what is surely cached, where that is left out."""
    free = frozenset(state.blocks()) - state.at().held
    return free if spec.contract.free_counts_cached else free - state.at().certain


def _queries(state: State, spec: "Specification") -> Sequence[Operation]:
    """What is free, and the counts of some blocks: of shared ones, and of others in turn."""
    blocks, users = state.blocks(), state.at().users
    shared = sorted(block for block in users if len(users[block]) > 1 and block in blocks)
    chosen = _in_turn(shared, state.clock, AT_ONCE)
    chosen += _in_turn(blocks, state.clock, AT_ONCE - len(chosen))
    asked: list[Operation] = [RefCount(block) for block in dict.fromkeys(chosen)]
    if len(blocks) <= LARGE or state.clock % AT_ONCE == 0:
        asked.append(FreeBlocks())
    return asked


def _in_turn(items: Sequence[int], turn: int, most: int) -> list[int]:
    """At most `most` of `items`: each turn goes on where the one before it ended."""
    return [items[(turn * most + k) % len(items)] for k in range(min(most, len(items)))]


# ------------------------------------------------------------------------------ the laws


def _answers(step: Step, kind: type[Operation]) -> Iterator[tuple[Operation, Answer]]:
    """The answers that were given in this step to a kind of query."""
    if isinstance(step.operation, kind) and step.done:
        yield step.operation, step.answer
    for asked in step.seen.asked:
        if isinstance(asked.query, kind):
            yield asked.query, asked.answer


def _counts_told(step: Step) -> bool:
    return any(True for _ in _answers(step, RefCount))


def _table_counts(step: Step) -> str | None:
    users = step.after.at().users
    for query, answer in _answers(step, RefCount):
        assert isinstance(query, RefCount)  # only those were asked for
        tables = users.get(query.block, ())
        if answer.number != len(tables) or not answer.value.isdecimal():
            names = " and ".join(table_name(table) for table in dict.fromkeys(tables))
            where = f"in the table of {names}" if tables else "in no table"
            return (
                f"block {query.block} is {where}, so its count is {len(tables)}; "
                f"ref_count({query.block}) says {answer.value}."
            )
    return None


def _set_told(step: Step) -> bool:
    return any(True for _ in _answers(step, FreeBlocks))


def _free_set(step: Step) -> str | None:
    state, spec = step.after, step.spec
    least, most = _surely_free(state, spec), _perhaps_free(state, spec)
    for _, answer in _answers(step, FreeBlocks):
        told = set(answer.blocks)
        if least - told:
            return (
                f"{blocks_text(least - told)} {_is(least - told)} in no table and not in flight, "
                "and not in free_blocks(): leaked."
            )
        if told - most:
            return (
                f"{blocks_text(told - most)} {_is(told - most)} in free_blocks(), and "
                f"{_why_not_free(step, told - most)}."
            )
        free = step.seen.free.get(DEVICE)
        if free is not None and free != len(told) and free in spec.free_counts(state):
            return (
                f"free_blocks() has {plural(len(told), 'block')}, "
                f"and num_free_blocks() says {free}."
            )
    return None


def _is(blocks: set[int] | frozenset[int]) -> str:
    return "is" if len(blocks) == 1 else "are"


def _why_not_free(step: Step, blocks: set[int] | frozenset[int]) -> str:
    at = step.after.at()
    block = min(blocks)
    if block in at.users:
        return f"block {block} is in the table of {table_name(at.users[block][0])}"
    if block in at.pins:
        return f"block {block} is in flight"
    return f"block {block} is cached, which the contract does not count as free"


def _come_and_go(geometry: Geometry) -> tuple[Call, ...]:
    """Two sequences come, one grows, and both go."""
    size = geometry.block_size
    return (
        call("allocate", seq=0, num_tokens=1),
        call("allocate", seq=1, num_tokens=size),
        call("append", seq=0, num_tokens=size),
        call("free", seq=1),
        call("free", seq=0),
    )


LAWS = (
    Law(
        "table-counts",
        "introspection",
        "The count of a block is the number of entries in live tables that have it; neither "
        "leases nor caches are counted.",
        "Wenyueh/MinivLLM#84, Avarok-Cybersecurity/atlas#373",
        _counts_told,
        _table_counts,
        (other_asked, other_number),
        _come_and_go,
    ),
    Law(
        "free-set",
        "introspection",
        "The free blocks that the allocator names are those that nobody has, and as many as it "
        "counts.",
        "vllm-project/vllm#42571",
        _set_told,
        _free_set,
        (other_asked,),
        _come_and_go,
    ),
)


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    yield FreeBlocks()
    yield from (RefCount(block) for block in state.blocks())


ROOM = Room(
    capability="introspection",
    methods=("ref_count", "free_blocks"),
    laws=LAWS,
    applies=ungrouped,
    operations=(RefCount, FreeBlocks),
    queries=_queries,
    every=_every,
)
