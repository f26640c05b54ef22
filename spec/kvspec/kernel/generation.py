"""What rooms draw their proposals from: ids, and lengths near block boundaries.

Sequences are addressed by an index into the believed live set, small pools make refusals
common, and ids that were in use before come back.
"""

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any

from kvspec.contract import Contract
from kvspec.geometry import Geometry
from kvspec.kernel.chooser import Chooser
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

ODD_LENGTHS: tuple[Any, ...] = (-1, 1.5, "2", None)


def new_ids(state: State) -> tuple[int, ...]:
    """Some ids that are not in use, an id that was in use before among the first."""
    low = [seq for seq in range(MANY_LIVE + 2) if seq not in state.sequences][:2]
    return (*low, *(() if LAST_ID in state.sequences else (LAST_ID,)))


def live(state: State) -> Items[int]:
    """The sequences on the device, oldest first: those that most calls are about."""
    return tuple(seq for seq, sequence in state.sequences.items() if sequence.resident)


def some_live(state: State, spec: "Specification") -> bool:
    """Whether there is a sequence on the device to act on."""
    return any(sequence.resident for sequence in state.sequences.values())


def room_for_another(state: State, spec: "Specification") -> bool:
    """Whether one more sequence is worth trying."""
    large = spec.geometry.num_blocks >= LARGE_POOL
    return len(state.sequences) < (MANY_LIVE if large else MOST_LIVE)


def length_near_boundary(
    spec: "Specification", state: State, chooser: Chooser, length: int, bounds: Items[int | None]
) -> int:
    """Tokens to add to `length`: near block boundaries, an exact fit, and beyond each bound.

    Where misuse is the caller's duty, not beyond the bounds.
    """
    size, available = spec.geometry.block_size, spec.available(state)
    spare = -length % size
    fit = available * size + spare
    bound = min((b - length for b in bounds if b is not None), default=fit + size + 1)
    # Small steps leave room for more to happen. So only a part of the draws is for the edges of
    # what is free: the exact fit, one more, which is refused, and one block less, which is the
    # fit of a call that also needs a copy; and for the edges of the bounds.
    if chooser.pick((False, False, True)):
        most = bound + (spec.contract.misuse == "raises")
        edges = (fit - size, fit, fit + 1, bound, most)
        return chooser.pick([n for n in edges if 1 <= n <= most] or [0])
    near = [n for n in (1, spare, spare + 1, spare + size) if 1 <= n <= bound]
    return chooser.integer(0, max(0, min(bound, size + 1)), near=near)


def geometry(chooser: Chooser, contract: Contract, rooms: Items["Room"]) -> Geometry:
    """A small geometry that the contract can be built with, and of interest to the rooms."""
    allowed = contract.geometries
    sizes = allowed.block_sizes or (2, 1, 3, 4)
    low = allowed.min_blocks
    most = allowed.max_blocks or max(low, 12)
    counts = [n for n in (6, 4, 8, 12, 3, 5, 2, 1) if low <= n <= most] or [low]
    num_blocks, block_size = chooser.pick(counts), chooser.pick(sizes)
    limits: list[int | None] = []
    if allowed.max_tokens != "required":
        limits += [None, None, None]
    if allowed.max_tokens != "none":
        limits += [max(1, num_blocks * block_size // 2), block_size + 1]
    drawn = Geometry(num_blocks, block_size, max_tokens=chooser.pick(limits))
    for room in rooms:
        drawn = room.shaped(drawn, chooser)
    return drawn


Mix = tuple[tuple["Proposal", int], ...]
"""Proposals with their weights in one episode."""


def mix(chooser: Chooser, spec: "Specification") -> Mix:
    """A mix of what may be tried in one episode.

    Some kinds are left out and some come more often, since much that goes wrong does so when
    one thing is never done, or done again and again (Groce et al., "Swarm testing", ISSTA
    2012). The first proposal, without which nothing happens, is never left out.
    """
    first, *others = spec.proposals()
    factors = ((p, chooser.pick((1, 1, 1, 0, 3))) for p in others)
    return ((first, first.weight), *((p, p.weight * factor) for p, factor in factors if factor))


def operation(chooser: Chooser, mix: Mix, state: State, spec: "Specification") -> Operation:
    """The next operation: one of the mix that is possible now, or anything that is."""
    possible = [p for p, weight in mix if p.possible(state, spec) for _ in range(weight)]
    if not possible:
        possible = [p for p in spec.proposals() if p.possible(state, spec)]
    return chooser.pick(possible).draw(state, spec, chooser)
