"""The facts: each sequence's history, who holds which block and why, what each slot contains.

Nothing here is derived bookkeeping: users, counts and what is free are computed from the
holders when they are asked for, so the specification has no counter that could be wrong.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

from attrs import evolve, field, frozen

from kvspec.geometry import DEVICE, Place

Entries = tuple[int | None, ...]
"""A block table: one entry a block of positions, `None` where the block was released."""


class Cell(NamedTuple):
    """What one write left in one slot.

    The writer and the operation are part of it, so that a copy that was forgotten shows even
    between sequences with equal tokens; so is the position, on which keys and values depend.
    `token` is `None` where the interface does not tell which token it was.
    """

    position: int
    writer: int
    operation: int
    token: int | None = None


@frozen
class Holder:
    """A reason why blocks are not free. Rooms add their own kinds.

    `pins`: while it holds a block, nobody else may get it. `counted`: it is a user of the
    block, so that a write by another user is preceded by a copy.
    """

    pins: ClassVar[bool] = True
    counted: ClassVar[bool] = False

    place: Place = field(default=DEVICE, kw_only=True)


@frozen(cache_hash=True)
class TableOf(Holder):
    """The block table of a sequence: it holds, pins and is counted."""

    counted: ClassVar[bool] = True

    seq: int


@lru_cache(maxsize=4096)
def table_of(seq: int, place: Place = DEVICE) -> TableOf:
    """The holder that is the table of `seq` at `place`; one object each, so look-ups are quick."""
    return TableOf(seq, place=place)


@frozen
class Sequence:
    """The history of one live sequence, in tokens; `written <= length` always.

    `cells[p]` is what was written at position `p`: the sequence must read just that there.
    """

    allocated: int
    limit: int | None
    length: int
    cells: tuple[Cell, ...] = ()

    @property
    def written(self) -> int:
        """How many leading positions have been written."""
        return len(self.cells)


@frozen
class Occupancy:
    """Derived: who is at one place, block by block."""

    users: Mapping[int, tuple[TableOf, ...]]
    """For each block in a table, the tables, one mention an entry."""
    pins: Mapping[int, tuple[Holder, ...]]
    """For each block held by something that is not a table, those holders."""

    @cached_property
    def held(self) -> frozenset[int]:
        """The blocks that are not free."""
        return frozenset(self.users).union(self.pins)

    @cached_property
    def pinned_only(self) -> frozenset[int]:
        """The blocks in no table that something else still pins."""
        return frozenset(block for block in self.pins if block not in self.users)


_NOBODY = Occupancy(users={}, pins={})


@frozen
class State:
    """All that is believed of an allocator after some operations. Mappings are never mutated.

    `slices` holds each room's own facts by capability, `clock` counts the operations so far,
    and `refused` is the last operation if it was refused.
    """

    sequences: Mapping[int, Sequence] = field(factory=dict)
    holds: Mapping[Holder, Entries] = field(factory=dict)
    contents: Mapping[tuple[Place, int], tuple[Cell | None, ...]] = field(factory=dict)
    slices: Mapping[str, Any] = field(factory=dict)
    clock: int = 0
    refused: object = None

    def table(self, seq: int, place: Place = DEVICE) -> Entries:
        """The believed block table of `seq`; empty for a sequence that has none there."""
        return self.holds.get(table_of(seq, place), ())

    def last_block(self, seq: int, place: Place = DEVICE) -> int:
        """The block of the last table entry of `seq`; -1 where there is none."""
        last = self.table(seq, place)[-1:]
        return -1 if not last or last[0] is None else last[0]

    @cached_property
    def _occupancies(self) -> Mapping[Place, Occupancy]:
        users: dict[Place, dict[int, tuple[TableOf, ...]]] = {}
        pins: dict[Place, dict[int, tuple[Holder, ...]]] = {}
        for holder, entries in self.holds.items():
            if isinstance(holder, TableOf):
                tables = users.setdefault(holder.place, {})
                for block in entries:
                    if block is not None:
                        tables[block] = (*tables.get(block, ()), holder)
            else:
                others = pins.setdefault(holder.place, {})
                for block in entries:
                    if block is not None:
                        others[block] = (*others.get(block, ()), holder)
        return {
            place: Occupancy(users=users.get(place, {}), pins=pins.get(place, {}))
            for place in users.keys() | pins.keys()
        }

    def at(self, place: Place = DEVICE) -> Occupancy:
        """Who holds what at `place`."""
        return self._occupancies.get(place, _NOBODY)

    def having(
        self,
        *,
        sequences: Mapping[int, Sequence] | None = None,
        holds: Mapping[Holder, Entries] | None = None,
        contents: Mapping[tuple[Place, int], tuple[Cell | None, ...]] | None = None,
    ) -> "State":
        """The state with other histories, holders or contents."""
        return State(
            self.sequences if sequences is None else sequences,
            self.holds if holds is None else holds,
            self.contents if contents is None else contents,
            self.slices,
            self.clock,
            self.refused,
        )

    def after_call(self, refused: object) -> "State":
        """The state one operation later; `refused` is that operation if it was refused."""
        return State(
            self.sequences, self.holds, self.contents, self.slices, self.clock + 1, refused
        )

    def holding(self, holder: Holder, entries: Entries) -> "State":
        """The state in which `holder` holds just `entries`."""
        return self.having(holds={**self.holds, holder: entries})

    def releasing(self, holders: Iterable[Holder]) -> "State":
        """The state in which `holders` hold nothing."""
        gone = set(holders)
        return self.having(holds={h: e for h, e in self.holds.items() if h not in gone})

    def with_slice(self, capability: str, value: object) -> "State":
        """The state in which the room of `capability` has `value` as its facts."""
        return evolve(self, slices={**self.slices, capability: value})
