"""The kernel's facts, its totality and purity, where blocks may move, and the contract's sums."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from attrs import evolve, fields
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scopes import (
    RandomChooser,
    allocate,
    append,
    begin,
    end,
    fork,
    free,
    reached,
    scope,
    tables,
    tables_of,
)

from kvimpls.reference import Reference
from kvimpls.unusual import OtherSideCopies, Relocating
from kvspec.contract import (
    Contract,
    Doubling,
    Exact,
    Geometries,
    Granular,
    History,
    Paged,
    Pow2,
    Reservation,
    ToMax,
    Unspecified,
)
from kvspec.driver.target import target
from kvspec.engines.session import Session
from kvspec.geometry import DEVICE, HOST, Geometry, Group, Place
from kvspec.interface import Copy
from kvspec.kernel.operation import Expected, Operation
from kvspec.kernel.outcome import (
    DONE,
    REFUSED,
    Answer,
    Asked,
    Attended,
    Heads,
    Observation,
    Outcome,
    Probe,
)
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Cell, Sequence, State, TableOf, table_of
from kvspec.kernel.step import Change, Step
from kvspec.rooms import CAPABILITIES, specification
from kvspec.rooms.core.operations import Allocate
from kvspec.rooms.lease import LeaseOf, Leases

EVERYTHING = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
"""The same examples in every run: no test here depends on chance or on what was stored."""


# ------------------------------------------------------------------------------ facts


def driven(make: Any, *calls: Any, **contract: Any) -> State:
    """The state that is believed after a real allocator answered `calls`, none of them wrongly."""
    session = Session(make, scope(4, 2, **contract))
    for one in calls:
        assert session.perform(session.spec.operation(one)) == ()
    return session.state


def test_a_state_equals_the_one_written_by_hand():
    """The repr of a state is a test's expected value: all of it are facts, and nothing derived."""
    state = driven(Reference, allocate(0, 3, 5), fork(0, 1), append(1, 1), begin(0, 0), free(0))
    first, second, third = Cell(0, 0, 0), Cell(1, 0, 0), Cell(2, 0, 0)
    own = Cell(3, 1, 2)
    expected = State(
        sequences={1: Sequence(allocated=3, limit=5, length=4, cells=(first, second, third, own))},
        holds={TableOf(1): (0, 2), LeaseOf(0): (0, 1)},
        contents={
            (DEVICE, 0): (first, second),
            (DEVICE, 1): (third, None),
            (DEVICE, 2): (third, own),
        },
        pools={DEVICE: range(4), HOST: range(0)},
        places=(DEVICE,),
        slices={"lease": Leases(open=(0,), ended=())},
        clock=5,
        refused=None,
    )
    assert state == expected
    assert repr(state) == repr(expected)


def test_a_repr_pasted_into_a_test_is_the_state():
    """What a failing test prints can be pasted as the expected value, with nothing to change."""
    state = driven(Reference, allocate(0, 3), begin(0, 0), allocate(1, 9))
    names = {
        kind.__name__: kind
        for kind in (State, Sequence, TableOf, LeaseOf, Leases, Cell, Place, Allocate, range)
    }
    assert state.refused == Allocate(1, 9)
    assert eval(repr(state), {"__builtins__": {}}, names) == state


def test_states_that_differ_in_one_fact_are_not_equal():
    """Equality sees histories, holders, contents, the rooms' facts, time and refusals."""
    state = driven(Reference, allocate(0, 3), begin(0, 0))
    others = [
        evolve(state, sequences={0: evolve(state.sequences[0], length=4)}),
        evolve(state, holds={**state.holds, TableOf(0): (1, 0)}),
        evolve(state, contents={}),
        evolve(state, pools={**state.pools, DEVICE: range(5)}),
        evolve(state, places=(DEVICE, DEVICE)),
        evolve(state, slices={"lease": Leases()}),
        evolve(state, clock=7),
        evolve(state, refused=Allocate(1, 9)),
    ]
    assert all(other != state for other in others)
    assert evolve(state) == state


def test_what_is_derived_is_not_stored():
    """Who uses and who pins a block follows from the holders, whenever it is asked."""
    state = driven(Reference, allocate(0, 3), fork(0, 1), begin(0, 0), free(0))
    occupancy = state.at()
    assert occupancy.users == {0: (TableOf(1),), 1: (TableOf(1),)}
    assert occupancy.pins == {0: (LeaseOf(0),), 1: (LeaseOf(0),)}
    bare = state.releasing([TableOf(1)])
    assert bare.at().users == {}
    assert bare.at().pinned_only == bare.at().held == {0, 1}
    assert bare.releasing([LeaseOf(0)]).at().held == set()


# ------------------------------------------------------------------------------ total and pure

IDS = st.integers(0, 3) | st.sampled_from([-1, 2**31 - 1])
ODD = st.sampled_from([-1, 1.5, "2", None, True, 10**12])
LENGTHS: st.SearchStrategy[Any] = st.integers(0, 7) | ODD
NUMBERS = st.integers(-2, 6) | st.integers()
ENTRIES = st.lists(NUMBERS | st.none(), max_size=5).map(tuple)
PLACES = st.sampled_from([DEVICE, DEVICE, HOST, Place(pool=1)])
TABLES = st.builds(table_of, IDS) | st.builds(table_of, IDS, st.integers(0, 1), PLACES)
CELLS = st.builds(Cell, NUMBERS, NUMBERS, NUMBERS, NUMBERS | st.none())
COPIES = st.lists(st.builds(Copy, NUMBERS, NUMBERS), max_size=3).map(tuple)
ANSWERED: dict[str, st.SearchStrategy[str]] = {
    "admission": st.sampled_from(["OK", "LATER", "NEVER"]),
    "number": st.integers(0, 7).map(str),
    "blocks": st.sets(st.integers(0, 4)).map(lambda ids: " ".join(map(str, sorted(ids)))),
}
"""The values with which calls succeed, by the shape of their answers; the others have none."""


def successes(kind: type[Operation]) -> st.SearchStrategy[Answer]:
    """Any success that a driver may report of a call of one kind."""
    return st.builds(Answer, st.just("done"), ANSWERED.get(kind.answers, st.just("")), COPIES)


def answers_to(kind: type[Operation]) -> st.SearchStrategy[Answer]:
    """Any answer that a driver may report to it; every other time a success."""
    others = st.builds(
        Answer,
        st.sampled_from(["refused", "error", "injected", "raised", "nonsense", "hang"]),
        st.sampled_from(["", "OK", "InvalidLength", "UnknownSequence", "what?", "3", "0 2"]),
        COPIES,
    )
    return successes(kind) | others


HEADS = st.sampled_from([Heads(2, 1, 1, 2, 11), Heads(1, 1, 4, 1, 53), Heads(4, 2, 1, 1, 1)])


@st.composite
def attentions(draw: st.DrawFn) -> Attended:
    """What any attention may give, with any numbers, in the shape of its heads."""
    heads = draw(HEADS)

    def numbers(count: int) -> st.SearchStrategy[tuple[float, ...]]:
        return st.lists(st.floats(), min_size=count, max_size=count).map(tuple)

    queries, outputs = numbers(heads.n_heads * heads.d_k), numbers(heads.n_heads * heads.d_v)
    probes = st.builds(Probe, queries, outputs, NUMBERS)
    return Attended(heads, tuple(draw(st.lists(probes, max_size=2))))


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("seq", "parent", "child"), IDS),
    "seqs": st.lists(IDS, max_size=3).map(tuple),
    "num_tokens": LENGTHS,
    "num_blocks": LENGTHS,
    "limit": st.none() | LENGTHS,
    "tokens": st.lists(st.integers(0, 2), max_size=5).map(tuple),
    "key": st.none() | st.sampled_from(["a", "b"]),
    "lease": st.integers(0, 2),
    "start": st.integers(-1, 9),
    "block": NUMBERS,
}
"""What a call may be given, by the names of its fields."""


def calls_of(kind: type[Operation]) -> st.SearchStrategy[Operation]:
    """Any call of one kind; where it is built of whole numbers only, of small ones."""
    given = {
        f.name: st.integers(0, 9) if f.name == "num_tokens" and f.type is int else FIELDS[f.name]
        for f in fields(kind)
    }
    return st.builds(kind, **given)


def observations(kinds: list[type[Operation]]) -> st.SearchStrategy[Observation]:
    """Whatever may be seen, with any answers to the queries among `kinds`."""
    queries = [kind for kind in kinds if kind.queries]
    asked = st.one_of(st.builds(Asked, calls_of(kind), successes(kind)) for kind in queries)
    return st.builds(
        Observation,
        tables=st.dictionaries(TABLES, ENTRIES, max_size=4),
        free=st.dictionaries(PLACES, NUMBERS, max_size=2),
        readings=st.dictionaries(
            IDS, st.lists(CELLS | st.none(), max_size=5).map(tuple), max_size=3
        ),
        asked=st.lists(asked, max_size=2).map(tuple),
        aliased=st.lists(TABLES, max_size=1).map(tuple),
        oddities=st.lists(st.just("a query answered nonsense"), max_size=1).map(tuple),
        attended=st.dictionaries(IDS, attentions(), max_size=2),
    )


@st.composite
def stories(
    draw: st.DrawFn, specs: st.SearchStrategy[Specification]
) -> tuple[Specification, list[tuple[Operation, Outcome]]]:
    """A specification, some calls of what it claims, and whatever came of them."""
    spec = draw(specs)
    kinds = [kind for room in spec.rooms for kind in room.operations]
    seen, story = observations(kinds), []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(kinds))
        fault = draw(st.none() | st.just("a point"))
        outcome = Outcome(draw(answers_to(kind)), draw(seen), fault)
        story.append((draw(calls_of(kind)), outcome))
    return spec, story


BOUNDED = Geometries(max_tokens="required")
SPECIFICATIONS = st.sampled_from(
    [
        scope(),
        scope(capabilities=CAPABILITIES),
        scope(num_host_blocks=2, window=3, capabilities=CAPABILITIES),
        scope(groups=[Group(2), Group(1, window=2, num_blocks=4)], capabilities=CAPABILITIES),
        scope(window=3, window_release="early", capabilities=CAPABILITIES),
        scope(window=2, window_release="late", capabilities=CAPABILITIES),
        scope(free_counts_cached=False, capabilities=CAPABILITIES),
        scope(relocates=True),
        scope(eager_fork="tail", misuse="callers_duty"),
        scope(eager_fork="all", first_block=1, max_tokens=5),
        scope(reservation=Granular(3)),
        scope(reservation=ToMax(), max_tokens=5, geometries=BOUNDED),
        scope(reservation=Exact()),
        scope(reservation=Pow2()),
        scope(reservation=Doubling()),
        scope(reservation=Unspecified()),
    ]
)


@EVERYTHING
@given(stories(SPECIFICATIONS))
def test_believe_and_judge_are_total(drawn):
    """Whatever an allocator answers and shows, there is a next state, and a verdict."""
    spec, story = drawn
    state = spec.initial()
    for clock, (operation, outcome) in enumerate(story, start=1):
        step = spec.believe(state, operation, outcome)
        for breach in spec.judge(step):
            assert breach.because.endswith(".")
        state = step.after
        assert state.clock == clock
        assert all(past.written <= past.length for past in state.sequences.values())


@EVERYTHING
@given(stories(SPECIFICATIONS))
def test_believe_and_judge_are_pure(drawn):
    """Neither changes the state before nor the outcome, and asked again they say the same."""
    spec, story = drawn
    state = spec.initial()
    for operation, outcome in story:
        before = repr((state, operation, outcome))
        step = spec.believe(state, operation, outcome)
        verdict = spec.judge(step)
        assert repr((state, operation, outcome)) == before
        assert spec.believe(state, operation, outcome) == step
        assert spec.judge(step) == verdict
        state = step.after


@EVERYTHING
@given(stories(st.just(scope())))
def test_believe_takes_an_observation_as_true(drawn):
    """A table that was seen is the believed one, and one that was not looked at is as before."""
    spec, story = drawn
    state = spec.initial()
    for operation, outcome in story:
        step = spec.believe(state, operation, outcome)
        seen = outcome.observation.tables
        for table in seen.keys() | tables_of(state).keys():
            if table.seq not in step.after.sequences:
                assert step.after.entries(table) == ()
            elif table in seen:
                assert step.after.entries(table) == seen[table]
            elif table.seq in state.sequences:
                assert step.after.entries(table) == state.entries(table)
        state = step.after


@EVERYTHING
@given(stories(st.just(scope())))
def test_what_did_not_succeed_changes_no_history(drawn):
    """After a refusal or an error the sequences, their lengths and the leases are as before."""
    spec, story = drawn
    state = spec.initial()
    for operation, outcome in story:
        step = spec.believe(state, operation, outcome)
        if outcome.answer.kind != "done" or step.expected.errors or outcome.fault is not None:
            assert not step.done
            assert step.after.sequences == state.sequences
            assert step.after.slices == state.slices
        state = step.after


@pytest.mark.parametrize(
    ("errors", "done", "refused", "allowed"),
    [
        (set(), True, False, {"done"}),
        (set(), False, True, {"refused"}),
        (set(), True, True, {"done", "refused"}),
        ({"InvalidLength"}, False, False, {"InvalidLength"}),
        (
            {"InvalidLength", "UnknownSequence"},
            False,
            True,
            {"InvalidLength", "UnknownSequence", "refused"},
        ),
    ],
)
def test_what_is_expected_says_which_answers_are_allowed(errors, done, refused, allowed):
    """Of all answers, those are allowed that are named, and never one outside the interface."""
    expected = Expected(errors=frozenset(errors), done=done, refused=refused)
    names = ("InvalidLength", "UnknownSequence", "SequenceExists", "UnknownLease")
    answers = {"done": DONE, "refused": REFUSED} | {n: Answer("error", n) for n in names}
    answers |= {kind: Answer(kind, "x") for kind in ("raised", "nonsense", "hang")}
    assert {name for name, answer in answers.items() if expected.allows(answer)} == allowed


# ------------------------------------------------------------------------------ moves


def step_to(
    spec: Specification,
    state: State,
    one: Any,
    shown: dict[int, tuple[int, ...]],
    *copies: tuple[int, int],
    count: int | None = None,
) -> Step:
    """The step in which the call `one` succeeds and shows these tables."""
    answer = Answer("done", copies=tuple(Copy(*copy) for copy in copies))
    seen = Observation(tables(shown), {} if count is None else {DEVICE: count})
    return spec.believe(state, spec.operation(one), Outcome(answer, seen))


def broken(step: Step) -> list[str]:
    """The laws that the step breaks."""
    return [breach.law for breach in step.spec.judge(step)]


STRICT, COMPACTING = scope(5), scope(5, relocates=True)


def test_a_block_moves_with_every_entry_that_holds_it():
    """Where blocks may move, a shared one goes to one place, and `origin` tells where."""
    state = reached(STRICT, allocate(0, 4), fork(0, 1), allocate(2, 2))
    assert tables_of(state) == tables({0: (0, 1), 1: (0, 1), 2: (2,)})
    moved = {0: (0, 4), 1: (0, 4), 2: (2,)}
    step = step_to(COMPACTING, state, append(2, 0), moved, (1, 4), count=2)
    assert step.moves == {1: 4}
    assert step.origin((0, 1, None, 2)) == (0, 4, None, 2)
    assert step.changes == (Change(TableOf(0), 1, 1, 4), Change(TableOf(1), 1, 1, 4))
    assert step.unjustified == ()
    assert step.taken == ()
    assert broken(step) == []
    assert set(broken(step_to(STRICT, state, append(2, 0), moved, (1, 4)))) >= {"frame"}


def test_two_blocks_may_change_places():
    """Where blocks may move, a swap through a free one is right, with its copies in their order."""
    state = reached(STRICT, allocate(0, 2), allocate(1, 2))
    swapped = {0: (1,), 1: (0,)}
    step = step_to(COMPACTING, state, append(0, 0), swapped, (0, 4), (1, 0), (4, 1), count=3)
    assert step.moves == {0: 1, 1: 0}
    assert broken(step) == []
    assert broken(step_to(COMPACTING, state, append(0, 0), swapped, (0, 1), (1, 0))) == [
        "read-back"
    ]
    assert broken(step_to(COMPACTING, state, append(0, 0), swapped)) == ["read-back"]


def test_a_shared_block_that_goes_to_two_places_did_not_move():
    """Where blocks may move, sequences that shared one still share it, or the frame is broken."""
    state = reached(STRICT, allocate(0, 2), fork(0, 1), allocate(2, 2))
    apart = {0: (3,), 1: (4,), 2: (1,)}
    step = step_to(COMPACTING, state, append(2, 0), apart, (0, 3), (0, 4))
    assert step.moves == {}
    assert "frame" in broken(step)
    halfway = step_to(COMPACTING, state, append(2, 0), {0: (3,), 1: (0,), 2: (1,)}, (0, 3))
    assert "frame" in broken(halfway)


def test_two_blocks_that_go_to_one_place_did_not_move():
    """Where blocks may move, two of them do not become one."""
    state = reached(STRICT, allocate(0, 2), allocate(1, 2), allocate(2, 2))
    step = step_to(COMPACTING, state, append(2, 0), {0: (4,), 1: (4,), 2: (2,)}, (0, 4))
    assert step.moves == {}
    assert {"no-overlap", "frame"} <= set(broken(step))


def test_a_move_into_a_leased_block_is_reuse():
    """Where blocks may move, none moves to a block that is still in flight."""
    state = reached(STRICT, allocate(0, 2), begin(0, 0), free(0), allocate(1, 2))
    assert tables_of(state) == tables({1: (1,)})
    step = step_to(COMPACTING, state, append(1, 0), {1: (0,)}, (1, 0))
    assert broken(step) == ["in-flight"]
    ended = COMPACTING.believe(state, STRICT.operation(end(0)), Outcome(DONE)).after
    assert broken(step_to(COMPACTING, ended, append(1, 0), {1: (0,)}, (1, 0))) == []


def test_a_block_in_flight_is_no_scratch_space_for_moves():
    """Where blocks may move, none is copied over a block in flight, though it is in no table."""
    state = reached(STRICT, allocate(0, 2), begin(0, 0), free(0), allocate(1, 2), allocate(2, 2))
    assert tables_of(state) == tables({1: (1,), 2: (2,)})
    swapped = {1: (2,), 2: (1,)}
    through_free = step_to(COMPACTING, state, append(1, 0), swapped, (1, 4), (2, 1), (4, 2))
    assert broken(through_free) == []
    through_leased = step_to(COMPACTING, state, append(1, 0), swapped, (1, 0), (2, 1), (0, 2))
    assert broken(through_leased) == ["in-flight"]


def test_growing_and_moving_at_once_takes_only_what_is_new():
    """A block that moved was the sequence's before; only what it grew by was taken."""
    state = reached(STRICT, allocate(0, 2), allocate(1, 2))
    step = step_to(COMPACTING, state, append(1, 1), {0: (0,), 1: (4, 1)}, (1, 4), count=2)
    assert step.moves == {1: 4}
    assert step.taken == ((TableOf(1), 1, 1),)
    assert set(step.entered) == {(TableOf(1), 4), (TableOf(1), 1)}
    assert broken(step) == []


class Restless(Relocating):
    """Moves about half of the blocks, to any that are free, in whatever succeeds."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self._random = Random(0)

    def _answer(self, copies: list[Copy]) -> list[Copy]:
        for block in sorted({b for s in self._sequences.values() for b in s.blocks}):
            if self._free and self._random.randrange(2) and not self._leased(block):
                to = self._random.choice(self._free)
                self._move(block, to)
                copies = [*copies, Copy(block, to)]
        return copies


class RestlessOtherSide(Restless, OtherSideCopies):
    """The same, and the one that writes into a shared block keeps it until it moves."""


def bystanders_changed(make: Any, spec: Specification, seeds: range) -> int:
    """In how many steps of random calls, none of them a breach, a bystander's table changed."""
    changed = 0
    for seed in seeds:
        chooser, session = RandomChooser(seed), Session(make, spec)
        for _ in range(40):
            operation = chooser.operation(spec, session.state)
            before = tables_of(session.state)
            assert session.perform(operation) == (), session.trace
            after = tables_of(session.state)
            others = {t for t in before.keys() & after.keys() if t.seq not in operation.touched}
            changed += any(before[table] != after[table] for table in others)
    return changed


@pytest.mark.parametrize("make", [Relocating, Restless, RestlessOtherSide])
@pytest.mark.parametrize("num_blocks", [3, 6, 9])
def test_a_relocating_allocator_breaks_nothing_over_random_calls(make, num_blocks):
    """Moves of shared and growing sequences are right, in the step of a write as in any other."""
    spec = target(make).specification(Geometry(num_blocks, 2))
    changed = bystanders_changed(make, spec, range(24))
    assert changed > (0 if make is Relocating else 45)


@pytest.mark.parametrize("make", [Relocating, OtherSideCopies, Reference])
def test_a_contract_that_relocates_accepts_who_does_not(make):
    """To be allowed to move blocks is no duty: whoever leaves them is right as well."""
    changed = bystanders_changed(make, scope(6, relocates=True), range(8))
    assert (changed > 0) == (make is not Reference)


# ------------------------------------------------------------------------------ who gets the copy


def test_the_other_side_may_get_the_copy():
    """The writer stays in the shared block, if all the others move to the copy together."""
    state = reached(STRICT, allocate(0, 1), fork(0, 1), fork(0, 2))
    step = step_to(STRICT, state, append(1, 1), {0: (3,), 1: (0,), 2: (3,)}, (0, 3), count=3)
    assert step.moves == {0: 3}
    assert step.unjustified == ()
    assert broken(step) == []


def test_the_others_read_on_in_the_copy_and_the_writer_where_it_was():
    """After the other side got the copy, each reads what it wrote, and the copy made it so."""
    state = reached(STRICT, allocate(0, 1), fork(0, 1))
    moved = {0: (3,), 1: (0,)}
    step = step_to(STRICT, state, append(1, 1), moved, (0, 3))
    first, second = Cell(0, 0, 0), Cell(1, 1, 2)
    assert STRICT.reading(step.after, TableOf(0)) == (first,)
    assert STRICT.reading(step.after, TableOf(1)) == (first, second)
    assert broken(step_to(STRICT, state, append(1, 1), moved)) == ["read-back"]


@pytest.mark.parametrize(
    ("tables", "law"),
    [
        ({0: (3,), 1: (0,), 2: (0,)}, "copy-on-write"),  # one of the others was left behind
        ({0: (3,), 1: (0,), 2: (4,)}, "frame"),  # each of the others got one
        ({0: (3,), 1: (4,), 2: (3,)}, "frame"),  # all moved, and the old block is lost
        ({0: (3,), 1: (4,), 2: (0,)}, "frame"),  # the writer got one, and a bystander too
    ],
)
def test_no_other_way_of_parting_is_right(tables, law):
    """Either the writer moves alone, or all the others move to one block."""
    state = reached(STRICT, allocate(0, 1), fork(0, 1), fork(0, 2))
    copies = [(0, block) for (block,) in tables.values() if block]
    assert law in broken(step_to(STRICT, state, append(1, 1), tables, *copies))


def test_an_allocator_whose_other_side_copies_breaks_nothing_over_random_calls():
    """Both properties hold in a run: nothing is broken, though bystanders' tables change."""
    assert bystanders_changed(OtherSideCopies, scope(6, 3), range(20)) > 5


# ------------------------------------------------------------------------------ the contract


@st.composite
def reservations(draw: Any) -> Reservation:
    """Any kind of reservation."""
    kinds = [Paged(), ToMax(), Exact(), Pow2(), Doubling(), Unspecified()]
    return draw(st.sampled_from(kinds) | st.builds(Granular, st.integers(1, 9)))


@st.composite
def histories(draw: Any) -> tuple[Reservation, int, list[History]]:
    """A reservation, a block size, and the life of one sequence that keeps to its bounds.

    Each history holds what was reserved before: anything from the need to the bound.
    """
    reservation, size = draw(reservations()), draw(st.integers(1, 8))
    least = 1 if isinstance(reservation, ToMax) else 0
    most = draw(st.integers(1, 50) if least else st.none() | st.integers(1, 50))
    limit = draw(st.none() | st.integers(0, 50 if most is None else most))
    bound = min(n for n in (limit, most, 60) if n is not None)
    allocated = length = draw(st.integers(0, bound))
    reserved, life = 0, []
    for _ in range(draw(st.integers(1, 5))):
        past = History(allocated, limit, length, reserved, most)
        life.append(past)
        need = reservation.need(past, size)
        waste = reservation.waste_bound(past, size)
        spare = 3 if waste is None else (waste + length) // size - need
        reserved = (need + draw(st.integers(0, max(0, spare)))) * size
        length = draw(st.integers(length, bound))
    return reservation, size, life


@EVERYTHING
@given(histories())
def test_what_is_needed_is_enough_and_within_the_bound(drawn):
    """The blocks that a reservation needs hold the length, and waste no more than its bound."""
    reservation, size, life = drawn
    for past in life:
        waste = reservation.need(past, size) * size - past.length
        assert waste >= 0
        bound = reservation.waste_bound(past, size)
        assert (bound is None) == isinstance(reservation, Unspecified)
        assert bound is None or waste <= bound


@EVERYTHING
@given(histories())
def test_a_growing_sequence_never_needs_fewer_blocks(drawn):
    """An append takes blocks and gives none back, under every reservation."""
    reservation, size, life = drawn
    needs = [reservation.need(past, size) for past in life]
    assert needs == sorted(needs)


@EVERYTHING
@given(reservations(), st.integers(1, 8), st.none() | st.integers(1, 50))
def test_a_sequence_that_never_had_a_token_needs_no_block(reservation, size, limit):
    """Zero tokens take no block, whatever is announced."""
    assert reservation.need(History(0, limit, 0, 0, 50), size) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_a_paged_reservation_wastes_less_than_a_block(size):
    """The strict bound is one slot less than a block, and some length attains it."""
    wastes = []
    for length in range(4 * size):
        past = History(length, None, length, 0, None)
        wastes.append(Paged().need(past, size) * size - length)
        assert Paged().waste_bound(past, size) == size - 1
    assert max(wastes) == size - 1


@pytest.mark.parametrize(
    ("kind", "past", "blocks"),
    [
        (
            Granular(6),
            History(7, None, 7, 0, None),
            6,
        ),  # two granules of 6 tokens, of 3 blocks each
        (Granular(3), History(4, None, 4, 0, None), 4),  # a granule is rounded up to 2 whole blocks
        (ToMax(), History(1, None, 1, 0, 9), 5),
        (Exact(), History(1, 7, 2, 0, None), 4),
        (Exact(), History(1, None, 2, 0, None), 1),
        (Pow2(), History(3, 8, 3, 0, None), 6),  # 3 of the prompt and 8 for an output of 5
        (Pow2(), History(3, None, 5, 0, None), 4),
        (Doubling(), History(3, None, 5, 4, None), 3),
        (Doubling(), History(3, None, 5, 12, None), 6),
    ],
)
def test_a_reservation_needs_what_its_policy_says(kind, past, blocks):
    """By example, in blocks of 2 tokens."""
    assert kind.need(past, 2) == blocks


IMPOSSIBLE: dict[str, Any] = {
    "first_block must be at least 0, not -1": lambda: Contract(first_block=-1),
    "needs geometries that have one": lambda: Contract(reservation=ToMax()),
    "at least 1 token, not 0": lambda: Granular(0),
    "at least 1 token, not 1.5": lambda: Granular(1.5),
    "min_blocks must be at least 1, not 0": lambda: Geometries(min_blocks=0),
    "no geometry has between 5 and 3 blocks": lambda: Geometries(min_blocks=5, max_blocks=3),
    r"block_sizes must be a tuple of at least 1, not \(\)": lambda: Geometries(block_sizes=()),
    "block_sizes must be at least 1, not 0": lambda: Geometries(block_sizes=(4, 0)),
}


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_an_impossible_contract_is_refused_in_clear_words(text):
    """What no allocator can keep is a `ValueError` that names the field and what it was."""
    with pytest.raises(ValueError, match=text):
        IMPOSSIBLE[text]()


def unspecified() -> Iterator[tuple[str, Geometry, Contract, tuple[str, ...]]]:
    """What no room specifies, or the contract excludes, with the text that says so."""
    small, strict = Geometry(4, 2), Contract()
    yield "must include core", small, strict, ("sharing",)
    yield "not windows", small, strict, ("core", "windows")
    few = Contract(geometries=Geometries(max_blocks=3))
    yield "the contract excludes Geometry", small, few, ("core",)
    yield "the contract excludes Geometry", small, Contract(geometries=BOUNDED), ("core",)
    yield "asks for window", Geometry(4, 2, window=4), strict, ("core",)
    yield "asks for groups", Geometry(4, 2, groups=[Group(2)]), strict, ("core",)


@pytest.mark.parametrize(("text", "geometry", "contract", "capabilities"), [*unspecified()])
def test_there_is_no_specification_of_what_no_room_specifies(
    text, geometry, contract, capabilities
):
    """A pool or a claim that cannot be judged is refused, and not judged by half."""
    with pytest.raises(ValueError, match=text):
        specification(geometry, contract, capabilities)
