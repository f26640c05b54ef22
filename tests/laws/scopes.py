"""Small scopes: specifications, calls, and states that the specification reaches on its own.

No allocator takes part. A state is reached by believing one of the outcomes that the
specification itself says are allowed.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from attrs import fields, frozen

from kvspec.contract import Contract
from kvspec.geometry import DEVICE, Geometry, Group, Place
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import Asked, Outcome
from kvspec.kernel.script import Call, call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Entries, Holder, State, TableOf, table_of
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
    num_host_blocks: int = 0,
    window: int | None = None,
    max_tokens: int | None = None,
    groups: Sequence[Group] | None = None,
    capabilities: tuple[str, ...] = CONTROL,
    **contract: Any,
) -> Specification:
    """The specification of a small pool under the strict contract, but for the fields given."""
    geometry = Geometry(
        *(num_blocks, block_size),
        num_host_blocks=num_host_blocks,
        window=window,
        max_tokens=max_tokens,
        groups=groups,
    )
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


def tables_of(state: State) -> dict[TableOf, Entries]:
    """The believed tables."""
    return dict(state.tables())


def tables(by_seq: Mapping[int, Entries], group: int = 0, place: Place = DEVICE) -> dict[Any, Any]:
    """Tables given by sequence, of one group at one place, as an observation has them."""
    return {table_of(seq, group, place): entries for seq, entries in by_seq.items()}


def alike(state: State, also: Callable[[State], Hashable] = lambda state: ()) -> Hashable:
    """What two states have in common that differ only in names, in contents, and in what is over.

    Blocks are named in the order of their first mention, place by place. Over are what was
    refused last and the leases that ended. `also` gives what else matters of the rooms' facts.
    """
    names: dict[tuple[Place, int], int] = {}

    def named(holder: Holder, entries: Entries) -> Hashable:
        return tuple(
            None if block is None else names.setdefault((holder.place, block), len(names))
            for block in entries
        )

    def told_of(holder: Holder) -> Hashable:
        # One lease is as good as another.
        return (holder.place, "a lease" if isinstance(holder, LeaseOf) else repr(holder))

    past = tuple(
        (seq, one.allocated, one.limit, one.length, one.written, one.tier)
        for seq, one in sorted(state.sequences.items())
    )
    shown = tuple(
        (table, named(table, state.entries(table))) for table in sorted(tables_of(state), key=str)
    )
    others = tuple(
        (told_of(holder), named(holder, entries))
        for holder, entries in state.holds.items()
        if not isinstance(holder, TableOf)
    )
    sizes = tuple((place, len(blocks)) for place, blocks in state.pools.items())
    return (past, shown, others, sizes, also(state))


def let_go(state: State, outcome: Outcome) -> set[tuple[Place, int]]:
    """The blocks that nobody has any more, once the tables show what lies before their windows."""
    gone: dict[tuple[Place, int], int] = {}
    for table, entries in outcome.observation.tables.items():
        for old, new in zip(state.entries(table), entries, strict=False):
            if old is not None and new is None:
                gone[table.place, old] = gone.get((table.place, old), 0) + 1
    return {
        (place, block)
        for (place, block), count in gone.items()
        if count == len(state.at(place).users.get(block, ()))
        and block not in state.at(place).pins
        and block not in state.at(place).keeps
    }


def canonical(
    spec: Specification,
    state: State,
    outcome: Outcome,
    tiers: tuple[str, str] = ("device", "device"),
) -> Hashable:
    """`outcome` up to a permutation of the blocks of each place that were free in `state`.

    Those are named in the order of their first mention, in the tables and then in the copies;
    the copies, which are between `tiers`, are sorted, since the order of copies that do not feed
    each other is free too. What a table lets go of before its window in the same call is as free;
    but a free block whose contents somebody keeps is not as good as another, and where placement
    matters none is: these keep their names.
    """
    unheld = let_go(state, outcome)
    for place in state.pools:
        kept = state.at(place).keeps
        unheld |= {(place, b) for b in spec.free_blocks(state, place) if b not in kept}
    if spec.contract.placement != "anywhere":
        unheld = set()
    names: dict[tuple[Place, int], int] = {}

    def named(place: Place, block: int | None) -> tuple[bool, int | None]:
        if block is not None and (place, block) in unheld:
            return (True, names.setdefault((place, block), len(names)))
        return (False, block)

    def of_tier(tier: str, block: int) -> tuple[bool, int | None]:
        return named(state.place_of(tier, block), block)

    seen, answer = outcome.observation, outcome.answer
    shown = [
        (str(table), [named(table.place, block) for block in seen.tables[table]])
        for table in sorted(seen.tables, key=str)
    ]
    copies = [
        (of_tier(tiers[0], c.source), of_tier(tiers[1], c.destination)) for c in answer.copies
    ]

    def settled(block: int) -> tuple[bool, int | None]:
        """The name that a block has by now; those that have none are all alike."""
        at = (state.place_of("device", block), block)
        return (True, names.get(at, -1)) if at in unheld else (False, block)

    def told_of(asked: Asked) -> str:
        query, value = asked.query, asked.answer.value
        given = {f.name: getattr(query, f.name) for f in fields(type(query))}
        if "block" in given:
            given["block"] = settled(given["block"])
        blocks = sorted(settled(int(b)) for b in value.split()) if query.answers == "blocks" else []
        return repr((query.method, given, blocks or value))

    asked = sorted(map(told_of, seen.asked))
    return repr(
        (answer.kind, answer.value, shown, sorted(copies), sorted(seen.free.items()), asked)
    )


@frozen
class _Drawn:
    """A chooser that follows a path of decisions, and then takes the first of each kind."""

    path: list[int]
    widths: list[int]

    def _decide(self, width: int) -> int:
        self.widths.append(width)
        at = len(self.widths) - 1
        if at == len(self.path):
            self.path.append(0)
        return self.path[at]

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        """One of the range: `near` lies in it."""
        return low + self._decide(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self._decide(len(items))]


def every_proposal(spec: Specification, state: State) -> Iterator[Operation]:
    """Every operation that the rooms may propose in `state`, each once."""
    found: dict[str, Operation] = {}
    for proposal in spec.proposals():
        if not proposal.possible(state, spec):
            continue
        path: list[int] = []
        while True:
            chooser = _Drawn(path, [])
            operation = proposal.draw(state, spec, chooser)
            found.setdefault(repr(operation), operation)
            while path and path[-1] + 1 >= chooser.widths[len(path) - 1]:
                path.pop()
            if not path:
                break
            path[-1] += 1
    yield from found.values()


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
