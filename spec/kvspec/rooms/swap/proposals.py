"""What to try in swapping: what is delicate goes, and comes back when there is just room."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvspec.kernel.chooser import Chooser
from kvspec.kernel.generation import live, new_ids, room_for_another, some_live
from kvspec.kernel.operation import Operation
from kvspec.kernel.room import Proposal
from kvspec.kernel.script import call
from kvspec.kernel.state import State
from kvspec.rooms.swap.operations import ShowHostTable, SwapIn, SwapOut, present, swapped_out

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


def _draw_out(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    # What others have too, what is in flight, and what is filled in part is easily wrong.
    ids, size = live(state), spec.geometry.block_size
    occupancy = state.at()
    delicate = [
        seq
        for seq in ids
        if state.sequences[seq].length % size
        or any(
            block in occupancy.pins or len(occupancy.users[block]) > 1
            for block in present(state.table(seq))
        )
    ]
    return SwapOut(chooser.pick((*ids, *delicate, *delicate)))


def _slid(state: State, seqs: Sequence[int]) -> list[int]:
    """Those of which entries were released: these need no block, neither there nor here."""
    return [seq for seq in seqs if None in state.table(seq)]


def _some_slid(state: State, spec: "Specification") -> bool:
    return bool(_slid(state, live(state)))


def _draw_slid_out(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return SwapOut(chooser.pick(_slid(state, live(state))))


def _some_away(state: State, spec: "Specification") -> bool:
    return bool(swapped_out(state))


def _draw_in(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    away = swapped_out(state)
    return SwapIn(chooser.pick((*away, *_slid(state, away) * 3)))


def _can_fill(state: State, spec: "Specification") -> bool:
    return room_for_another(state, spec) and _some_away(state, spec)


def _draw_fill(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Another sequence, which leaves just the blocks for one to come back, or one too few."""
    away, size = swapped_out(state), spec.geometry.block_size
    slid = _slid(state, away)
    seq = chooser.pick((*away, *slid * 3))
    spare = spec.available(state) - len(present(state.table(seq)))
    most = spec.geometry.max_tokens
    tokens = max(0, spare + chooser.pick((0, 0, 1) if seq in slid else (1, 1, 0))) * size
    tokens = tokens if most is None else min(tokens, most)
    return spec.operation(call("allocate", seq=chooser.pick(new_ids(state)), num_tokens=tokens))


def _may_be_wrong(state: State, spec: "Specification") -> bool:
    return spec.contract.misuse == "raises" and bool(swapped_out(state))


def _draw_not_resident(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Anything that another room proposes, of a sequence that is swapped out instead."""
    away = chooser.pick(swapped_out(state))
    others = [
        proposal
        for room in spec.rooms
        if room.capability != SwapOut.capability
        for proposal in room.proposals
        if proposal.possible(state, spec)
    ]
    for _ in range(3 if others else 0):  # many are not about a sequence that there is
        drawn = chooser.pick(others).draw(state, spec, chooser)
        if drawn.subjects and not drawn.everywhere:
            return drawn.renamed({drawn.subjects[-1]: away})
    return spec.operation(call("append", seq=away, num_tokens=1))


def wrong(state: State, spec: "Specification") -> Sequence[Operation]:
    """Unknown ids, and calls on a sequence that is swapped out."""
    unknown = new_ids(state)[0]
    calls: list[Operation] = [SwapOut(unknown), SwapIn(unknown), ShowHostTable(unknown)]
    for seq in swapped_out(state)[-1:]:
        others = (call(method, seq=seq, num_tokens=1) for method in ("append", "allocate"))
        calls += [SwapOut(seq), *map(spec.operation, others)]
    return calls


def every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    """Each sequence goes, and comes back."""
    yield from (move(seq) for seq in state.sequences for move in (SwapOut, SwapIn))


PROPOSALS = (
    Proposal("swap_out", some_live, _draw_out),
    Proposal("slid_out", _some_slid, _draw_slid_out, weight=4),
    Proposal("swap_in", _some_away, _draw_in, weight=4),
    Proposal("fill", _can_fill, _draw_fill, weight=3),
    Proposal("not_resident", _may_be_wrong, _draw_not_resident, weight=2),
)
