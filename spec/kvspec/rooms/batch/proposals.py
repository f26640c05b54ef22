"""What an engine may try with batches: sharers of a last block above all."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import TYPE_CHECKING

from kvspec.kernel.chooser import Chooser
from kvspec.kernel.generation import (
    HUGE,
    length_near_boundary,
    live,
    longest,
    new_ids,
    room_for_another,
    some_live,
)
from kvspec.kernel.operation import Operation
from kvspec.kernel.room import Proposal
from kvspec.kernel.script import call
from kvspec.kernel.state import State
from kvspec.rooms.batch.operations import AppendBatch

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


LARGEST = 4
"""More sequences in one batch show nothing that four do not."""


def _sharers(state: State, seq: int) -> list[int]:
    """The sequences on the device that share the last block of `seq`, itself among them."""
    last = state.table(seq)[-1:]
    users = state.users(state.home(seq), last[0]) if last else ()
    return list(dict.fromkeys(user.seq for user in users if state.sequences[user.seq].resident))


def _some(state: State, chooser: Chooser) -> list[int]:
    """Some sequences in some order; those that share a last block come first in half of the draws.

    A write of one of them decides what is left for the others.
    """
    seqs = list(live(state))
    shared = [seq for seq in seqs if len(_sharers(state, seq)) > 1]
    if bool(shared) and chooser.pick((True, False)):
        first = _sharers(state, chooser.pick(shared))
        seqs = [*first, *(seq for seq in seqs if seq not in first)]
        count = chooser.integer(1, min(LARGEST, len(seqs)), near=[min(len(first), LARGEST)])
        chosen = seqs[:count]
    else:
        count = chooser.integer(1, min(LARGEST, len(seqs)))
        chosen = []
        for _ in range(count):
            chosen.append(chooser.pick([seq for seq in seqs if seq not in chosen]))
    return chosen[:: chooser.pick((1, -1))]


def _bounds(state: State, spec: "Specification", seq: int) -> list[int | None]:
    return [state.sequences[seq].limit, spec.geometry.max_tokens]


def _draw(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    if chooser.integer(0, 11) == 11:
        return AppendBatch((), chooser.pick(((), 1, 0)))
    seqs = _some(state, chooser)
    lengths = [state.sequences[seq].length for seq in seqs]
    rooms = [
        min((b - length for b in _bounds(state, spec, seq) if b is not None), default=HUGE)
        for seq, length in zip(seqs, lengths, strict=True)
    ]
    if chooser.pick((True, False)):
        tokens = chooser.pick((1, 1, 2, spec.geometry.block_size, 0))
        return AppendBatch(tuple(seqs), min([tokens, *rooms]))
    numbers = [min(room, chooser.pick((1, 1, 0, 2, spec.geometry.block_size))) for room in rooms]
    how = chooser.pick(("small", "small", "any", "fit", "more"))
    at = len(seqs) - 1
    if how == "any":
        at = chooser.pick(range(len(seqs)))
        bounds = _bounds(state, spec, seqs[at])
        numbers[at] = length_near_boundary(spec, state, chooser, lengths[at], bounds)
    elif how != "small":
        # The last takes all that the others leave, or one token more.
        others = AppendBatch(tuple(seqs[:-1]), tuple(numbers[:-1]))
        needed = sum(n.fresh for n in others.needs(state, spec) if n.place == state.places[0])
        size, left = spec.geometry.block_size, max(0, spec.available(state) - needed)
        most = left * size + -lengths[-1] % size + (how == "more")
        numbers[-1] = min(rooms[-1], most)
    return AppendBatch(tuple(seqs), tuple(numbers))


def _partly_filled(state: State, spec: "Specification") -> list[int]:
    """Those with room in a last block that nobody shares yet, all of it written."""
    size = spec.geometry.block_size
    return [
        seq
        for seq in live(state)
        if state.sequences[seq].length % size
        and state.sequences[seq].written == state.sequences[seq].length
        and len(_sharers(state, seq)) == 1
    ]


def _can_share(state: State, spec: "Specification") -> bool:
    shares = spec.claims("sharing") and room_for_another(state, spec)
    return shares and bool(_partly_filled(state, spec))


def _share(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """A fork, where there are any: a batch over sharers is what is easily wrong."""
    parent = chooser.pick(_partly_filled(state, spec))
    return spec.operation(call("fork", parent=parent, child=chooser.pick(new_ids(state))))


def _sharing(state: State, spec: "Specification") -> list[list[int]]:
    """The sequences, at most so many as a batch has, that share a last block with room in it."""
    size = spec.geometry.block_size
    found = {
        tuple(_sharers(state, seq)) for seq in live(state) if state.sequences[seq].length % size
    }
    return [list(seqs) for seqs in sorted(found) if 1 < len(seqs) <= LARGEST]


def _some_share(state: State, spec: "Specification") -> bool:
    return bool(_sharing(state, spec))


def _draw_sharers(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """All who share a block write into it, with or without others."""
    seqs = chooser.pick(_sharing(state, spec))[:: chooser.pick((1, -1))]
    rooms = [
        bound - state.sequences[seq].length
        for seq in seqs
        for bound in _bounds(state, spec, seq)
        if bound is not None
    ]
    return AppendBatch(tuple(seqs), min([1, *rooms]))


def wrong(state: State, spec: "Specification") -> list[Operation]:
    """Unknown ids, an id twice, arguments of unequal lengths, and lengths that are none."""
    unknown = new_ids(state)[0]
    calls: list[Operation] = [AppendBatch((unknown,), 1), AppendBatch((), (1,))]
    for seq in live(state)[-1:]:
        calls += [
            AppendBatch((seq, seq), (1, 1)),
            AppendBatch((seq, seq), 0),
            AppendBatch((seq, unknown), 1),
            AppendBatch((unknown, seq), (0, 1)),
            AppendBatch((seq,), (1, 1)),
            AppendBatch((seq,), ()),
            AppendBatch((seq,), (-1,)),
            AppendBatch((seq,), -1),
        ]
    ids = live(state)[:2]
    return [*calls, AppendBatch(ids, (1,)), AppendBatch(ids, (1, -1))] if len(ids) == 2 else calls


def every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    """Every batch of the sequences, in every order, that makes a difference in a small scope."""
    most = longest(spec)
    for count in range(len(state.sequences) + 1):
        for seqs in permutations(state.sequences, count):
            lengths = (range(most - state.sequences[seq].length + 1) for seq in seqs)
            yield from (AppendBatch(seqs, numbers) for numbers in product(*lengths))
            fewest = min((most - state.sequences[seq].length for seq in seqs), default=1)
            yield from (AppendBatch(seqs, number) for number in range(fewest + 1))


PROPOSALS = (
    Proposal("append_batch", some_live, _draw, weight=2),
    Proposal("share", _can_share, _share, weight=3),
    Proposal("append_sharers", _some_share, _draw_sharers, weight=5),
)
