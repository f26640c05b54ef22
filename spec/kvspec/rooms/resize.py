"""The room of resizing: the pool gets more blocks, or gives up some that nobody has.

Which blocks there are is a fact of the kernel; what was cached in those that have gone is the
business of whoever kept it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from kvspec.geometry import DEVICE, Geometry
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Event, Resized
from kvspec.kernel.generation import ODD_LENGTHS
from kvspec.kernel.law import Law
from kvspec.kernel.names import are, blocks_text, entries_text, plural, table_name
from kvspec.kernel.operation import Expected, Operation, length_errors, whole
from kvspec.kernel.outcome import DONE, Answer, Outcome
from kvspec.kernel.perturb import other_answer, other_count, other_table
from kvspec.kernel.room import Proposal, Room, ungrouped
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

MOST_TIMES = 2
"""A pool is never made more than so many times as large as it was built."""


@frozen
class Resize(Operation):
    """`resize(num_blocks)`: the ids are so many now, from the first on."""

    capability: ClassVar[str] = "resize"
    method: ClassVar[str] = "resize"

    num_blocks: Any

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The number of blocks."""
        return (self.num_blocks,), {}

    def blocks(self, state: State) -> range:
        """The ids that there are after a success."""
        start = state.blocks().start
        return range(start, start + (whole(self.num_blocks) or 0))

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The number is none, or less than one."""
        return length_errors(self.num_blocks) or length_errors((whole(self.num_blocks) or 0) - 1)

    def beyond(self, state: State, spec: "Specification") -> frozenset[int]:
        """The blocks in use that would be gone and cannot be moved."""
        at = state.at()
        stuck = frozenset(at.pins) if spec.contract.relocates else at.held
        blocks = self.blocks(state)  # perhaps a great many: none is gone through
        return frozenset(block for block in stuck if block not in blocks)

    def verdict(self, state: State, spec: "Specification") -> Expected:
        """It succeeds unless something in use would be gone, or too few blocks would be left."""
        beyond, held = self.beyond(state, spec), len(state.at().held)
        size = len(self.blocks(state))
        done = not beyond and held <= size
        return Expected(done=done, refused=not done, fresh=held, available=size - len(beyond))

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """There are other blocks than before."""
        yield Resized(DEVICE, self.blocks(state))

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """There is nothing to choose."""
        yield spec.result(state, self, Outcome(DONE))


# ------------------------------------------------------------------------------ the law


def _right_call(step: Step) -> bool:
    if not isinstance(step.operation, Resize) or step.expected.errors or step.expected.injected:
        return False
    return step.answer.kind in ("done", "refused", "error")


def _resize(step: Step) -> str | None:
    operation, spec = step.operation, step.spec
    assert isinstance(operation, Resize)  # `_right_call` has seen to it
    size = len(operation.blocks(step.before))
    if not step.expected.allows(step.answer):
        return _wrong_answer(step, operation, size)
    if not step.done:
        return None
    for table, before, after in step.survivors:
        if after != step.origin(before):
            return (
                f"the pool has {plural(size, 'block')} now, and no table may change; that of "
                f"{table_name(table)} was {entries_text(before)} and is {entries_text(after)}."
            )
        gone = {b for b in after if b is not None and b not in step.after.blocks(table.place)}
        if gone and table.place == DEVICE:
            return (
                f"the pool has {plural(size, 'block')} now, and {table_name(table)} still has "
                f"{blocks_text(gone)}."
            )
    free, expected = step.seen.free.get(DEVICE), spec.free_counts(step.after)
    if free is not None and free not in expected:
        count = f"{expected[0]}" if len(expected) == 1 else f"{expected[0]} to {expected[-1]}"
        return (
            f"the pool has {plural(size, 'block')} now and {len(step.after.at().held)} in use, so "
            f"{count} must be free; the allocator says {free}."
        )
    return None


def _wrong_answer(step: Step, operation: Resize, size: int) -> str:
    state, had = step.before, len(step.before.blocks())
    beyond, held = operation.beyond(state, step.spec), len(state.at().held)
    if size >= had:
        why = "a pool can always grow"
    elif beyond:
        verb = "is" if len(beyond) == 1 else "are"
        why = f"{blocks_text(beyond)} beyond the new end {verb} in use"
    elif held > size:
        why = f"{are(held, 'block')} in use"
    else:
        why = "nothing beyond the new end is in use"
    must = "succeed" if step.expected.done else "be refused"
    said = f"the answer is: {step.answer}"
    return f"from {plural(had, 'block')} to {size}: {why}, so it must {must}, but {said}."


def _grow_and_shrink(geometry: Geometry) -> tuple[Call, ...]:
    """The pool grows, what is new is used, and it cannot shrink until that has gone."""
    blocks, size = geometry.num_blocks, geometry.block_size
    most = geometry.max_tokens or blocks * size
    return (
        call("allocate", seq=0, num_tokens=min(size, most)),
        call("resize", num_blocks=blocks + 1),
        *(call("allocate", seq=seq, num_tokens=1) for seq in range(1, blocks + 1)),
        call("resize", num_blocks=blocks),
        *(call("free", seq=seq) for seq in range(1, blocks + 1)),
        call("resize", num_blocks=blocks),
        call("append", seq=0, num_tokens=1),
        call("free", seq=0),
        call("resize", num_blocks=1),
        call("allocate", seq=0, num_tokens=1),
    )


LAWS = (
    Law(
        "resize",
        "resize",
        "Resizing fails exactly when something in use lies beyond the new end, and changes "
        "nothing but how many blocks there are.",
        "ovg-project/kvcached#364",
        _right_call,
        _resize,
        (other_answer, other_count, other_table),
        _grow_and_shrink,
    ),
)


# ------------------------------------------------------------------------------ proposals


def _sizes(state: State, spec: "Specification") -> list[int]:
    """The sizes that are worth trying: about the last block in use, and about what there is."""
    allowed, blocks = spec.contract.geometries, state.blocks()
    built = spec.geometry.num_blocks
    low = allowed.min_blocks
    high = min(MOST_TIMES * built, allowed.max_blocks or MOST_TIMES * built)
    at = state.at()
    used = 1 + max(at.held, default=blocks.start - 1) - blocks.start
    kept = 1 + max(at.idle, default=blocks.start - 1) - blocks.start
    leased = 1 + max(at.pinned_only, default=blocks.start - 1) - blocks.start
    count = len(blocks)
    near = (
        leased - 1,
        used,
        used - 1,
        count + 1,
        count - 1,
        built,
        kept,
        kept - 1,
        high,
        used + 1,
        low,
        count,
    )
    return [n for n in dict.fromkeys(near) if low <= n <= high]


def _can_resize(state: State, spec: "Specification") -> bool:
    return bool(_sizes(state, spec))


def _draw(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    sizes, at = _sizes(state, spec), state.at()
    # What is in no table is easily overlooked, be it under a lease or cached.
    start = state.blocks().start
    overlooked = [max(blocks) - start for blocks in (at.pinned_only, at.idle) if blocks]
    return Resize(chooser.pick((*sizes, *[n for n in overlooked if n in sizes] * 4)))


def _last_in_flight(state: State) -> int:
    """The size that leaves out the last held block where no table has it; 0 where one does."""
    at, start = state.at(), state.blocks().start
    last = max(at.held, default=-1)
    return last - start if last in at.pinned_only else 0


def _can_cut_off(state: State, spec: "Specification") -> bool:
    return _last_in_flight(state) in _sizes(state, spec)


def _cut_off(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Just what is in flight would be beyond the new end: no table says that it is in use."""
    return Resize(_last_in_flight(state))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    return [Resize(odd) for odd in (0, *ODD_LENGTHS)]


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    yield from (Resize(n) for n in range(1, MOST_TIMES * spec.geometry.num_blocks + 1))


ROOM = Room(
    capability="resize",
    methods=("resize",),
    laws=LAWS,
    applies=ungrouped,
    operations=(Resize,),
    proposals=(
        Proposal("resize", _can_resize, _draw, weight=2),
        Proposal("cut_off", _can_cut_off, _cut_off, weight=8),
    ),
    wrong=_wrong,
    every=_every,
)
