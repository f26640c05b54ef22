"""The facts: each sequence's history, who holds which block and why, what each slot contains.

Nothing here is derived bookkeeping: users, counts and what is free are computed from the
holders when they are asked for, so the specification has no counter that could be wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from attrs import evolve, field, frozen

from kvspec.geometry import DEVICE, HOST, Place
from kvspec.kernel.derived import derived

T = TypeVar("T")

Entries = tuple[int | None, ...]
"""A block table: one entry a block of positions, `None` where the block was released."""


class Cell(NamedTuple):
    """What one write left in one slot.

    The writer and the operation are part of it, so that a copy that was forgotten shows even
    between sequences with equal tokens; so is the position, on which keys and values depend.
    `token` stands for all that they depend on besides: the token, those before it, and the key;
    it is `None` where the interface does not tell which token it was.
    """

    position: int
    writer: int
    operation: int
    token: int | None = None


@frozen
class Holder:
    """A reason why blocks are not free. Rooms add their own kinds.

    `pins`: while it holds a block, nobody else may get it; what does not pin can be displaced.
    `counted`: it is a user of the block, so that a write by another user is preceded by a copy.
    `doubtful`: the allocator may have given the blocks up, and nobody would have seen it;
    `one_of`: but not all of them.
    """

    pins: ClassVar[bool] = True
    counted: ClassVar[bool] = False
    doubtful: ClassVar[bool] = False
    one_of: ClassVar[bool] = False

    place: Place = field(default=DEVICE, kw_only=True)


@frozen(cache_hash=True)
class TableOf(Holder):
    """A block table of a sequence, in one group: it holds, pins and is counted."""

    counted: ClassVar[bool] = True

    seq: int
    group: int = 0

    def __str__(self) -> str:
        """As a key in a trace: `3`, `3/1` in the second group, `3@host` on the host.

        >>> str(TableOf(3)), str(TableOf(3, 1)), str(TableOf(3, place=HOST))
        ('3', '3/1', '3@host')
        """
        group = f"/{self.group}" if self.group else ""
        return f"{self.seq}{group}{'' if self.place.tier == 'device' else '@' + self.place.tier}"


@lru_cache(maxsize=4096)
def table_of(seq: int, group: int = 0, place: Place = DEVICE) -> TableOf:
    """The holder that is this table; one object each, so look-ups are quick."""
    return TableOf(seq, group, place=place)


@frozen(slots=False)
class Sequence:
    """The history of one live sequence, in tokens; `written <= length` always.

    `cells[p]` is what was written at position `p`: the sequence must read just that there. It is
    `None` where nobody need know. `tier` is the memory in which the sequence is.
    """

    allocated: int
    limit: int | None
    length: int
    cells: tuple[Cell | None, ...] = ()
    tier: str = "device"

    @property
    def written(self) -> int:
        """How many leading positions have been written."""
        return len(self.cells)

    @property
    def resident(self) -> bool:
        """Whether it is on the device."""
        return self.tier == "device"

    def grown(self, num_tokens: int) -> "Sequence":
        """The same history with so many more slots reserved."""
        return Sequence(self.allocated, self.limit, self.length + num_tokens, self.cells, self.tier)


@frozen(slots=False)
class Occupancy:
    """Derived: who is at one place, block by block."""

    users: Mapping[int, tuple[TableOf, ...]]
    """For each block in a table, the tables, one mention an entry."""
    pins: Mapping[int, tuple[Holder, ...]]
    """For each block that something else pins, those holders."""
    keeps: Mapping[int, tuple[Holder, ...]]
    """For each block held by what can be displaced, those holders."""

    @derived
    def held(self) -> frozenset[int]:
        """The blocks that are not free: some holder pins them."""
        return frozenset(self.users).union(self.pins) if self.pins else frozenset(self.users)

    @derived
    def pinned_only(self) -> frozenset[int]:
        """The blocks in no table that something else still pins."""
        return frozenset(block for block in self.pins if block not in self.users)

    @derived
    def idle(self) -> frozenset[int]:
        """The blocks that are free, but for holders which can be displaced."""
        return frozenset(self.keeps).difference(self.held)

    @derived
    def certain(self) -> frozenset[int]:
        """Those of the idle blocks that are surely kept."""
        return frozenset(block for block in self.idle if self.keeps_surely(block))

    @derived
    def least_kept(self) -> int:
        """How many of the idle blocks are kept at least."""
        all_idle: dict[Holder, bool] = {}
        for block, holders in self.keeps.items():
            for holder in holders:
                if holder.one_of:
                    all_idle[holder] = all_idle.get(holder, True) and block in self.idle
        return len(self.certain) + sum(all_idle.values())

    def keeps_surely(self, block: int) -> bool:
        """Whether what can be displaced holds a block, and that is not in doubt."""
        return any(not holder.doubtful for holder in self.keeps.get(block, ()))


_NOBODY = Occupancy(users={}, pins={}, keeps={})


@frozen(slots=False)
class State:
    """All that is believed of an allocator after some operations. Mappings are never mutated.

    `pools` are the block ids of each place, and `places` the device place of each group.
    `slices` holds each room's own facts by capability, `clock` counts the operations so far,
    and `refused` is the last operation if it was refused.
    """

    sequences: Mapping[int, Sequence] = field(factory=dict)
    holds: Mapping[Holder, Entries] = field(factory=dict)
    contents: Mapping[tuple[Place, int], tuple[Cell | None, ...]] = field(factory=dict)
    pools: Mapping[Place, range] = field(factory=dict)
    places: tuple[Place, ...] = (DEVICE,)
    slices: Mapping[str, Any] = field(factory=dict)
    clock: int = 0
    refused: object = None

    def home(self, seq: int, group: int = 0) -> TableOf:
        """The table that `seq` has in `group`, where the sequence is."""
        return self.homes(seq)[group]

    @derived
    def written(self) -> bool:
        """Whether any live sequence has anything written."""
        return any(sequence.cells for sequence in self.sequences.values())

    @derived
    def live(self) -> tuple[int, ...]:
        """The sequences on the device, oldest first."""
        return tuple([s for s, sequence in self.sequences.items() if sequence.tier == "device"])

    def homes(self, seq: int) -> tuple[TableOf, ...]:
        """The tables that `seq` has where it is, one a group."""
        sequence = self.sequences.get(seq)
        resident = sequence is None or sequence.tier == "device"
        key = seq if resident else ~seq
        known = self._homes.get(key)
        if known is None:
            known = self._homes[key] = tuple(
                table_of(seq, group, place if resident else HOST)
                for group, place in enumerate(self.places)
            )
        return known

    @derived
    def _homes(self) -> dict[int, tuple[TableOf, ...]]:
        """What `homes` has found, by id, or by the complement of one that is swapped out."""
        return {}

    def entries(self, table: TableOf) -> Entries:
        """The entries of a table; empty for one that is not there."""
        return self.holds.get(table, ())

    def table(self, seq: int, group: int = 0) -> Entries:
        """The believed block table of `seq`, where it is; empty for a sequence that has none."""
        return self.holds.get(self.home(seq, group), ())

    def tables(self) -> Iterator[tuple[TableOf, Entries]]:
        """All tables with their entries."""
        for holder, entries in self.holds.items():
            if isinstance(holder, TableOf):
                yield holder, entries

    def last_block(self, seq: int) -> int:
        """The block of the last table entry of `seq`; -1 where there is none."""
        last = self.table(seq)[-1:]
        return -1 if not last or last[0] is None else last[0]

    def blocks(self, place: Place = DEVICE) -> range:
        """The ids of the blocks at `place`."""
        return self.pools.get(place, range(0))

    @derived
    def tiers(self) -> Mapping[str, range]:
        """The ids of the blocks of each tier: those of its pools are numbered through."""
        found: dict[str, range] = {}
        for place, blocks in self.pools.items():
            other = found.get(place.tier, blocks)
            found[place.tier] = range(min(other.start, blocks.start), max(other.stop, blocks.stop))
        return found

    @derived
    def num_blocks(self) -> int:
        """How many blocks there are, at all places together."""
        return sum([len(blocks) for blocks in self.pools.values()])

    def place_of(self, tier: str, block: int) -> Place:
        """Where `block` of a tier lies."""
        for place, blocks in self.pools.items():
            if place.tier == tier and block in blocks:
                return place
        return Place(tier)

    @derived
    def _occupancies(self) -> Mapping[Place, Occupancy]:
        found: dict[Place, Occupancy] = {}
        for holder, entries in self.holds.items():
            at = found.get(holder.place)
            if at is None:
                at = found[holder.place] = Occupancy(users={}, pins={}, keeps={})
            holders: Any = at.keeps
            if isinstance(holder, TableOf):
                holders = at.users
            elif holder.pins:
                holders = at.pins
            alone = (holder,)
            for block in entries:
                if block is not None:
                    others = holders.get(block)
                    holders[block] = alone if others is None else (*others, holder)
        return found

    def at(self, place: Place = DEVICE) -> Occupancy:
        """Who holds what at `place`."""
        return self._occupancies.get(place, _NOBODY)

    def num_free(self, place: Place) -> int:
        """How many blocks at `place` nobody pins."""
        return self._nums_free.get(place, 0)

    @derived
    def _nums_free(self) -> Mapping[Place, int]:
        return {
            place: len(blocks) - len(self.at(place).held) for place, blocks in self.pools.items()
        }

    def users(self, table: TableOf, block: int | None) -> tuple[TableOf, ...]:
        """The tables that have `block`, which is an entry of `table`; one mention an entry."""
        return () if block is None else self.at(table.place).users.get(block, ())

    def once(self, derive: Callable[..., T], *given: Any) -> T:
        """What `derive` makes of these facts and what is given; kept until a fact changes.

        So it may not depend on the clock, but for whether anything was called yet.
        """
        made, what = self._made, (derive, *given)
        if what not in made:
            made[what] = derive(self, *given)
        return cast("T", made[what])

    @derived
    def _made(self) -> dict[Any, Any]:
        return {}

    def having(self, **facts: Any) -> "State":
        """The state with other facts, by the names of the fields."""
        # What is derived from the facts that stay the same stays the same too.
        all_facts = self.__dict__.copy()
        all_facts.update(facts)
        all_facts.pop("_made", None)
        for name in facts:
            for view in _DERIVED.get(name, ()):
                all_facts.pop(view, None)
        return _state(all_facts)

    def bare(self) -> "State":
        """The same facts, with nothing derived from them yet."""
        return evolve(self)

    def after_call(self, refused: object) -> "State":
        """The state one operation later; `refused` is that operation if it was refused."""
        facts = self.__dict__.copy()
        if refused is not self.refused or self.clock == 0:
            facts.pop("_made", None)
        facts["clock"] += 1
        facts["refused"] = refused
        return _state(facts)

    def holding(self, holder: Holder, entries: Entries) -> "State":
        """The state in which `holder` holds just `entries`."""
        return self.having(holds={**self.holds, holder: entries})

    def releasing(self, holders: Iterable[Holder]) -> "State":
        """The state in which `holders` hold nothing."""
        gone = set(holders)
        return self.having(holds={h: e for h, e in self.holds.items() if h not in gone})

    def with_sequence(self, seq: int, sequence: Sequence) -> "State":
        """The state in which `sequence` is the history of `seq`."""
        return self.having(sequences={**self.sequences, seq: sequence})

    def with_slice(self, capability: str, value: object) -> "State":
        """The state in which the room of `capability` has `value` as its facts."""
        return self.having(slices={**self.slices, capability: value})


def _state(facts: dict[str, Any]) -> State:
    """The state with these facts and what is derived from them; `evolve` takes far longer."""
    state = object.__new__(State)
    object.__setattr__(state, "__dict__", facts)
    return state


_DERIVED = {
    "sequences": ("live", "written"),
    "holds": ("_occupancies", "_nums_free"),
    "pools": ("tiers", "num_blocks", "_nums_free"),
    "places": ("_homes",),
}
"""What is derived from which facts, and kept as long as they are."""
