"""The specification: a relation between operations and outcomes, composed from rooms.

`believe` is total: it takes what was observed as true and gives the next state. `judge` then
asks every law, each an independent predicate over the step.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

from attrs import evolve, frozen

from kvspec.contract import Contract, Doubling, History
from kvspec.geometry import DEVICE, HOST, Geometry, Place, blocks_for, whole_blocks
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Copied, Event, Settled, TableSeen
from kvspec.kernel.fold import fold, reading
from kvspec.kernel.generation import WRONG_CALL
from kvspec.kernel.law import Breach, Law
from kvspec.kernel.operation import Expected, Need, Operation, expect
from kvspec.kernel.outcome import REFUSED, Answer, Look, Observation, Outcome
from kvspec.kernel.placement import extends, extent, holes, well_placed
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call
from kvspec.kernel.state import Cell, Entries, Sequence, State, TableOf, table_of
from kvspec.kernel.step import Step


def _always(state: State, spec: "Specification") -> bool:
    return True


def _wrong_call(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    room = chooser.pick([room for room in spec.rooms if room.wrong(state, spec)])
    return chooser.pick(room.wrong(state, spec))


_WRONG_CALL = Proposal(WRONG_CALL, _always, _wrong_call)


@frozen(eq=False, slots=False)
class Specification:
    """What an allocator with this geometry and contract must do, in the capabilities of `rooms`.

    `laws` is in the published order: the first broken one is the one that is reported.
    `kinds` are all kinds of operations, by method.
    """

    geometry: Geometry
    contract: Contract
    rooms: tuple[Room, ...]
    laws: tuple[Law, ...]
    kinds: Mapping[str, type[Operation]]

    # ------------------------------------------------------------------ facts and sizes

    def initial(self) -> State:
        """The state of a fresh allocator: no sequences, and unknown contents."""
        geometry, first = self.geometry, self.contract.first_block
        pools = {
            Place(pool=pool): geometry.ids_of(pool, first) for pool in range(len(geometry.pools))
        }
        return State(
            pools={**pools, HOST: range(geometry.num_host_blocks)},
            places=tuple(Place(pool=geometry.pool_of(g)) for g in range(len(geometry.layout))),
            slices={r.capability: r.facts for r in self.rooms if r.facts is not None},
        )

    @property
    def most_tokens(self) -> int:
        """As many tokens as the device pool ever holds, and more."""
        return 2 * self.geometry.capacity

    def claims(self, capability: str) -> bool:
        """Whether the room of `capability` is one of these."""
        return any(room.capability == capability for room in self.rooms)

    def block_size(self, table: TableOf) -> int:
        """How many tokens a block of this table holds."""
        return self._block_sizes[table.group]

    @cached_property
    def _block_sizes(self) -> tuple[int, ...]:
        return tuple(group.block_size for group in self.geometry.layout)

    @property
    def groups(self) -> range:
        """The KV groups."""
        return range(len(self._block_sizes))

    @cached_property
    def shadowed(self) -> bool:
        """Whether contents are judged in the suite's shadow memory, for want of a store."""
        return not self.claims("store")

    def free_blocks(self, state: State, place: Place = DEVICE) -> tuple[int, ...]:
        """The blocks of a place that nobody holds, in order, and last those to be displaced."""
        occupancy, blocks = state.at(place), state.blocks(place)
        if not occupancy.keeps:
            return tuple(block for block in blocks if block not in occupancy.held)
        plain = [b for b in blocks if b not in occupancy.held and b not in occupancy.keeps]
        return (*plain, *(b for b in occupancy.keeps if b not in occupancy.held))

    def available(self, state: State, place: Place = DEVICE) -> int:
        """How many blocks of a place are free."""
        return len(state.blocks(place)) - len(state.at(place).held)

    def free_counts(self, state: State, place: Place = DEVICE) -> range:
        """What the allocator may give as its count of free blocks.

        Where that leaves out what can be displaced, it may leave out what is only perhaps held.
        """
        most = self.available(state, place)
        if self.contract.free_counts_cached:
            return range(most, most + 1)
        keeps = state.at(place).keeps
        idle = state.at(place).idle
        certain = sum(any(not holder.doubtful for holder in keeps[block]) for block in idle)
        return range(most - len(idle), most - certain + 1)

    def least(self, past: History, group: int = 0) -> int:
        """The fewest blocks that a sequence with this history must hold in a group."""
        need = self.contract.reservation.need(past, self._block_sizes[group])
        return extent(self.contract.placement, need)

    def most_waste(self, past: History, group: int = 0) -> int | None:
        """The most tokens that it may reserve there beyond its length, if there is a bound."""
        size = self._block_sizes[group]
        bound = self.contract.reservation.waste_bound(past, size)
        if bound is None:
            return None
        return max(bound, self.least(past, group) * size - past.length)

    def holdings(self, past: History, group: int = 0) -> range:
        """How many blocks a sequence with this history may hold in a group."""
        bound, size = self.most_waste(past, group), self._block_sizes[group]
        most = sum(self.geometry.pools) if bound is None else (past.length + bound) // size
        return range(self.least(past, group), most + 1)

    def released(self, length: int, added: int, group: int = 0) -> int:
        """How many leading entries an append of `added` tokens to `length` finds released.

        They lie wholly before the window of the token by which the contract judges.
        """
        window = self.geometry.layout[group].window
        if window is None or added <= 0:
            return 0
        ahead = {"exact": 1, "early": added, "late": 0}[self.contract.window_release]
        return whole_blocks(length + ahead - window, self._block_sizes[group])

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

    def past(self, sequence: Sequence, entries: int, group: int = 0) -> History:
        """What a reservation may depend on, for a sequence that holds `entries` entries there."""
        return History(
            allocated=sequence.allocated,
            limit=sequence.limit,
            length=sequence.length,
            reserved=entries * self._block_sizes[group],
            max_tokens=self.geometry.max_tokens,
        )

    # ------------------------------------------------------------------ the relation

    def guards(self, state: State, operation: Operation) -> frozenset[str]:
        """The errors that rooms add to `operation`, whichever room it is from."""
        return frozenset().union(*(guard(state, operation) for guard in self._guards))

    @cached_property
    def _guards(self) -> tuple[Callable[[State, Operation], frozenset[str]], ...]:
        return tuple(room.guard for room in self.rooms if room.guard is not None)

    def expect(self, state: State, operation: Operation) -> Expected:
        """What the answer to `operation` may be."""
        return expect(operation, state, self)

    def foreseen(self, state: State, operation: Operation, answer: Answer) -> State:
        """The state after what the caller wrote first and the history of a success, unseen yet."""
        if not self.expect(state, operation).errors:
            for event in self._beginning(state, operation, answer.kind == "done", answer):
                state = self._fold(state, event)
        return state

    def _beginning(
        self, state: State, operation: Operation, done: bool, answer: Answer
    ) -> Iterator[Event]:
        """The events before the tables are looked at; what is written first stays in any case."""
        if operation.writes_first:
            yield from operation.all_writes(state, self)
        if done:
            yield from operation.history(state, self, answer)

    def concerned(self, state: State, operation: Operation, look: Look) -> tuple[int, ...]:
        """The sequences whose tables must be looked at after `operation`.

        All of them in a full look, or where any block may move; else those that it touched
        and those that share a block with one of them, which may be the ones that got the copy.
        """
        if look.full or self.contract.relocates:
            return tuple(state.sequences)
        concerned = set(operation.touched)
        for seq in operation.touched:
            for table in state.homes(seq):
                for block in state.entries(table):
                    concerned.update(user.seq for user in state.users(table, block))
        return tuple(seq for seq in state.sequences if seq in concerned)

    def tables(self, seq: int, state: State) -> Iterator[tuple[TableOf, str, tuple[int, ...]]]:
        """The tables of `seq` that can be looked at: each with the method and its arguments."""
        grouped = self.geometry.groups is not None
        for tier, (method, _) in self._views:
            if tier == "device":
                for group, place in enumerate(state.places):
                    yield table_of(seq, group, place), method, (seq, group) if grouped else (seq,)
            else:
                yield table_of(seq, 0, Place(tier)), method, (seq,)

    def counts(self, state: State) -> Iterator[tuple[Place, str, tuple[int, ...]]]:
        """The places whose free blocks the allocator counts, each with the method to ask it."""
        grouped = self.geometry.groups is not None
        for tier, (_, method) in self._views:
            for place in state.pools:
                if place.tier == tier:
                    yield place, method, (place.pool,) if grouped else ()

    @cached_property
    def _views(self) -> tuple[tuple[str, tuple[str, str]], ...]:
        return tuple(view for room in self.rooms for view in room.views.items())

    def cells(self, state: State, seq: int, start: int, stop: int) -> tuple[Cell, ...]:
        """What the caller writes into the slots of `seq` from `start` to `stop`."""
        # No more than the pool holds: an allocator that grants an absurd length breaks a law,
        # and must not make the caller write for ever.
        stop = min(stop, start + self.most_tokens)
        known = next((k for room in self.rooms if (k := room.known(state, seq))), ())
        return tuple(
            Cell(p, seq, state.clock, known[p] if p < len(known) else None)
            for p in range(start, stop)
        )

    def queries(self, state: State) -> Iterator[Operation]:
        """What the rooms have asked in a full look, beside tables and counts."""
        for room in self.rooms:
            yield from room.queries(state, self)

    def believe(self, state: State, operation: Operation, outcome: Outcome) -> Step:
        """The step that `outcome` makes, taken as true whatever it says."""
        expected, answer = self.expect(state, operation), outcome.answer
        if outcome.fault is not None:
            expected = evolve(expected, injected=True)
        done = answer.kind == "done" and not (expected.errors or expected.injected)
        events: list[Event] = []
        if not expected.errors:
            events += self._beginning(state, operation, done, answer)
        events += (TableSeen(table, e) for table, e in outcome.observation.tables.items())
        source, to = operation.tiers
        events += (
            Copied(*copy, state.place_of(source, copy[0]), state.place_of(to, copy[1]))
            for copy in answer.copies
        )
        if done:
            events += operation.effects(state, self, answer)
        events.append(Settled(state))
        after = state
        for event in events:
            after = self._fold(after, event)
        # Only the first refusal is worth repeating: what was refused twice is known.
        refused = answer.kind == "refused" and state.refused != operation
        after = after.after_call(operation if refused else None)
        return Step(self, state, operation, outcome, expected, after, tuple(events))

    def judge(self, step: Step) -> tuple[Breach, ...]:
        """All laws that `step` breaks, in the published order, with the reasons."""
        return tuple(
            Breach(law.id, because)
            for law in step.relevant
            if (because := law.broken(step)) is not None
        )

    def choices(self, state: State, operation: Operation) -> Iterator[Outcome]:
        """All outcomes that are allowed, fully observed, a success first.

        Up to the names of free blocks and the order of the copies, which never feed each other.
        Contracts that relocate are not enumerated: their moves are judged, not listed.
        """
        if self.contract.relocates:
            raise ValueError("the choices of a relocating contract are not enumerated")
        expected = self.expect(state, operation)
        unchanged = self.observed(state)
        for error in sorted(expected.errors):
            yield Outcome(Answer("error", error), unchanged)
        # What was refused just now is refused again, also where the contract allows either.
        if expected.done and state.refused != operation:
            yield from operation.choices(state, self)
        if expected.refused:
            yield Outcome(REFUSED, unchanged)
            released = self._released_anyway(state, operation)
            if released is not state:
                yield Outcome(REFUSED, self.observed(released))

    def _released_anyway(self, state: State, operation: Operation) -> State:
        """The state that a refusal may leave where what lies before the window goes first."""
        for seq in state.sequences if self.contract.window_before_refusal else ():
            for table in state.homes(seq):
                length, entries = state.sequences[seq].length, state.entries(table)
                gone = self.released(length, operation.added(seq), table.group)
                if any(block is not None for block in entries[:gone]):
                    kept = (*(None for _ in entries[:gone]), *entries[gone:])
                    state = state.holding(table, kept)
        return state

    def observed(self, state: State) -> Observation:
        """What a full look at an allocator in `state` shows."""
        return Observation(
            tables={
                table: state.entries(table)
                for seq in state.sequences
                for table, _, _ in self.tables(seq, state)
            },
            free={place: self.free_counts(state, place)[-1] for place, _, _ in self.counts(state)},
        )

    def result(self, state: State, operation: Operation, outcome: Outcome) -> Outcome:
        """`outcome`, with the observation completed to a full look at the state after it."""
        after = self.believe(state, operation, outcome).after
        return evolve(outcome, observation=self.observed(after))

    def operation(self, call: Call) -> Operation:
        """The operation that a script names by its method."""
        return self.kinds[call.method](**call.fields)

    def proposals(self, rooms: Collection[Room] | None = None) -> Iterator[Proposal]:
        """What engines may try, of all rooms or some; wrong calls only where they raise."""
        for room in self.rooms:
            if rooms is None or room in rooms:
                yield from room.proposals
        if self.contract.misuse == "raises":
            yield _WRONG_CALL

    # ------------------------------------------------------------------ the fold of events

    def _fold(self, state: State, event: Event) -> State:
        state = fold(state, event, self.geometry)
        for room_fold in self._folds:
            state = room_fold(state, event, self)
        return state

    @cached_property
    def _folds(self) -> tuple[Callable[[State, Event, "Specification"], State], ...]:
        return tuple(room.fold for room in self.rooms if room.fold is not None)

    def reading(self, state: State, table: TableOf) -> tuple[Cell | None, ...]:
        """What the shadow memory holds at each written position of a table's sequence."""
        return reading(state, table, state.sequences[table.seq].written, self.geometry)
