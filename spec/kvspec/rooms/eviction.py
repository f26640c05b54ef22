"""The room of eviction on request: the caller has cached contents given up that nobody uses.

Some engines have a function for it which nothing on their way to new blocks calls, such as
mini-infer's `PrefixCache.evict_lru`; then the call is the caller's, and a refusal is right until it
was made. Where taking blocks evicts, by whatever part of the engine, nobody need ask for it. Which
of the two it is says the contract's `eviction`. The room knows of no cache: what holds blocks and
can be displaced is seen in the state, and `Displaced` says what was given up.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from kvspec.geometry import Geometry
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Displaced, Event
from kvspec.kernel.generation import ODD_LENGTHS
from kvspec.kernel.law import Law
from kvspec.kernel.names import blocks_text, plural, table_name
from kvspec.kernel.operation import AnswerShape, Operation, length_errors
from kvspec.kernel.outcome import Answer, Outcome
from kvspec.kernel.perturb import other_blocks
from kvspec.kernel.room import Proposal, Room, ungrouped
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


@frozen
class Evict(Operation):
    """`evict(num_blocks)`: so many cached blocks that nobody uses are given up, or all there are.

    The answer names them. With a contract that `forgets` it may be any of them, and any number.
    """

    capability: ClassVar[str] = "eviction"
    method: ClassVar[str] = "evict"
    answers: ClassVar[AnswerShape] = "blocks"

    num_blocks: Any

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The number."""
        return (self.num_blocks,), {}

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The number is not one; more than there are is right."""
        return length_errors(self.num_blocks)

    def counts(self, state: State, spec: "Specification") -> range:
        """How many may be given up: what is perhaps no longer cached need not be counted."""
        idle, least = len(state.at().idle), state.at().least_kept
        if spec.contract.forgets:
            return range(idle + 1)
        return range(min(self.num_blocks, least), min(self.num_blocks, idle) + 1)

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """What was in the blocks that are named is cached no more."""
        yield from (Displaced(block) for block in answer.blocks)

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """The first in the order that is promised; else any of them."""
        at = state.at()
        in_order = [block for block in at.keeps if block in at.idle]
        for count in self.counts(state, spec):
            ways = combinations(in_order, count)
            for chosen in [tuple(in_order[:count])] if spec.contract.order == "lru" else ways:
                answer = Answer("done", value=" ".join(map(str, sorted(chosen))))
                yield spec.result(state, self, Outcome(answer))


# ------------------------------------------------------------------------------ the law


def _evicted(step: Step) -> bool:
    return isinstance(step.operation, Evict) and step.done


def _as_asked(step: Step) -> str | None:
    operation, state = step.operation, step.before
    assert isinstance(operation, Evict)  # `_evicted` has seen to it
    named, at = step.answer.blocks, state.at()
    for block in named:
        if block not in at.idle:
            return f"evict says that it gave up block {block}, which {_why_not(state, block)}."
    counts = operation.counts(state, step.spec)
    if len(named) in counts:
        return None
    right = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    which = f" ({blocks_text(named)})" if named else ""
    return (
        f"evict was asked for {plural(operation.num_blocks, 'block')}, and "
        f"{plural(len(at.idle), 'cached block')} had no user, so {right} had to be given up; it "
        f"says that {len(named)} were{which}."
    )


def _why_not(state: State, block: int) -> str:
    at = state.at()
    if block in at.users:
        return f"is in the table of {table_name(at.users[block][0])}"
    return "is in flight" if block in at.pins else "has no cached contents"


def _one_goes(geometry: Geometry) -> tuple[Call, ...]:
    """Two published blocks become idle, one is given up, then all, and then none is left."""
    size = geometry.block_size
    tokens = tuple(i % 2 for i in range(2 * size))
    return (
        call("allocate_prompt", seq=0, tokens=tokens),
        call("mark_written", seq=0, num_tokens=2 * size),
        call("evict", num_blocks=1),
        call("free", seq=0),
        call("evict", num_blocks=1),
        call("lookup", tokens=tokens),
        call("evict", num_blocks=2),
        call("lookup", tokens=tokens),
    )


LAWS = (
    Law(
        "evict",
        "eviction",
        "evict gives up as many cached blocks as it is asked for, or all there are, of those that "
        "nobody uses, and says which.",
        "LMCache/LMCache#3130",
        _evicted,
        _as_asked,
        (other_blocks,),
        _one_goes,
    ),
)


def _worth_asking(state: State, spec: "Specification") -> bool:
    return bool(state.at().keeps)


def _draw(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """One, or all that have no user, or just too many: some are in use."""
    idle = len(state.at().idle)
    return Evict(chooser.integer(0, idle + 2, near=(1, 1, 1, idle, idle + 2, idle + 2)))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    return [Evict(odd) for odd in ODD_LENGTHS]


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    yield from (Evict(count) for count in range(len(state.at().idle) + 2))


ROOM = Room(
    capability="eviction",
    methods=("evict",),
    needs=("prefix",),
    laws=LAWS,
    operations=(Evict,),
    applies=ungrouped,
    proposals=(Proposal("evict", _worth_asking, _draw, weight=6),),
    weight=3,
    wrong=_wrong,
    every=_every,
)
