"""The specification: a relation between operations and outcomes, composed from rooms.

`believe` is total: it takes what was observed as true and gives the next state. `judge` then
asks every law, each an independent predicate over the step.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from attrs import evolve, frozen

from kvspec.contract import Contract, Doubling, History
from kvspec.geometry import DEVICE, Geometry, Place, blocks_for, table_index
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import (
    Cloned,
    Copied,
    Ended,
    Event,
    Grew,
    Started,
    TableSeen,
    Written,
)
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


@frozen(eq=False)
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
        return State(slices={r.capability: r.facts for r in self.rooms if r.facts is not None})

    @cached_property
    def blocks(self) -> range:
        """The ids of the device blocks."""
        first = self.contract.first_block
        return range(first, first + self.geometry.num_blocks)

    @cached_property
    def shadowed(self) -> bool:
        """Whether contents are judged in the suite's shadow memory, for want of a store."""
        return all(room.capability != "store" for room in self.rooms)

    def free_blocks(self, state: State) -> tuple[int, ...]:
        """The device blocks that nobody holds, in ascending order."""
        held = state.at().held
        return tuple(block for block in self.blocks if block not in held)

    def available(self, state: State) -> int:
        """How many device blocks are free."""
        return self.geometry.num_blocks - len(state.at().held)

    def least(self, past: History) -> int:
        """The fewest blocks that a sequence with this history must hold."""
        need = self.contract.reservation.need(past, self.geometry.block_size)
        return extent(self.contract.placement, need)

    def most_waste(self, past: History) -> int | None:
        """The most tokens that it may reserve beyond its length, if there is a bound."""
        bound = self.contract.reservation.waste_bound(past, self.geometry.block_size)
        if bound is None:
            return None
        return max(bound, self.least(past) * self.geometry.block_size - past.length)

    def holdings(self, past: History) -> range:
        """How many blocks a sequence with this history may hold."""
        bound, size = self.most_waste(past), self.geometry.block_size
        most = self.geometry.num_blocks if bound is None else (past.length + bound) // size
        return range(self.least(past), most + 1)

    def fits(self, state: State, need: Need, target: int) -> bool:
        """Whether there are free blocks for `need`, and where placement matters a hole for them.

        An extent grows where it is, or, if the contract relocates, it moves to a hole of
        `target` blocks; until then both are held.
        """
        placement, free = self.contract.placement, self.free_blocks(state)
        if need.fresh == 0 or placement == "anywhere":
            return need.fresh <= len(free)
        held = [block for block in need.held if block is not None]
        size = len(held) + need.fresh
        if held and extends(placement, held, size, free, self.blocks, self.room):
            return True
        moves = not held or self.contract.relocates
        return moves and any(holes(placement, max(size, target), free, self.blocks, self.room))

    def target(self, past: History) -> int:
        """The size of the extent to which a sequence with this history would move."""
        reservation = self.contract.reservation
        if isinstance(reservation, Doubling):
            return reservation.target(past, self.geometry.block_size)
        return self.least(past)

    def places(self, state: State, size: int, table: Entries = ()) -> Iterator[Entries]:
        """The free blocks by which `table` may grow: one choice, or all that its placement has."""
        free, placement, held = self.free_blocks(state), self.contract.placement, len(table)
        if placement == "anywhere" or size == 0:
            if size <= len(free):
                yield free[:size]
            return
        within = [*free, *(block for block in table if block is not None)]
        for hole in holes(placement, held + size, within, self.blocks, self.room):
            if tuple(hole[:held]) == table:
                yield tuple(hole[held:])

    def well_placed(self, table: Entries) -> bool:
        """Whether a table lies as the contract's placement says."""
        blocks = [block for block in table if block is not None]
        return well_placed(self.contract.placement, blocks, self.blocks, self.room)

    @property
    def room(self) -> int:
        """The size of a slot in blocks, for a placement in slots."""
        return blocks_for(self.geometry.max_tokens or 0, self.geometry.block_size)

    def past(self, sequence: Sequence, entries: int) -> History:
        """What a reservation may depend on, for a sequence that holds `entries` table entries."""
        return History(
            allocated=sequence.allocated,
            limit=sequence.limit,
            length=sequence.length,
            reserved=entries * self.geometry.block_size,
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
        """The state after the history of a success, before anything was looked at."""
        if answer.kind == "done" and not operation.errors(state, self):
            for event in operation.history(state, self):
                state = self._fold(state, event)
        return state

    def concerned(self, state: State, operation: Operation, look: Look) -> tuple[int, ...]:
        """The sequences whose tables must be looked at after `operation`.

        All of them in a full look, or where any block may move; else those that it touched
        and those that share a block with one of them, which may be the ones that got the copy.
        """
        if look.full or self.contract.relocates:
            return tuple(state.sequences)
        users = state.at().users
        concerned = set(operation.touched)
        for seq in operation.touched:
            for block in state.table(seq):
                concerned.update(user.seq for user in users.get(-1 if block is None else block, ()))
        return tuple(seq for seq in state.sequences if seq in concerned)

    def believe(self, state: State, operation: Operation, outcome: Outcome) -> Step:
        """The step that `outcome` makes, taken as true whatever it says."""
        expected = self.expect(state, operation)
        done = outcome.answer.kind == "done" and not expected.errors
        events: list[Event] = []
        if done:
            events += operation.history(state, self)
        events += (TableSeen(seq, e) for seq, e in outcome.observation.tables.items())
        events += (Copied(*copy) for copy in outcome.answer.copies)
        if done:
            events += operation.effects(state, self)
        after = state
        for event in events:
            after = self._fold(after, event)
        # Only the first refusal is worth repeating: what was refused twice is known.
        refused = outcome.answer.kind == "refused" and state.refused != operation
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

    def observed(self, state: State) -> Observation:
        """What a full look at an allocator in `state` shows."""
        return Observation(
            tables={seq: state.table(seq) for seq in state.sequences},
            free=self.available(state),
        )

    def result(self, state: State, operation: Operation, outcome: Outcome) -> Outcome:
        """`outcome`, with the observation completed to a full look at the state after it."""
        after = self.believe(state, operation, outcome).after
        return evolve(outcome, observation=self.observed(after))

    def operation(self, call: Call) -> Operation:
        """The operation that a script names by its method."""
        return self.kinds[call.method](**call.fields)

    def proposals(self) -> Iterator[Proposal]:
        """What engines may try; wrong calls only where the contract says that they raise."""
        for room in self.rooms:
            yield from room.proposals
        if self.contract.misuse == "raises":
            yield Proposal("wrong_call", _always, _wrong_call)

    # ------------------------------------------------------------------ the fold of events

    def _fold(self, state: State, event: Event) -> State:
        state = self._fold_kernel(state, event)
        for fold in self._folds:
            state = fold(state, event)
        return state

    @cached_property
    def _folds(self) -> tuple[Callable[[State, Event], State], ...]:
        return tuple(room.fold for room in self.rooms if room.fold is not None)

    def _fold_kernel(self, state: State, event: Event) -> State:
        match event:
            case TableSeen(seq, entries, place):
                if seq in state.sequences and state.table(seq, place) != entries:
                    return state.holding(table_of(seq, place), entries)
                return state
            case Written():
                return self._write(state, event)
            case Copied(source, destination, place):
                moved = state.contents.get((place, source), self._blank)
                return state.having(contents={**state.contents, (place, destination): moved})
            case Started(seq, num_tokens, limit):
                fresh = Sequence(allocated=num_tokens, limit=limit, length=num_tokens)
                return state.having(sequences={**state.sequences, seq: fresh})
            case Grew(seq, num_tokens):
                old = state.sequences[seq]
                grown = evolve(old, length=old.length + num_tokens)
                return state.having(sequences={**state.sequences, seq: grown})
            case Cloned(parent, child):
                clone = {child: state.sequences[parent]}
                state = state.having(sequences={**state.sequences, **clone})
                return state.holding(table_of(child), state.table(parent))
            case Ended(seq):
                left = {s: h for s, h in state.sequences.items() if s != seq}
                gone = [h for h in state.holds if isinstance(h, TableOf) and h.seq == seq]
                return state.releasing(gone).having(sequences=left)
            case _:
                return state

    @property
    def _blank(self) -> tuple[Cell | None, ...]:
        return (None,) * self.geometry.block_size

    def _write(self, state: State, event: Written) -> State:
        """The history grows by the cells, and they go where the believed table says."""
        size = self.geometry.block_size
        old = state.sequences[event.seq]
        cells = old.cells[: event.start] + event.cells
        table = state.table(event.seq, event.place)
        contents = dict(state.contents)
        for position, cell in enumerate(event.cells, start=event.start):
            i = table_index(position, size)
            block = table[i] if i < len(table) else None
            if block is not None:
                held = list(contents.get((event.place, block), self._blank))
                held[position % size] = cell
                contents[event.place, block] = tuple(held)
        sequences = {**state.sequences, event.seq: evolve(old, cells=cells)}
        return state.having(sequences=sequences, contents=contents)

    def reading(self, state: State, seq: int, place: Place = DEVICE) -> tuple[Cell | None, ...]:
        """What the shadow memory holds at each written position of `seq`."""
        size = self.geometry.block_size
        table, written = state.table(seq, place), state.sequences[seq].written
        cells: list[Cell | None] = []
        for block in table[: blocks_for(written, size)]:
            cells += (
                self._blank if block is None else state.contents.get((place, block), self._blank)
            )
        cells += [None] * (written - len(cells))
        return tuple(cells[:written])
