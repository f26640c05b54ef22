"""When two believed states are alike: what of them bears on anything that may come.

Names do not, as far as the specification goes: one block is as good as another, and one sequence
id as another. For an allocator they may, so beside its own internals the names stay as they are.
"""

from collections.abc import Hashable, Iterator, Mapping
from itertools import groupby, permutations, product
from typing import Any

from attrs import define, field

from kvspec.contract import Paged
from kvspec.geometry import Place
from kvspec.kernel.operation import Operation
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Cell, Entries, Holder, Sequence, State, TableOf
from kvspec.kernel.step import Step

_UNNAMED = 2**31


@define
class _NewNames:
    """Sequences by their place in an order, blocks in the order of their first mention."""

    seqs: Mapping[int, int]
    _blocks: dict[tuple[Place, int], int] = field(factory=dict)

    def seq(self, seq: int) -> int:
        """The place of a sequence in the order."""
        return self.seqs[seq]

    def block(self, place: Place, block: int) -> int:
        """The name of a block: the next one, where it has none."""
        return self._blocks.setdefault((place, block), len(self._blocks))

    def known(self, place: Place, block: int) -> int:
        """The name of a block; a large number where it has none."""
        return self._blocks.get((place, block), _UNNAMED)


class _OwnNames:
    """The names as they are."""

    def seq(self, seq: int) -> int:
        """The id."""
        return seq

    def block(self, place: Place, block: int) -> int:
        """The id."""
        return block

    def known(self, place: Place, block: int) -> int:
        """The id."""
        return block


_OWN = _OwnNames()
_Names = _NewNames | _OwnNames


def up_to_names(state: State, spec: Specification) -> Hashable:
    """What matters of a state, the same for all that differ in the names of blocks and sequences.

    What was written is left out: every live sequence reads what was written for it, since no law
    is broken, and a law cannot tell one written token from another.
    """
    ways: Iterator[tuple[Any, ...]]
    ways = (_told(state, spec, names, holders) for names, holders in _orders(state, spec))
    return min(ways)


def exactly(state: State, spec: Specification) -> Hashable:
    """What matters of a state under its own names.

    The contents are in it as far as they can be told apart: which slots hold what one of the live
    or cached slots holds, also in free blocks, where a forgotten copy might be there by chance.
    """
    # Leases are told apart by their age: they are held in the order in which they began.
    return _told(state, spec, _OWN, _others(state)), _contents(state)


def stays(step: Step) -> bool:
    """Whether what matters after a step is plainly what mattered before it.

    That is so of nearly all refusals and wrong calls. False where it takes a comparison to know.
    """
    before, after = step.before, step.after
    if not (
        before.sequences is after.sequences
        and before.holds is after.holds
        and before.contents is after.contents
        and before.pools is after.pools
        and before.slices is after.slices
    ):
        return False
    # With the same facts the call is expected to end as before, so that it is known whether it
    # bears on what comes that it was refused.
    if before.refused is not None and before.refused != step.operation:
        return False
    return (before.refused is None and after.refused is None) or not step.expected.done


def _past(one: Sequence, spec: Specification) -> tuple[Any, ...]:
    """What matters of a history: with how many tokens it began does only to some reservations."""
    limit = -1 if one.limit is None else one.limit
    began = -1 if isinstance(spec.contract.reservation, Paged) else one.allocated
    return one.tier, one.length, one.written, limit, began


def _orders(state: State, spec: Specification) -> Iterator[tuple[_NewNames, list[Holder]]]:
    """The orders of sequences, and of leases, in which the names may be given."""

    def looks(seq: int) -> tuple[Any, ...]:
        sizes = tuple([len(state.entries(table)) for table in state.homes(seq)])
        return _past(state.sequences[seq], spec), sizes

    # Only those that look the same in themselves can change places.
    same = [list(group) for _, group in groupby(sorted(state.sequences, key=looks), key=looks)]
    others = _others(state)
    for seqs in product(*(permutations(group) for group in same)):
        order = [seq for group in seqs for seq in group]
        places = {seq: place for place, seq in enumerate(order)}
        for holders in permutations(others):
            yield _NewNames(places), list(holders)


def _others(state: State) -> list[Holder]:
    """What pins blocks, beside tables."""
    return [h for h in state.holds if h.pins and not isinstance(h, TableOf)]


def _told(
    state: State, spec: Specification, names: _Names, holders: list[Holder]
) -> tuple[Any, ...]:
    def entries(holder: Holder, held: Entries) -> tuple[int, ...]:
        place = holder.place
        return tuple([-1 if block is None else names.block(place, block) for block in held])

    sequences = []
    for seq in sorted(state.sequences, key=names.seq):
        tables = tuple([entries(table, state.entries(table)) for table in state.homes(seq)])
        sequences.append((names.seq(seq), _past(state.sequences[seq], spec), tables))
    pinned = tuple([(str(h.place), entries(h, state.holds[h])) for h in holders])
    pools = tuple([(blocks.start, blocks.stop) for blocks in state.pools.values()])
    slices = tuple([room.matters(state, names) for room in spec.rooms])
    # What was refused bears on what comes only where it need not have been.
    refused = state.refused
    again = repr(refused) if isinstance(refused, Operation) and _may(state, spec, refused) else ""
    return tuple(sequences), pinned, pools, slices, again


def _may(state: State, spec: Specification, refused: Operation) -> bool:
    """Whether the contract leaves it to the allocator if it refuses."""
    return spec.expect(state, refused).done


def _contents(state: State) -> Hashable:
    names: dict[Cell, int] = {}
    for seq in sorted(state.sequences):
        for cell in state.sequences[seq].cells:
            if cell is not None:
                names.setdefault(cell, len(names))
    kept = sorted((place, block) for place in state.pools for block in state.at(place).keeps)
    for at in kept:
        for cell in state.contents.get(at, ()):
            if cell is not None:
                names.setdefault(cell, len(names))
    found = []
    for (place, block), cells in state.contents.items():
        slots = tuple([-1 if cell is None else names.get(cell, -1) for cell in cells])
        if any(slot >= 0 for slot in slots):
            found.append((str(place), block, slots))
    read = tuple(
        (seq, tuple([-1 if cell is None else names[cell] for cell in one.cells]))
        for seq, one in sorted(state.sequences.items())
    )
    return tuple(sorted(found)), read
