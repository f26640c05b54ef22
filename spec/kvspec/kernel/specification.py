"""The specification: a relation between operations and outcomes, composed from rooms.

`believe` is total: it takes what was observed as true and gives the next state. `judge` then
asks every law, each an independent predicate over the step.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import cast

from attrs import evolve, frozen

from kvspec.geometry import HOST, Place
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.derived import derived
from kvspec.kernel.events import Copied, Event, Settled, TableSeen
from kvspec.kernel.fold import fold, reading
from kvspec.kernel.generation import WRONG_CALL
from kvspec.kernel.law import Breach, Law
from kvspec.kernel.operation import Expected, Operation, expect
from kvspec.kernel.outcome import REFUSED, Answer, Look, Observation, Outcome
from kvspec.kernel.room import Proposal, Reaction, Room
from kvspec.kernel.script import Call
from kvspec.kernel.sizes import Sizes
from kvspec.kernel.state import Cell, Entries, State, TableOf, table_of
from kvspec.kernel.step import Step

_NO_ERRORS: frozenset[str] = frozenset()


def _always(state: State, spec: "Specification") -> bool:
    return True


def _wrong_call(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return chooser.pick([wrong for room in spec.rooms for wrong in room.wrong(state, spec)])


_WRONG_CALL = Proposal(WRONG_CALL, _always, _wrong_call, weight=3)


@frozen(eq=False, slots=False)
class Specification(Sizes):
    """What an allocator with this geometry and contract must do, in the capabilities of `rooms`.

    `laws` is in the published order: the first broken one is the one that is reported.
    `kinds` are all kinds of operations, by method. With `shortcuts`, what a step cannot have
    touched is not looked at again, since it held before: `agrees` says that it comes to the same.
    """

    rooms: tuple[Room, ...]
    laws: tuple[Law, ...]
    kinds: Mapping[str, type[Operation]]
    shortcuts: bool = True

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

    def claims(self, capability: str) -> bool:
        """Whether the room of `capability` is one of these."""
        return any(room.capability == capability for room in self.rooms)

    @derived
    def shadowed(self) -> bool:
        """Whether contents are judged in the suite's shadow memory, for want of a store."""
        return not self.claims("store")

    # ------------------------------------------------------------------ the relation

    def guards(self, state: State, operation: Operation) -> frozenset[str]:
        """The errors that rooms add to `operation`, whichever room it is from."""
        errors = _NO_ERRORS
        for guard in self._guards:
            errors = errors | guard(state, operation)
        return errors

    @derived
    def _guards(self) -> tuple[Callable[[State, Operation], frozenset[str]], ...]:
        return tuple(room.guard for room in self.rooms if room.guard is not None)

    def expect(self, state: State, operation: Operation) -> Expected:
        """What the answer to `operation` may be."""
        # The driver asks it, then `believe`, and then every perturbation: always of the same two.
        known = self.__dict__.get("_expected")
        if known is not None and known[0] is state and known[1] is operation:
            expected: Expected = known[2]
            return expected
        expected = expect(operation, state, self)
        if self.shortcuts:
            self.__dict__["_expected"] = (state, operation, expected)
        return expected

    def foreseen(self, state: State, operation: Operation, answer: Answer) -> State:
        """The state after what the caller wrote first and the history of a success, unseen yet."""
        if self.expect(state, operation).errors:
            return state
        return self._begun(state, operation, answer.kind == "done", answer)[1]

    def _begun(
        self, state: State, operation: Operation, done: bool, answer: Answer
    ) -> tuple[list[Event], State]:
        """The events before the tables are looked at, and the state after them."""
        known = self.__dict__.get("_last_begun")
        if known is not None:
            same = known[0] is state and known[1] is operation and known[2] is answer
            if same and known[3] == done:
                return cast("tuple[list[Event], State]", known[4])
        # What is written first stays in any case.
        events: list[Event] = []
        if operation.writes_first:
            events += operation.all_writes(state, self)
        if done:
            events += operation.history(state, self, answer)
        after = state
        for event in events:
            after = self._fold(after, event)
        if self.shortcuts:
            self.__dict__["_last_begun"] = (state, operation, answer, done, (events, after))
        return events, after

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

    def tables(self, seq: int, state: State) -> tuple[tuple[TableOf, str, tuple[int, ...]], ...]:
        """The tables of `seq` that can be looked at: each with the method and its arguments."""
        known = self._tables.get(seq)
        if known is None:
            known = self._tables[seq] = tuple(self._tables_of(seq, state))
        return known

    @derived
    def _tables(self) -> dict[int, tuple[tuple[TableOf, str, tuple[int, ...]], ...]]:
        return {}

    def _tables_of(self, seq: int, state: State) -> Iterator[tuple[TableOf, str, tuple[int, ...]]]:
        grouped = self.geometry.groups is not None
        for tier, (method, _) in self._views:
            if tier == "device":
                for group, place in enumerate(state.places):
                    yield table_of(seq, group, place), method, (seq, group) if grouped else (seq,)
            else:
                yield table_of(seq, 0, Place(tier)), method, (seq,)

    @derived
    def counts(self) -> tuple[tuple[Place, str, tuple[int, ...]], ...]:
        """The places whose free blocks the allocator counts, each with the method to ask it."""
        grouped = self.geometry.groups is not None
        return tuple(
            (place, method, (place.pool,) if grouped else ())
            for tier, (_, method) in self._views
            for place in self.initial().pools
            if place.tier == tier
        )

    @derived
    def _views(self) -> tuple[tuple[str, tuple[str, str]], ...]:
        return tuple(view for room in self.rooms for view in room.views.items())

    def cells(self, state: State, seq: int, start: int, stop: int) -> tuple[Cell, ...]:
        """What the caller writes into the slots of `seq` from `start` to `stop`."""
        # No more than it was long already and the pool holds: an allocator that grants an absurd
        # length breaks a law, and must not make the caller write for ever.
        had = state.sequences[seq].length if seq in state.sequences else 0
        stop = min(stop, had + self.most_tokens)
        known: tuple[int, ...] = ()
        for knowing in self._knowing:
            known = known or knowing(state, seq)
        clock, told = state.clock, len(known)
        return tuple(
            [Cell(p, seq, clock, known[p] if p < told else None) for p in range(start, stop)]
        )

    @derived
    def _knowing(self) -> tuple[Callable[[State, int], tuple[int, ...]], ...]:
        return tuple(room.known for room in self.rooms if room.known is not None)

    def queries(self, state: State) -> Iterator[Operation]:
        """What the rooms have asked in a full look, beside tables and counts."""
        for asking in self._asking:
            yield from asking(state, self)

    @derived
    def _asking(self) -> tuple[Callable[[State, "Specification"], Sequence[Operation]], ...]:
        return tuple(room.queries for room in self.rooms if room.queries is not None)

    def believe(self, state: State, operation: Operation, outcome: Outcome) -> Step:
        """The step that `outcome` makes, taken as true whatever it says."""
        expected, answer = self.expect(state, operation), outcome.answer
        if outcome.fault is not None:
            expected = evolve(expected, injected=True)
        done = answer.kind == "done" and not (expected.errors or expected.injected)
        begun: tuple[list[Event], State] = ([], state)
        if not expected.errors:
            begun = self._begun(state, operation, done, answer)
        events: list[Event] = []
        seen_before = begun[1].holds
        for table, entries in outcome.observation.tables.items():
            if not (self.shortcuts and seen_before.get(table, ()) == entries):
                events.append(TableSeen(table, entries))
        if answer.copies:
            source, to = operation.tiers
            for copy in answer.copies:
                places = state.place_of(source, copy[0]), state.place_of(to, copy[1])
                events.append(Copied(*copy, *places))
        if done:
            events += operation.effects(state, self, answer)
        events.append(Settled(state))
        after = self._folded(begun[1], operation, events)
        # Only the first refusal is worth repeating: what was refused twice is known.
        refused = answer.kind == "refused" and state.refused != operation
        after = after.after_call(operation if refused else None)
        return Step(self, state, operation, outcome, expected, after, (*begun[0], *events))

    def judge(self, step: Step) -> tuple[Breach, ...]:
        """All laws that `step` breaks, in the published order, with the reasons."""
        broken = []
        for law in step.relevant:
            because = law.broken(step)
            if because is not None:
                broken.append(Breach(law.id, because))
        return tuple(broken)

    @derived
    def judged(self) -> tuple[Law, ...]:
        """The laws that claim something under this contract."""
        return tuple(law for law in self.laws if not law.idle(self.contract))

    def agrees(self, step: Step, breaches: tuple[Breach, ...]) -> bool:
        """Whether `step` and its judgement come out the same without any shortcut."""
        again = self._longhand.believe(step.before.bare(), step.operation, step.outcome)
        return again.after == step.after and self._longhand.judge(again) == breaches

    @derived
    def _longhand(self) -> "Specification":
        return evolve(self, shortcuts=False)

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
                kept = self.slid(state, table, operation.added(seq))
                if kept != state.entries(table):
                    state = state.holding(table, kept)
        return state

    def slid(self, state: State, table: TableOf, added: int) -> Entries:
        """The entries of a table once an append of `added` tokens let go of those released."""
        entries, length = state.entries(table), state.sequences[table.seq].length
        gone = min(self.released(length, added, table.group), len(entries))
        return (*[None] * gone, *entries[gone:])

    def observed(self, state: State) -> Observation:
        """What a full look at an allocator in `state` shows."""
        # `choices` asks for every operation in a state.
        known = self.__dict__.get("_last_observed")
        if known is not None and known[0] is state:
            return cast("Observation", known[1])
        observation = Observation(
            tables={
                table: state.entries(table)
                for seq in state.sequences
                for table, _, _ in self.tables(seq, state)
            },
            free={place: self.free_counts(state, place)[-1] for place, _, _ in self.counts},
        )
        if self.shortcuts:
            self.__dict__["_last_observed"] = (state, observation)
        return observation

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

    def _folded(self, state: State, operation: Operation, events: list[Event]) -> State:
        """The state after all of these, which are those of one operation."""
        # A choice is completed to a full look, and then believed once more.
        known = self.__dict__.get("_last_folded", (None, None, None, None))
        if known[0] is state and known[1] is operation and known[2] == events:
            return cast("State", known[3])
        after = state
        for event in events:
            after = self._fold(after, event)
        if self.shortcuts:
            self.__dict__["_last_folded"] = (state, operation, events, after)
        return after

    def _fold(self, state: State, event: Event) -> State:
        state = fold(state, event, self.layout)
        for reaction in self._reactions.get(type(event), ()):
            state = reaction(state, event, self)
        return state

    @derived
    def _reactions(self) -> Mapping[type[Event], list[Reaction]]:
        found: dict[type[Event], list[Reaction]] = {}
        for room in self.rooms:
            for kind, reaction in room.reactions.items():
                found.setdefault(kind, []).append(reaction)
        return found

    def reading(self, state: State, table: TableOf) -> tuple[Cell | None, ...]:
        """What the shadow memory holds at each written position of a table's sequence."""
        return reading(state, table, state.sequences[table.seq].written, self.layout)
