"""Sizes: what a geometry and a contract say of lengths, blocks, and the holes between them."""

from collections.abc import Iterator

from attrs import frozen

from kvspec.contract import Contract, Doubling, History, Unspecified
from kvspec.geometry import DEVICE, Geometry, Group, Place, blocks_for, whole_blocks
from kvspec.kernel.derived import derived
from kvspec.kernel.operation import Need
from kvspec.kernel.placement import extends, extent, holes, well_placed
from kvspec.kernel.state import Entries, Sequence, State, TableOf


@frozen(eq=False, slots=False)
class Sizes:
    """How much a sequence takes, and whether it fits, with this geometry under this contract."""

    geometry: Geometry
    contract: Contract

    @property
    def most_tokens(self) -> int:
        """As many tokens as the device pool ever holds, and more."""
        return 2 * self.geometry.capacity

    def block_size(self, table: TableOf) -> int:
        """How many tokens a block of this table holds."""
        return self._block_sizes[table.group]

    @derived
    def layout(self) -> tuple[Group, ...]:
        """The KV groups, each with its block size and window."""
        return self.geometry.layout

    @derived
    def _block_sizes(self) -> tuple[int, ...]:
        return tuple(group.block_size for group in self.layout)

    @property
    def groups(self) -> range:
        """The KV groups."""
        return range(len(self._block_sizes))

    def free_blocks(self, state: State, place: Place = DEVICE) -> tuple[int, ...]:
        """The blocks of a place that may be taken, in order, and last those to be displaced."""
        occupancy, blocks = state.at(place), state.blocks(place)
        if not occupancy.keeps:
            return tuple(block for block in blocks if block not in occupancy.held)
        stay = occupancy.certain if self.evicts_explicitly else ()
        plain = [b for b in blocks if b not in occupancy.held and b not in occupancy.keeps]
        return (*plain, *(b for b in occupancy.keeps if not (b in occupancy.held or b in stay)))

    def available(self, state: State, place: Place = DEVICE) -> int:
        """How many blocks of a place may be taken."""
        free = state.num_free(place)
        return free - state.at(place).least_kept if self.evicts_explicitly else free

    def surely_available(self, state: State, place: Place = DEVICE) -> int:
        """How many of them can be taken whatever is in doubt."""
        free = state.num_free(place)
        return free - len(state.at(place).idle) if self.evicts_explicitly else free

    def kept_text(self, state: State, place: Place = DEVICE) -> str:
        """How many blocks without a user are not free for what is kept in them, in a message."""
        kept = state.num_free(place) - self.available(state, place)
        return f" beside {kept} that only evict makes free" if kept else ""

    @derived
    def evicts_explicitly(self) -> bool:
        """Whether what is kept in a block that nobody uses stays until the caller lets go of it."""
        return self.contract.eviction == "explicit"

    def free_counts(self, state: State, place: Place = DEVICE) -> range:
        """What the allocator may give as its count of free blocks.

        Where that leaves out what can be displaced, it may leave out what is only perhaps held.
        """
        most, at = state.num_free(place), state.at(place)
        if self.contract.free_counts_cached:
            return range(most, most + 1)
        return range(most - len(at.idle), most - at.least_kept + 1)

    def least(self, past: History, group: int = 0) -> int:
        """The fewest blocks that a sequence with this history must hold in a group."""
        need = self.contract.reservation.need(past, self._block_sizes[group])
        return extent(self.contract.placement, need)

    def most_waste(self, past: History, group: int = 0, least: int | None = None) -> int | None:
        """The most tokens that it may reserve there beyond its length, if there is a bound.

        `least` is what the method of that name says, for callers that know it already.
        """
        size = self._block_sizes[group]
        bound = self.contract.reservation.waste_bound(past, size)
        if bound is None:
            return None
        least = self.least(past, group) if least is None else least
        return max(bound, least * size - past.length)

    def holdings(self, state: State, past: History, group: int = 0) -> range:
        """How many blocks a sequence with this history may hold in a group."""
        bound, size = self.most_waste(past, group), self._block_sizes[group]
        most = len(state.blocks(state.places[group]))
        if bound is not None:
            most = (past.length + bound) // size
        return range(self.least(past, group), most + 1)

    @derived
    def any_refusal(self) -> bool:
        """Whether whatever takes blocks may be refused, however many are free."""
        return isinstance(self.contract.reservation, Unspecified)

    def released(self, length: int, added: int, group: int = 0) -> int:
        """How many leading entries an append of `added` tokens to `length` finds released.

        They lie wholly before the window of the token by which the contract judges.
        """
        window = self.layout[group].window
        if window is None or added <= 0:
            return 0
        ahead = {"exact": 1, "early": added, "late": 0}[self.contract.window_release]
        return whole_blocks(length + ahead - window, self._block_sizes[group])

    def released_before_a_hit(self, num_tokens: int) -> tuple[int, ...]:
        """How many leading entries a hit of so many tokens may leave out, the fewest first.

        Those that its last token does not see or, where the contract leaves a token to compute,
        which is then the first that looks back, those that this one does not see.
        """
        window, last = self.layout[0].window, num_tokens + self.contract.leave_one
        if window is None:
            return (0,)
        ends = range(num_tokens, last + 1)
        return tuple(whole_blocks(end - window, self._block_sizes[0]) for end in ends)

    def fits(self, state: State, need: Need, target: int) -> bool:
        """Whether there are free blocks for `need`, and where placement matters a hole for them.

        An extent grows where it is, or, if the contract relocates, it moves to a hole of
        `target` blocks; until then both are held.
        """
        placement = self.contract.placement
        if need.fresh == 0 or placement == "anywhere":
            return need.fresh <= self.available(state, need.place) + need.freed
        free, blocks = self.free_blocks(state), state.blocks()
        held = [block for block in need.held if block is not None]
        size = len(held) + need.fresh
        if held and extends(placement, held, size, free, blocks, self.room):
            return True
        moves = not held or self.contract.relocates
        return moves and any(holes(placement, max(size, target), free, blocks, self.room))

    def surely_fits(self, state: State, need: Need) -> bool:
        """Whether there are blocks for `need` whatever is in doubt, and a hole to move to."""
        if self.contract.placement != "anywhere":
            return self.fits(state, need, need.target)
        available = self.surely_available(state, need.place)
        return need.fresh <= available + need.freed - need.doubtful

    def target(self, past: History, group: int = 0) -> int:
        """The size of the extent to which a sequence with this history would move."""
        reservation = self.contract.reservation
        if isinstance(reservation, Doubling):
            return reservation.target(past, self._block_sizes[group])
        return self.least(past, group)

    def extents(self, state: State, size: int, table: Entries = ()) -> Iterator[Entries]:
        """The free blocks by which `table` may grow: one choice, or all that its placement has."""
        free, placement, held = self.free_blocks(state), self.contract.placement, len(table)
        if placement == "anywhere" or size == 0:
            if size <= len(free):
                yield free[:size]
            return
        within = [*free, *(block for block in table if block is not None)]
        for hole in holes(placement, held + size, within, state.blocks(), self.room):
            if tuple(hole[:held]) == table:
                yield tuple(hole[held:])

    def well_placed(self, table: Entries, pool: range) -> bool:
        """Whether a table lies in `pool` as the contract's placement says."""
        blocks = [block for block in table if block is not None]
        return well_placed(self.contract.placement, blocks, pool, self.room)

    @property
    def room(self) -> int:
        """The size of a slot in blocks, for a placement in slots."""
        return blocks_for(self.geometry.max_tokens or 0, self.geometry.block_size)

    def past(
        self, sequence: Sequence, entries: int, group: int = 0, length: int | None = None
    ) -> History:
        """What a reservation may depend on, for a sequence that holds `entries` entries there.

        With a `length`, as if the sequence were that long.
        """
        return History(
            sequence.allocated,
            sequence.limit,
            sequence.length if length is None else length,
            entries * self._block_sizes[group],
            self.geometry.max_tokens,
        )
