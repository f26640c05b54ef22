"""What rooms draw their proposals from: ids, and lengths near block boundaries.

Sequences are addressed by an index into the believed live set, small pools make refusals
common, and ids that were in use before come back.
"""

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any

from kvspec.contract import Contract
from kvspec.geometry import Geometry
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.state import State

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

MOST_LIVE = 4
"""More sequences at once show nothing new in pools of a few blocks."""

LAST_ID = 2**31 - 1
"""The largest sequence id that a caller may choose."""

HUGE = 10**12
"""A length that no pool holds."""

ODD_LENGTHS: tuple[Any, ...] = (-1, 1.5, "2", None)


def new_ids(state: State) -> tuple[int, ...]:
    """Some ids that are not in use, an id that was in use before among the first."""
    low = [seq for seq in range(MOST_LIVE + 2) if seq not in state.sequences][:2]
    return (*low, *(() if LAST_ID in state.sequences else (LAST_ID,)))


def live(state: State) -> Items[int]:
    """The sequences in use, oldest first."""
    return tuple(state.sequences)


def some_live(state: State, spec: "Specification") -> bool:
    """Whether there is a sequence to act on."""
    return bool(state.sequences)


def room_for_another(state: State, spec: "Specification") -> bool:
    """Whether one more sequence is worth trying."""
    return len(state.sequences) < MOST_LIVE


def length_near_boundary(
    spec: "Specification", state: State, chooser: Chooser, length: int, bounds: Items[int | None]
) -> int:
    """Tokens to add to `length`: near block boundaries, an exact fit, and beyond each bound.

    Where misuse is the caller's duty, not beyond the bounds.
    """
    size, available = spec.geometry.block_size, spec.available(state)
    spare = -length % size
    fit = available * size + spare
    most = fit + size + 1
    over = 0 if spec.contract.misuse == "callers_duty" else 1
    for bound in bounds:
        if bound is not None:
            most = min(most, max(0, bound - length + over))
    edges = [spare, size, spare + size, fit]
    near = [n for edge in edges for n in (edge, edge + 1, edge - 1) if 0 <= n <= most]
    return chooser.integer(0, min(most, 2 * size + 1), near=[min(1, most), *near])


def geometry(chooser: Chooser, contract: Contract) -> Geometry:
    """A small geometry that the contract can be built with."""
    allowed = contract.geometries
    sizes = allowed.block_sizes or (2, 1, 3, 4)
    low = allowed.min_blocks
    most = allowed.max_blocks or max(low, 8)
    counts = [n for n in (3, 1, 2, 4, 5, 8) if low <= n <= most] or [low]
    num_blocks, block_size = chooser.pick(counts), chooser.pick(sizes)
    limits: list[int | None] = []
    if allowed.max_tokens != "required":
        limits += [None, None]
    if allowed.max_tokens != "none":
        limits += [max(1, num_blocks * block_size // 2), block_size + 1]
    return Geometry(num_blocks, block_size, max_tokens=chooser.pick(limits))
