"""What rooms draw their proposals from: ids, and lengths near block boundaries.

Sequences are addressed by an index into the believed live set, small pools make refusals
common, and ids that were in use before come back.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import islice
from typing import TYPE_CHECKING, Any

from attrs import frozen

from kvspec.contract import Contract
from kvspec.geometry import Geometry, Place, blocks_for
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.derived import derived
from kvspec.kernel.operation import Operation
from kvspec.kernel.state import State

if TYPE_CHECKING:
    from kvspec.kernel.room import Proposal, Room
    from kvspec.kernel.specification import Specification

MOST_LIVE = 4
"""In a small pool more sequences at once show nothing new, and leave no room to grow."""

MANY_LIVE = 12
"""In a large pool some allocators' own tables must grow."""

LARGE_POOL = 12
"""Blocks from which on a pool is large."""

LAST_ID = 2**31 - 1
"""The largest sequence id that a caller may choose."""

HUGE = 10**12
"""A length that no pool holds."""

FOCUS = 4
"""So many capabilities beside the core are tried together in one episode."""

WRONG_CALL = "wrong_call"
"""The name of the proposal of any room's wrong calls."""

ODD_LENGTHS: tuple[Any, ...] = (-1, 1.5, "2", None)


def new_ids(state: State) -> tuple[int, ...]:
    """Some ids that are not in use, an id that was in use before among the first."""
    used = state.sequences
    low = islice((seq for seq in range(MANY_LIVE + 2) if seq not in used), 2)
    return (*low, LAST_ID) if LAST_ID not in used else tuple(low)


def live(state: State) -> tuple[int, ...]:
    """The sequences on the device, oldest first: those that most calls are about."""
    return state.live


def some_live(state: State, spec: "Specification") -> bool:
    """Whether there is a sequence on the device to act on."""
    return bool(state.live)


def room_for_another(state: State, spec: "Specification") -> bool:
    """Whether one more sequence is worth trying."""
    large = spec.geometry.num_blocks >= LARGE_POOL
    return len(state.sequences) < (MANY_LIVE if large else MOST_LIVE)


def fit(state: State, spec: "Specification", length: int, place: Place) -> int:
    """How many tokens may be added to `length` before the blocks of `place` do not suffice.

    In blocks on demand, in all groups that take from it, and with no copy.
    """
    available = spec.available(state, place)
    if len(state.places) == 1:
        size = spec.layout[0].block_size
        return available * size + -length % size
    sizes = [
        group.block_size
        for group, its in zip(spec.layout, state.places, strict=True)
        if its == place
    ]
    if len(sizes) == 1:
        return available * sizes[0] + -length % sizes[0]
    held, tokens = sum(blocks_for(length, size) for size in sizes), 0
    while sum(blocks_for(length + tokens + 1, size) for size in sizes) - held <= available:
        tokens += 1
    return tokens


def length_near_boundary(
    spec: "Specification", state: State, chooser: Chooser, length: int, bounds: Items[int | None]
) -> int:
    """Tokens to add to `length`: near block boundaries, an exact fit, and beyond each bound.

    Where misuse is the caller's duty, not beyond the bounds.
    """
    group = chooser.pick(spec.groups)
    size, place = spec.layout[group].block_size, state.places[group]
    spare, most_fits = -length % size, fit(state, spec, length, place)
    bound = min([b - length for b in bounds if b is not None], default=most_fits + size + 1)
    # Small steps leave room for more to happen. So only a part of the draws is for the edges of
    # what is free: the exact fit, one more, which is refused, and one block less, which is the
    # fit of a call that also needs a copy; and for the edges of the bounds.
    if chooser.pick((False, False, False, True)):
        most = bound + (spec.contract.misuse == "raises")
        edges = (most_fits - size, most_fits, most_fits + 1, bound, most)
        return chooser.pick([n for n in dict.fromkeys(edges) if 1 <= n <= most] or [0])
    near = [n for n in (1, spare, spare + 1, spare + size) if 1 <= n <= bound]
    return chooser.integer(0, max(0, min(bound, size + 1)), near=near)


def longest(spec: "Specification") -> int:
    """The greatest length that is worth trying in a small scope: the bound, or just too much."""
    return spec.geometry.max_tokens or spec.geometry.capacity + 1


def geometry(chooser: Chooser, contract: Contract, rooms: Items["Room"]) -> Geometry:
    """A small geometry that the contract can be built with, and of interest to the rooms."""
    allowed = contract.geometries
    sizes = allowed.block_sizes or (2, 3, 4, 2, 4, 1)
    low = allowed.min_blocks
    most = allowed.max_blocks or max(low, 12)
    # In the smallest pools two things hardly ever go on at once.
    counts = [n for n in (6, 8, 4, 12, 10, 7, 5, 3, 2, 6, 8, 4, 5, 3, 1) if low <= n <= most]
    counts = counts or [low]
    num_blocks, block_size = chooser.pick(counts), chooser.pick(sizes)
    limits: list[int | None] = []
    if allowed.max_tokens != "required":
        limits += [None, None, None]
    if allowed.max_tokens != "none":
        limits += [max(1, num_blocks * block_size // 2), block_size + 1]
    drawn = Geometry(num_blocks, block_size, max_tokens=chooser.pick(limits))
    for room in rooms:
        drawn = room.shaped(drawn, allowed, chooser)
    return drawn


@frozen(eq=False, slots=False)
class Mix:
    """What may be tried in one episode: proposals with their weights."""

    proposals: tuple[tuple["Proposal", int], ...]

    @derived
    def conditions(self) -> tuple[Callable[[State, "Specification"], bool], ...]:
        """Those under which one of them is possible; many share theirs."""
        return tuple(dict.fromkeys(proposal.possible for proposal, _ in self.proposals))

    def possible_in(self, state: State, spec: "Specification") -> Items["Proposal"]:
        """Those that are possible in a state, each as often as its weight says."""
        holding = tuple([condition(state, spec) for condition in self.conditions])
        known = self._known.get(holding)
        if known is None:
            holds = dict(zip(self.conditions, holding, strict=True))
            known = self._known[holding] = tuple(
                proposal
                for proposal, weight in self.proposals
                if holds[proposal.possible]
                for _ in range(weight)
            )
        return known

    @derived
    def _known(self) -> dict[tuple[bool, ...], tuple["Proposal", ...]]:
        return {}


def focus(chooser: Chooser, rooms: Items["Room"]) -> tuple["Room", ...]:
    """The rooms that one episode is about: the core and a few others, or all where there are few.

    What takes three calls of one capability in a row is not found among the calls of ten. Those
    come more often of which most can go wrong, and with each come those that it needs.
    """
    others = [r for r in rooms if r.proposals and r.capability != "core" for _ in range(r.weight)]
    chosen: list[Room] = []
    while others and len(chosen) < FOCUS:
        chosen.append(chooser.pick(others))
        needs = chosen[-1].needs
        others = [r for r in others if r is not chosen[-1] and r.capability not in needs]
    return tuple(room for room in rooms if room not in others)


def mix(chooser: Chooser, spec: "Specification", rooms: Items["Room"]) -> Mix:
    """A mix of what may be tried in one episode that is about `rooms`.

    Some kinds of calls are left out and some come more often, since much that goes wrong does so
    when one thing is never done, or done again and again (Groce et al., "Swarm testing", ISSTA
    2012). The first proposal, without which nothing happens, is never left out.
    """
    first, *_ = spec.proposals()
    found = [(first, chooser.pick((first.weight, 1)))]
    for proposal in spec.proposals(rooms):
        factor = chooser.pick((1, 1, 1, 0, 3) if proposal.name != WRONG_CALL else (1, 1, 0))
        if factor and proposal is not first:
            found.append((proposal, proposal.weight * factor))
    others_together = sum(weight for proposal, weight in found if not proposal.urgent)
    return Mix(tuple((p, others_together if p.urgent else weight) for p, weight in found))


def operation(chooser: Chooser, mix: Mix, state: State, spec: "Specification") -> Operation:
    """The next operation: one of the mix that is possible now, or anything that is."""
    possible = state.once(mix.possible_in, spec)
    if not possible:
        possible = [p for p in spec.proposals() if p.possible(state, spec)]
    return chooser.pick(possible).draw(state, spec, chooser)
