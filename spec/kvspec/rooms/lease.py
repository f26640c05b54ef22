"""The room of leases: blocks in use by something in flight are not reused until it ends.

A lease holds the blocks that the sequence had when it began, and pins them. Nothing else
need be said of `free`: it removes table entries, and the lease's hold still pins.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, field, frozen

from kvspec.geometry import Geometry, Place
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Event
from kvspec.kernel.generation import live, new_ids, some_live
from kvspec.kernel.law import Law
from kvspec.kernel.names import blocks_text, plural, table_name
from kvspec.kernel.operation import AnswerShape, Handle, Operation, SequenceOperation
from kvspec.kernel.outcome import DONE, Answer, Outcome
from kvspec.kernel.perturb import other_count, other_table
from kvspec.kernel.room import Names, Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import Entries, Holder, State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

MOST_OPEN_IN_SCOPE = 2
"""In a small scope, two leases are open at most."""

MOST_OPEN = 3
"""Two leases on one block, and one on another, show every order of ending."""


@frozen(cache_hash=True)
class LeaseOf(Holder):
    """A lease: it holds and pins, and is no user."""

    lease: int


@frozen
class LeaseBegun(Event):
    """A lease began on the blocks that `seq` has now."""

    lease: int
    seq: int


@frozen
class LeaseEnded(Event):
    """A lease ended."""

    lease: int


@frozen
class Leases:
    """The facts of the room: which leases are open, and which have ended."""

    open: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()


def _leases(state: State) -> Leases:
    slice_ = state.slices["lease"]
    assert isinstance(slice_, Leases)
    return slice_


def _begun(state: State, event: LeaseBegun, spec: "Specification") -> State:
    facts = evolve(_leases(state), open=(*_leases(state).open, event.lease))
    held: dict[Place, Entries] = {}
    for table in state.homes(event.seq):
        held[table.place] = held.get(table.place, ()) + state.entries(table)
    for place, entries in held.items():
        state = state.holding(LeaseOf(event.lease, place=place), entries)
    return state.with_slice("lease", facts)


def _ended(state: State, event: LeaseEnded, spec: "Specification") -> State:
    facts = Leases(
        open=tuple(other for other in _leases(state).open if other != event.lease),
        ended=(*_leases(state).ended, event.lease),
    )
    gone = [h for h in state.holds if isinstance(h, LeaseOf) and h.lease == event.lease]
    return state.with_slice("lease", facts).releasing(gone)


# ------------------------------------------------------------------------------ operations


@frozen
class BeginTransfer(SequenceOperation):
    """`begin_transfer(seq)`: the opaque answer is kept under the name `lease`."""

    capability: ClassVar[str] = "lease"
    method: ClassVar[str] = "begin_transfer"
    answers: ClassVar[AnswerShape] = "handle"

    lease: int = field()

    @property
    def handle(self) -> int | None:
        """The lease."""
        return self.lease

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The lease begins, on the table as it is seen after the call."""
        yield LeaseBegun(self.lease, self.seq)


@frozen
class EndTransfer(Operation):
    """`end_transfer(lease)`; a lease that was never begun, or has ended, is an error."""

    capability: ClassVar[str] = "lease"
    method: ClassVar[str] = "end_transfer"

    lease: int

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The opaque value that `begin_transfer` gave."""
        return (Handle(self.lease),), {}

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The lease is not open."""
        is_open = self.lease in _leases(state).open
        return frozenset() if is_open else frozenset({"UnknownLease"})

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The lease ends."""
        yield LeaseEnded(self.lease)

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """There is nothing to choose."""
        yield spec.result(state, self, Outcome(DONE))


# ------------------------------------------------------------------------------ the law


def _pinned(state: State, block: int) -> tuple[Holder, ...]:
    """What pins a device block, beside tables."""
    return state.at(state.place_of("device", block)).pins.get(block, ())


def _in_flight(step: Step) -> set[int]:
    """The blocks that were pinned by a lease before the step and still are."""
    return {
        block
        for place in dict.fromkeys(step.before.places)
        for block in step.before.at(place).pins.keys() & step.after.at(place).pins.keys()
    }


def _something_in_flight(step: Step) -> bool:
    return bool(_leases(step.before).open or _leases(step.after).open) and (
        bool(_in_flight(step)) or any(step.after.at(p).pinned_only for p in step.after.places)
    )


def _no_reuse(step: Step) -> str | None:
    pinned = _in_flight(step)
    for table, block in step.entered:
        if block in pinned and table.place.tier == "device":
            return (
                f"block {block} was handed to {table_name(table)} while it is in flight "
                f"under {_holders_text(step, block)}."
            )
    for copy in step.copies:
        if copy.to.tier == "device" and copy.destination in pinned:
            return (
                f"block {copy.source} was copied over block {copy.destination} while that is "
                f"in flight under {_holders_text(step, copy.destination)}."
            )
    for place, free in step.seen.free.items():
        left, expected = _let_go_in_flight(step, place), step.spec.free_counts(step.after, place)
        if 0 < free - expected[-1] <= len(left):
            return (
                f"{blocks_text(left)} {'is' if len(left) == 1 else 'are'} in flight, though in no "
                f"table, so {plural(expected[-1], 'block')} can be free; the allocator says {free}."
            )
    return None


def _let_go_in_flight(step: Step, place: Place) -> set[int]:
    """The blocks that a table or a lease let go of in this step, and that a lease still pins.

    Only of these does an excess say that the lease was forgotten: any other has another cause.
    """
    before, after = step.before.at(place), step.after.at(place)
    return {
        block
        for block in after.pinned_only
        if len(before.users.get(block, ())) + len(before.pins.get(block, ()))
        > len(after.pins[block])
    }


def _holders_text(step: Step, block: int) -> str:
    return " and ".join(_holder_text(holder) for holder in _pinned(step.after, block))


def _holder_text(holder: Holder) -> str:
    return f"lease #{holder.lease}" if isinstance(holder, LeaseOf) else str(holder)


def _free_in_flight(geometry: Geometry) -> tuple[Call, ...]:
    """Two leases on one sequence, which goes; its blocks are free only when both have ended."""
    return (
        call("allocate", seq=0, num_tokens=geometry.block_size),
        call("begin_transfer", seq=0, lease=0),
        call("begin_transfer", seq=0, lease=1),
        call("free", seq=0),
        call("allocate", seq=1, num_tokens=1),
        call("end_transfer", lease=0),
        call("end_transfer", lease=1),
        call("allocate", seq=2, num_tokens=1),
    )


LAWS = (
    Law(
        "in-flight",
        "lease",
        "Until a lease ends, its blocks are neither handed out, nor copied over, nor counted as "
        "free.",
        "sgl-project/sglang#35049, vllm-project/vllm#46278",
        _something_in_flight,
        _no_reuse,
        (other_count, other_table),
        _free_in_flight,
    ),
)


# ------------------------------------------------------------------------------ proposals


def _next_lease(state: State) -> int:
    facts = _leases(state)
    return 1 + max((*facts.open, *facts.ended), default=-1)


def _can_begin(state: State, spec: "Specification") -> bool:
    return some_live(state, spec) and len(_leases(state).open) < MOST_OPEN


def _begin(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    # Blocks that others have too, or whose contents are cached, are let go of in more ways.
    occupancy, seqs = state.at(), live(state)
    known = [
        seq
        for seq in seqs
        for block in state.table(seq)
        if block is not None
        and (block in occupancy.keeps or len(occupancy.users.get(block, ())) > 1)
    ]
    return BeginTransfer(chooser.pick((*seqs, *known * 2)), _next_lease(state))


def _cached(state: State) -> list[int]:
    """The sequences on the device of which several blocks are cached, and none is leased."""
    occupancy = state.at()
    return [
        s
        for s in live(state)
        if sum(block in occupancy.keeps for block in state.table(s)) > 1
        and occupancy.pins.keys().isdisjoint(state.table(s))
    ]


def _can_begin_cached(state: State, spec: "Specification") -> bool:
    return bool(state.once(_cached)) and len(_leases(state).open) < MOST_OPEN


def _begin_cached(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Lease what is cached: in which order its blocks are let go of shows when they are needed."""
    return BeginTransfer(chooser.pick(state.once(_cached)), _next_lease(state))


def _can_end(state: State, spec: "Specification") -> bool:
    return bool(_leases(state).open)


def _end(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return EndTransfer(chooser.pick(_leases(state).open))


def _leased(state: State) -> list[int]:
    """The sequences on the device of which a lease holds a block."""
    pins = state.at().pins
    return [s for s in live(state) if any(block in pins for block in state.table(s))]


def _can_leave(state: State, spec: "Specification") -> bool:
    return bool(_leased(state))


def _leave(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Free a sequence while it is in flight: its lease is then the last to let go."""
    leased, keeps = _leased(state), state.at().keeps
    cached = [s for s in leased if not keeps.keys().isdisjoint(state.table(s))]
    return spec.operation(call("free", seq=chooser.pick((*leased, *cached * 2))))


def _last_held(state: State) -> list[int]:
    """The open leases with a block that is in no table any more."""
    alone = state.at().pinned_only
    leases = (holder for holder in state.holds if isinstance(holder, LeaseOf))
    return [one.lease for one in leases if not alone.isdisjoint(state.holds[one])]


def _can_land(state: State, spec: "Specification") -> bool:
    return bool(_last_held(state))


def _land(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return EndTransfer(chooser.pick(_last_held(state)))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    never = _next_lease(state)
    calls: list[Operation] = [EndTransfer(never), BeginTransfer(new_ids(state)[0], never)]
    return calls + [EndTransfer(lease) for lease in _leases(state).ended[-1:]]


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    opened, lease = _leases(state).open, _next_lease(state)
    if len(opened) < MOST_OPEN_IN_SCOPE:
        yield from (BeginTransfer(seq, lease) for seq in state.sequences)
    yield from (EndTransfer(lease) for lease in opened)


def _matters(state: State, names: Names) -> Hashable:
    # Which leases are open shows in what is held, unless they hold nothing; that one has ended
    # is what makes it a wrong call to end it again.
    return len(_leases(state).open), bool(_leases(state).ended)


ROOM = Room(
    capability="lease",
    methods=("begin_transfer", "end_transfer"),
    laws=LAWS,
    operations=(BeginTransfer, EndTransfer),
    facts=Leases(),
    reactions={LeaseBegun: _begun, LeaseEnded: _ended},
    proposals=(
        Proposal("begin_transfer", _can_begin, _begin, weight=3),
        Proposal("begin_cached", _can_begin_cached, _begin_cached, weight=24),
        Proposal("end_transfer", _can_end, _end),
        Proposal("leave_in_flight", _can_leave, _leave, weight=10),
        Proposal("land", _can_land, _land, urgent=True),
    ),
    weight=3,
    wrong=_wrong,
    every=_every,
    matters=_matters,
)
