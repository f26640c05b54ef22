"""What an engine may try with the core."""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from functools import lru_cache
from typing import TYPE_CHECKING

from kvspec.kernel.chooser import Chooser
from kvspec.kernel.generation import (
    HUGE,
    ODD_LENGTHS,
    length_near_boundary,
    live,
    longest,
    new_ids,
    room_for_another,
    some_live,
)
from kvspec.kernel.operation import Operation
from kvspec.kernel.room import Proposal
from kvspec.kernel.state import Sequence, State
from kvspec.rooms.core.operations import Allocate, Append, Free, ShowTable

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


def _allocate(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    seq = chooser.pick(new_ids(state))
    bounds = [spec.geometry.max_tokens]
    return Allocate(seq, length_near_boundary(spec, state, chooser, 0, bounds))


def _append(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    # Those that may not grow any more come less often.
    most = spec.geometry.max_tokens
    growing = [s for s in live(state) if _below(state.sequences[s], most)]
    seq = chooser.pick((*live(state), *growing))
    sequence = state.sequences[seq]
    bounds = [sequence.limit, most]
    return Append(seq, length_near_boundary(spec, state, chooser, sequence.length, bounds))


def _below(sequence: Sequence, most: int | None) -> bool:
    """Whether the sequence may be longer than it is."""
    length, limit = sequence.length, sequence.limit
    return (limit is None or length < limit) and length < (HUGE if most is None else most)


def _free(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return Free(chooser.pick(tuple(state.sequences)))


def _free_large(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """One of the two that have most blocks: the others would not make much room."""

    def blocks(seq: int) -> int:
        return sum(len(state.entries(table)) for table in state.homes(seq))

    return Free(chooser.pick(sorted(live(state), key=blocks)[-2:]))


def _again(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    assert isinstance(state.refused, Operation)  # `possible` has seen to it
    return state.refused


def wrong(state: State, spec: "Specification") -> Items[Operation]:
    """Unknown ids, an id in use, and lengths that are none."""
    return _wrong(new_ids(state)[0], live(state)[-1:])


@lru_cache(maxsize=256)
def _wrong(unknown: int, live: tuple[int, ...]) -> Items[Operation]:
    calls: list[Operation] = [
        Append(unknown, 1),
        Free(unknown),
        ShowTable(unknown),
        *(Allocate(unknown, odd) for odd in ODD_LENGTHS),
    ]
    for seq in live:
        calls += [Allocate(seq, 1), *(Append(seq, odd) for odd in ODD_LENGTHS)]
    return tuple(calls)


def every(state: State, spec: "Specification", ids: Items[int]) -> Iterator[Operation]:
    """Every length for a new sequence and for each that there is, and the end of each.

    Where lengths have a bound, one beyond it as well.
    """
    most = longest(spec) + (spec.geometry.max_tokens is not None)
    for seq in ids:
        yield from (Allocate(seq, tokens) for tokens in range(most + 1))
    for seq, sequence in state.sequences.items():
        yield from (Append(seq, tokens) for tokens in range(most - sequence.length + 1))
        yield Free(seq)


def _full(state: State, spec: "Specification") -> bool:
    return spec.available(state) == 0 and bool(live(state))


def _some_sequence(state: State, spec: "Specification") -> bool:
    return bool(state.sequences)


def _was_refused(state: State, spec: "Specification") -> bool:
    return state.refused is not None


PROPOSALS = (
    Proposal("allocate", room_for_another, _allocate, weight=2),
    Proposal("append", some_live, _append, weight=3),
    Proposal("free", _some_sequence, _free, weight=2),
    # A full pool refuses all that is interesting, and would stay full most of the time.
    Proposal("make_room", _full, _free_large, urgent=True),
    Proposal("again", _was_refused, _again),
)
