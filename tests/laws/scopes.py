"""Small scopes: specifications, calls, and states that the specification reaches on its own.

No allocator takes part. A state is reached by believing one of the outcomes that the
specification itself says are allowed.
"""

from collections.abc import Hashable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from kvspec.contract import Contract
from kvspec.geometry import Geometry
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import Outcome
from kvspec.kernel.script import Call, call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State, TableOf
from kvspec.rooms import specification
from kvspec.rooms.lease import LeaseOf

T = TypeVar("T")

CONTROL = ("core", "reservation", "admission", "sharing", "lease")
"""All capabilities of an allocator that holds no data."""

UNSHARED = ("core", "reservation", "admission")
"""The capabilities of an allocator whose sequences each lie in one extent."""


def scope(
    num_blocks: int = 3,
    block_size: int = 2,
    *,
    max_tokens: int | None = None,
    capabilities: tuple[str, ...] = CONTROL,
    **contract: Any,
) -> Specification:
    """The specification of a small pool under the strict contract, but for the fields given."""
    geometry = Geometry(num_blocks, block_size, max_tokens=max_tokens)
    return specification(geometry, Contract(**contract), capabilities)


# ------------------------------------------------------------------------------ calls


def allocate(seq: int, num_tokens: Any, limit: Any = None) -> Call:
    """`allocate(seq, num_tokens, limit=limit)`."""
    return call("allocate", seq=seq, num_tokens=num_tokens, limit=limit)


def append(seq: int, num_tokens: Any) -> Call:
    """`append(seq, num_tokens)`."""
    return call("append", seq=seq, num_tokens=num_tokens)


def free(seq: int) -> Call:
    """`free(seq)`."""
    return call("free", seq=seq)


def show(seq: int) -> Call:
    """`block_table(seq)`."""
    return call("block_table", seq=seq)


def can_allocate(num_tokens: Any) -> Call:
    """`can_allocate(num_tokens)`."""
    return call("can_allocate", num_tokens=num_tokens)


def fork(parent: int, child: int) -> Call:
    """`fork(parent, child)`."""
    return call("fork", parent=parent, child=child)


def begin(seq: int, lease: int) -> Call:
    """`begin_transfer(seq)`, whose answer is kept as `lease`."""
    return call("begin_transfer", seq=seq, lease=lease)


def end(lease: int) -> Call:
    """`end_transfer(lease)`."""
    return call("end_transfer", lease=lease)


def write(seq: int, start: int, num_tokens: int) -> Call:
    """`write(seq, start, rows)`."""
    return call("write", seq=seq, start=start, num_tokens=num_tokens)


def told(a_call: Call) -> str:
    """A call as a test's id: `allocate(0,3)`."""
    fields = [str(value) for value in a_call.fields.values() if value is not None]
    return f"{a_call.method}({','.join(fields)})"


def every_call(spec: Specification, state: State) -> Iterator[Operation]:
    """Every right call that makes a difference in so small a pool, and some wrong ones.

    Lengths up to one token more than the pool has, limits up to one token more than the length,
    at most two sequences and one open lease.
    """
    most = spec.geometry.capacity + 1
    claimed = {room.capability for room in spec.rooms}
    live = tuple(state.sequences)
    calls: list[Call] = []
    for seq in [seq for seq in (0, 1) if seq not in live][:1]:
        calls += [allocate(seq, n) for n in range(most + 1)]
        if "reservation" in claimed:
            calls += [allocate(seq, n, n + 1) for n in range(most + 1)]
        if "sharing" in claimed:
            calls += [fork(parent, seq) for parent in live]
    for seq in live:
        calls += [append(seq, n) for n in range(most + 1)] + [free(seq), show(seq)]
    if "admission" in claimed:
        calls += [can_allocate(n) for n in range(most + 1)]
    if "lease" in claimed:
        facts: Any = state.slices["lease"]
        if not facts.open:
            lease = 1 + max((*facts.open, *facts.ended), default=-1)
            calls += [begin(seq, lease) for seq in live]
        calls += [end(lease) for lease in facts.open]
    yield from (spec.operation(one) for one in calls)
    if spec.contract.misuse == "raises":
        for room in spec.rooms:
            yield from room.wrong(state, spec)


# ------------------------------------------------------------------------------ states


def reached(spec: Specification, *calls: Call) -> State:
    """The state after `calls`, each answered by the first outcome that is allowed."""
    state = spec.initial()
    for one in calls:
        operation = spec.operation(one)
        outcome = next(spec.choices(state, operation))
        state = spec.believe(state, operation, outcome).after
    return state


def alike(state: State) -> Hashable:
    """What two states have in common that differ only in names, in contents, and in what is over.

    Blocks are named in the order of their first mention. Over are what was refused last and
    the leases that ended.
    """
    names: dict[int | None, int] = {}
    facts: Any = state.slices["lease"]

    def named(entries: Sequence[int | None]) -> Hashable:
        return tuple(names.setdefault(block, len(names)) for block in entries)

    return (
        tuple(
            (seq, past.allocated, past.limit, past.length, named(state.table(seq)))
            for seq, past in sorted(state.sequences.items())
        ),
        tuple(named(state.holds[LeaseOf(lease)]) for lease in facts.open),
    )


def canonical(spec: Specification, state: State, outcome: Outcome) -> Hashable:
    """`outcome` up to a permutation of the blocks that were free in `state`.

    Those are named in the order of their first mention, in the tables and then in the copies;
    the copies are sorted, since the order of copies that do not feed each other is free too.
    Where placement matters no free block is as good as another, and each keeps its name.
    """
    anywhere = spec.contract.placement == "anywhere"
    unheld = set(spec.free_blocks(state)) if anywhere else set()
    names: dict[int | None, int] = {}

    def named(block: int | None) -> tuple[bool, int | None]:
        if block in unheld:
            return (True, names.setdefault(block, len(names)))
        return (False, block)

    seen = outcome.observation
    tables = [(seq, [named(block) for block in seen.tables[seq]]) for seq in sorted(seen.tables)]
    copies = [(named(source), named(to)) for source, to in outcome.answer.copies]
    return repr((outcome.answer.kind, outcome.answer.value, tables, sorted(copies), seen.free))


def tables_of(state: State) -> dict[int, tuple[int | None, ...]]:
    """The believed tables, by sequence."""
    return {h.seq: entries for h, entries in state.holds.items() if isinstance(h, TableOf)}


class RandomChooser:
    """A chooser that draws from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        """One of `near` about as often as one of the range."""
        index = self.random.randrange(len(near) + high - low + 1)
        return near[index] if index < len(near) else low + index - len(near)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, each as likely."""
        return items[self.random.randrange(len(items))]

    def operation(self, spec: Specification, state: State) -> Operation:
        """One of the operations that the rooms propose."""
        possible = [
            proposal
            for proposal in spec.proposals()
            for _ in range(proposal.weight)
            if proposal.possible(state, spec)
        ]
        return self.pick(possible).draw(state, spec, self)
