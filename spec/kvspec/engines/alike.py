"""When two believed states are alike: what of them bears on anything that may come.

Names do not, as far as the specification goes: one block is as good as another, and one sequence
id as another. For an allocator they may, so beside its own internals the names stay as they are.
"""

from collections.abc import Hashable, Iterator, Mapping
from itertools import groupby, permutations, product
from typing import Any

from attrs import define, evolve, field

from kvspec.contract import Paged
from kvspec.geometry import DEVICE, Place
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

    def call(self, operation: Operation) -> Operation:
        """The same call for the sequences of these names; new ones come after all others."""
        names = dict(self.seqs)
        for seq in (*operation.subjects, *operation.touched):
            names.setdefault(seq, len(names))
        return operation.renamed(names)


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

    def call(self, operation: Operation) -> Operation:
        """The call."""
        return operation


_OWN = _OwnNames()
_Names = _NewNames | _OwnNames

_Reason = list[Holder]
"""The holders by which one thing pins blocks: one at each place where it does."""


def up_to_names(state: State, spec: Specification) -> Hashable:
    """What matters of a state, the same for all that differ in the names of blocks and sequences.

    What was written is left out: every live sequence reads what was written for it, since no law
    is broken, and a law cannot tell one written token from another.
    """
    ways: Iterator[tuple[Any, ...]]
    ways = (_told(state, spec, names, reasons) for names, reasons in _orders(state, spec))
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


def _orders(state: State, spec: Specification) -> Iterator[tuple[_NewNames, list[_Reason]]]:
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
        for reasons in permutations(others):
            yield _NewNames(places), list(reasons)


def _others(state: State) -> list[_Reason]:
    """What pins blocks, beside tables."""
    found: dict[Holder, _Reason] = {}
    for holder in state.holds:
        if holder.pins and not isinstance(holder, TableOf):
            found.setdefault(evolve(holder, place=DEVICE), []).append(holder)
    return list(found.values())


def _told(
    state: State, spec: Specification, names: _Names, reasons: list[_Reason]
) -> tuple[Any, ...]:
    def entries(holder: Holder, held: Entries) -> tuple[int, ...]:
        place = holder.place
        return tuple([-1 if block is None else names.block(place, block) for block in held])

    sequences = []
    for seq in sorted(state.sequences, key=names.seq):
        tables = tuple([entries(table, state.entries(table)) for table in state.homes(seq)])
        sequences.append((names.seq(seq), _past(state.sequences[seq], spec), tables))
    pinned = tuple(
        [tuple([(str(h.place), entries(h, state.holds[h])) for h in reason]) for reason in reasons]
    )
    pools = tuple([(blocks.start, blocks.stop) for blocks in state.pools.values()])
    slices = tuple([room.matters(state, names) for room in spec.rooms])
    # What was refused bears on what comes only where it need not have been.
    refused = state.refused
    again = ""
    if isinstance(refused, Operation) and _may(state, spec, refused):
        again = repr(names.call(refused))
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
