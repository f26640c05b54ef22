"""The reducer: what it may do to a trace, what it must not, and what it leaves."""

import itertools
from typing import ClassVar

import pytest
from attrs import evolve

from kvimpls.museum import (
    EXHIBITS,
    CountNotDecremented,
    DoubleHandOut,
    FirstLeaseReleases,
    HalfDoneAppend,
    LeakOnRefusal,
    OffByOneAtBoundary,
    ReuseWhileLeased,
)
from kvimpls.museum.lease import SearchesTooEarlyUnpromised
from kvimpls.museum.placement import ScatteredExtents
from kvimpls.museum.resize import ShrinksUnderTheTables
from kvimpls.reference import Reference, StoredReference
from kvspec import (
    AllocatorError,
    Contract,
    Geometries,
    Geometry,
    InvalidLength,
    OutOfBlocks,
    UnsupportedGeometry,
)
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import target
from kvspec.engines.replay import run
from kvspec.engines.session import Session
from kvspec.kernel.generation import HUGE, LAST_ID
from kvspec.kernel.names import call_text
from kvspec.kernel.outcome import FULL, TOUCHED
from kvspec.kernel.script import call
from kvspec.rooms import OPERATIONS
from kvspec.rooms.store import WriteOutside
from kvspec.suite.check import REPLAYS, check_allocator, explain
from kvspec.suite.report import ExitCode
from kvspec.traces.cases import Case, size
from kvspec.traces.moves import moves
from kvspec.traces.reduce import Reducer
from kvspec.traces.table import as_text
from kvspec.traces.trace import TraceStep, to_json

UNCOUNTED = ("core", "sharing", "reservation", "admission", "lease")
"""Without introspection, in which a wrong count shows before a block is lost by it."""

exhibits = pytest.mark.parametrize("exhibit", EXHIBITS, ids=[kind.__name__ for kind in EXHIBITS])


def told(make, *calls, pool=None, look=FULL, claims=None):
    """The trace of a story, which must end with a broken law and not before."""
    contract = None if claims is None else Contract(capabilities=claims)
    spec = target(make, contract=contract).specification(pool or Geometry(4, 2))
    session = Session(make, spec)
    for made in calls:
        assert not session.breaches, session.breaches
        session.perform(spec.operation(made), look)
    assert session.breaches
    return session.trace


def story(trace):
    """The calls of a trace as they are shown."""
    return [call_text(step.operation) for step in trace.steps]


def measured(trace):
    """The size that the moves lower."""
    return size(Case(trace.geometry, trace.steps))


# ------------------------------------------------------------------------------ what it is


@exhibits
def test_the_same_trace_is_always_reduced_to_the_same(exhibit, by_machine):
    """Two reductions of one trace agree to the last byte of their JSON."""
    violation, _, _ = by_machine(exhibit, 1)
    first, second = (Reducer(exhibit).reduce(violation) for _ in range(2))
    assert to_json(first) == to_json(second)


@exhibits
def test_a_reduced_trace_breaks_the_same_laws_again(exhibit, by_machine):
    """Every replay of the result ends in the same breaches, with the same reasons."""
    violation, _, _ = by_machine(exhibit, 1)
    reduced = Reducer(exhibit).reduce(violation)
    count, again = Reducer(exhibit).reproduce(reduced, REPLAYS)
    assert count == REPLAYS
    assert again.breaches == reduced.breaches
    assert reduced.law == violation.law


@exhibits
def test_every_accepted_move_makes_the_trace_smaller(exhibit, by_machine):
    """From the violation to the last, each trace is smaller than the one before."""
    trace, _, _ = by_machine(exhibit, 2)
    reducer, sizes = Reducer(exhibit), []
    while trace is not None:
        sizes.append(measured(trace))
        trace = reducer.improve(trace)
    assert all(later < earlier for earlier, later in itertools.pairwise(sizes))


@exhibits
def test_no_move_adds_a_step_nor_a_block_that_saves_none(exhibit, by_machine):
    """Whatever a move does to names and lengths: a larger pool has to leave out a step."""
    violation, _, _ = by_machine(exhibit, 2)
    case = Case(violation.geometry, violation.steps[-12:])
    for move in moves(case):
        assert len(move.steps) <= len(case.steps)
        if len(move.steps) == len(case.steps):
            assert move.geometry.num_blocks <= case.geometry.num_blocks
        assert move.geometry.block_size <= case.geometry.block_size


def test_minimal_means_that_no_move_helps():
    """A trace that a move still makes smaller is not minimal; the reduced one is."""
    trace = told(LeakOnRefusal, call("allocate", seq=0, num_tokens=9))
    assert not Reducer(LeakOnRefusal).is_minimal(trace)
    assert Reducer(LeakOnRefusal).is_minimal(Reducer(LeakOnRefusal).reduce(trace))


# ------------------------------------------------------------------------------ the story


class KnowsMisuse(DoubleHandOut):
    """Counts the wrong calls that it gets, over all instances."""

    wrong: ClassVar[list[str]] = []

    def free(self, seq):
        """As ever, and an error is noted."""
        return self._noting(super().free, seq)

    def append(self, seq, num_tokens):
        """As ever, and an error is noted."""
        return self._noting(super().append, seq, num_tokens)

    def fork(self, parent, child):
        """As ever, and an error is noted."""
        return self._noting(super().fork, parent, child)

    def allocate(self, seq, num_tokens, *, limit=None):
        """As ever, and an error is noted."""
        return self._noting(super().allocate, seq, num_tokens)

    def _noting(self, method, *arguments):
        try:
            return method(*arguments)
        except OutOfBlocks:
            raise
        except AllocatorError as error:
            self.wrong.append(f"{method.__name__}{arguments}: {error!r}")
            raise


def test_a_call_whose_subject_vanished_is_dropped_and_not_made():
    """Of a story without wrong calls, no candidate makes one."""
    trace = told(
        KnowsMisuse,
        call("allocate", seq=2, num_tokens=1),
        call("append", seq=2, num_tokens=1),
        call("allocate", seq=0, num_tokens=2),
        call("append", seq=2, num_tokens=2),
        call("fork", parent=2, child=3),
        call("free", seq=0),
        call("append", seq=3, num_tokens=1),
        call("free", seq=3),
    )
    KnowsMisuse.wrong.clear()
    reduced = Reducer(KnowsMisuse).reduce(trace)
    assert story(reduced) == ["allocate(A, 1)", "fork(A, B)", "free(A)"]
    assert KnowsMisuse.wrong == []


class FreesTheUnknown(Reference):
    """Takes the freeing of an unknown sequence for freeing nothing."""

    def free(self, seq):
        """End `seq`, if there is one."""
        return super().free(seq) if seq in self._sequences else []


def test_a_call_that_was_meant_to_be_wrong_stays():
    """Misuse is reduced like anything else: the wrong call is all that is left."""
    trace = told(
        FreesTheUnknown,
        call("allocate", seq=1, num_tokens=3),
        call("append", seq=1, num_tokens=2),
        call("free", seq=7),
    )
    reduced = Reducer(FreesTheUnknown).reduce(trace)
    assert reduced.law == "misuse"
    assert story(reduced) == ["free(A)"]
    assert reduced.steps[0].wrong


def test_sequences_are_named_in_order_and_leases_from_zero():
    """Whatever ids a story had, the reduced one speaks of A, B, C and of #0, #1."""
    trace = told(
        FirstLeaseReleases,
        call("allocate", seq=9, num_tokens=1),
        call("allocate", seq=LAST_ID, num_tokens=3),
        call("begin_transfer", seq=LAST_ID, lease=7),
        call("begin_transfer", seq=LAST_ID, lease=4),
        call("free", seq=LAST_ID),
        call("end_transfer", lease=4),
    )
    assert story(Reducer(FirstLeaseReleases).reduce(trace)) == [
        "allocate(A, 1)",
        "begin_transfer(A, #0)",
        "begin_transfer(A, #1)",
        "free(A)",
        "end_transfer(#0)",
    ]


class LosesTheLast(Reference):
    """A block is lost with the sequence that has the largest id there is."""

    def free(self, seq):
        """End `seq`, with a loss if it is the last."""
        answer = super().free(seq)
        if seq == LAST_ID:
            self._free.pop()
        return answer


def test_an_id_that_matters_is_kept():
    """Where the fault is in the id, it is not renamed, and nobody tries all the ids below it."""
    trace = told(
        LosesTheLast,
        call("allocate", seq=3, num_tokens=1),
        call("allocate", seq=LAST_ID, num_tokens=1),
        call("free", seq=3),
        call("free", seq=LAST_ID),
    )
    reduced = Reducer(LosesTheLast).reduce(trace)
    assert story(reduced) == [f"allocate(s{LAST_ID}, 0)", f"free(s{LAST_ID})"]


def test_one_name_never_stands_for_two_leases():
    """A name given twice would end up as a fault of the story: the second is not begun."""
    trace = told(
        CountNotDecremented,
        call("allocate", seq=0, num_tokens=2),
        call("begin_transfer", seq=0, lease=0),
        call("fork", parent=0, child=1),
        call("free", seq=0),
        call("begin_transfer", seq=1, lease=1),
        call("end_transfer", lease=1),
        call("free", seq=1),
        call("end_transfer", lease=0),
        claims=UNCOUNTED,
    )
    confused = evolve(
        trace,
        steps=tuple(
            evolve(step, operation=evolve(step.operation, lease=0))
            if hasattr(step.operation, "lease")
            else step
            for step in trace.steps
        ),
    )
    _, run = Reducer(CountNotDecremented).reproduce(confused)
    assert story(run).count("begin_transfer(A, #0)") == 1
    assert "begin_transfer(B, #0)" not in story(run)


# ------------------------------------------------------------------------------ the moves


class LosesTwins(Reference):
    """A block is lost with a sequence that starts as long as another is."""

    def allocate(self, seq, num_tokens, *, limit=None):
        """Start `seq`, with a loss if there is one of its length."""
        lengths = [sequence.length for sequence in self._sequences.values()]
        answer = super().allocate(seq, num_tokens, limit=limit)
        if num_tokens in lengths:
            self._free.pop()
        return answer


STORIES = {
    "a sequence grows once": (
        DoubleHandOut,
        Geometry(1, 1),
        [
            call("allocate", seq=0, num_tokens=0),
            call("fork", parent=0, child=1),
            call("append", seq=1, num_tokens=1),
            call("free", seq=0),
            call("fork", parent=1, child=0),
            call("free", seq=0),
        ],
        ["allocate(A, 1)", "fork(A, B)", "free(A)"],
    ),
    "the parent does what the child did": (
        ReuseWhileLeased,
        Geometry(1, 1),
        [
            call("allocate", seq=0, num_tokens=1),
            call("fork", parent=0, child=1),
            call("free", seq=0),
            call("begin_transfer", seq=1, lease=0),
            call("free", seq=1),
        ],
        ["allocate(A, 1)", "begin_transfer(A, #0)", "free(A)"],
    ),
    "the parent does what both did, and ends once": (
        FirstLeaseReleases,
        Geometry(1, 1),
        [
            call("allocate", seq=0, num_tokens=1),
            call("fork", parent=0, child=1),
            call("begin_transfer", seq=0, lease=0),
            call("free", seq=0),
            call("begin_transfer", seq=1, lease=1),
            call("free", seq=1),
            call("end_transfer", lease=0),
        ],
        [
            "allocate(A, 1)",
            "begin_transfer(A, #0)",
            "begin_transfer(A, #1)",
            "free(A)",
            "end_transfer(#0)",
        ],
    ),
    "a longer length takes what a dropped step took": (
        HalfDoneAppend,
        Geometry(2, 3),
        [
            call("allocate", seq=0, num_tokens=2),
            call("fork", parent=0, child=1),
            call("append", seq=1, num_tokens=2),
        ],
        ["allocate(A, 0)", "append(A, 2)"],
    ),
    "two lengths are lowered together": (
        LosesTwins,
        Geometry(8, 1),
        [
            call("allocate", seq=0, num_tokens=3),
            call("allocate", seq=1, num_tokens=3),
        ],
        ["allocate(A, 0)", "allocate(B, 0)"],
    ),
    "two sequences change places": (
        CountNotDecremented,
        Geometry(1, 1),
        [
            call("allocate", seq=0, num_tokens=1),
            call("fork", parent=0, child=1),
            call("free", seq=1),
            call("free", seq=0),
        ],
        ["allocate(A, 1)", "fork(A, B)", "free(A)", "free(B)"],
    ),
}


UNDER_ITS_CONTRACT = {
    "a sequence grows and does not start again": (
        ScatteredExtents,
        Geometry(3, 1),
        [
            call("allocate", seq=0, num_tokens=1),
            call("allocate", seq=1, num_tokens=1),
            call("free", seq=0),
            call("allocate", seq=0, num_tokens=2),
        ],
        ["allocate(A, 1)", "allocate(B, 1)", "append(A, 1)"],
    ),
    "a sequence starts with what it grows by, whenever it tries": (
        SearchesTooEarlyUnpromised,
        Geometry(3, 1),
        [
            call("allocate", seq=0, num_tokens=1),
            call("begin_transfer", seq=0, lease=0),
            call("free", seq=0),
            call("end_transfer", lease=0),
            call("allocate", seq=0, num_tokens=0),
            call("append", seq=0, num_tokens=3),
            call("append", seq=0, num_tokens=3),
        ],
        [
            "allocate(A, 1)",
            "begin_transfer(A, #0)",
            "free(A)",
            "end_transfer(#0)",
            "allocate(A, 1)",
            "allocate(A, 1)",
        ],
    ),
    "the pool is as large from the start, and what fills it longer": (
        ShrinksUnderTheTables,
        Geometry(1, 1),
        [
            call("resize", num_blocks=2),
            call("allocate", seq=0, num_tokens=1),
            call("resize", num_blocks=1),
        ],
        ["allocate(A, 2)", "resize(1)"],
    ),
}
"""Stories that need the contract of the allocator, and all that it claims."""


@pytest.mark.parametrize("name", [*STORIES, *UNDER_ITS_CONTRACT])
def test_each_move_shortens_a_story_that_the_others_leave(name):
    """Stories that walks have met, in which no step, length or block could go by itself."""
    claims = UNCOUNTED if name in STORIES else None
    make, pool, calls, expected = (STORIES | UNDER_ITS_CONTRACT)[name]
    trace = told(make, *calls, pool=pool, claims=claims)
    assert story(Reducer(make).reduce(trace)) == expected


# ------------------------------------------------------------------------------ the pool


def test_the_pool_is_as_small_as_can_be():
    """Of a large pool with bounds on every length, what is left is one block of one token."""
    trace = told(
        OffByOneAtBoundary,
        call("allocate", seq=0, num_tokens=5, limit=20),
        call("allocate", seq=1, num_tokens=7),
        call("append", seq=0, num_tokens=8),
        pool=Geometry(8, 4, max_tokens=24),
    )
    reduced = Reducer(OffByOneAtBoundary).reduce(trace)
    assert reduced.geometry == Geometry(1, 1)
    assert story(reduced) == ["allocate(A, 1)", "append(A, 1)"]


def test_the_pool_stays_inside_the_contract():
    """Geometries that the contract excludes are not tried, though smaller ones would do."""

    class Roomy(LeakOnRefusal):
        """Made for pools of at least 3 blocks, of 2 or 4 tokens, with a bound on each length."""

        contract = Contract(
            geometries=Geometries(min_blocks=3, block_sizes=(2, 4), max_tokens="required")
        )

    trace = told(
        Roomy,
        call("allocate", seq=0, num_tokens=9),
        call("allocate", seq=1, num_tokens=21),
        pool=Geometry(6, 4, max_tokens=40),
    )
    reduced = Reducer(Roomy).reduce(trace)
    assert (reduced.geometry.num_blocks, reduced.geometry.block_size) == (3, 2)
    assert reduced.geometry.max_tokens == 7
    assert story(reduced) == ["allocate(A, 7)"]


def test_the_pool_is_one_that_the_factory_makes():
    """A geometry that the factory refuses on the way is no candidate."""

    class FromTwo(LeakOnRefusal):
        """Refuses a pool of one block."""

        def __init__(self, geometry):
            if geometry.num_blocks < 2:
                raise UnsupportedGeometry("two blocks at least")
            super().__init__(geometry)

    trace = told(FromTwo, call("allocate", seq=0, num_tokens=9))
    assert Reducer(FromTwo).reduce(trace).geometry == Geometry(2, 1)


def test_a_huge_length_is_lowered_in_few_steps():
    """Lengths are lowered by halves where they are large."""

    class Huge(Reference):
        """Gives up at lengths from a thousand on."""

        def allocate(self, seq, num_tokens, *, limit=None):
            """Start `seq`, or call a great length invalid."""
            if isinstance(num_tokens, int) and num_tokens >= 1000:
                raise InvalidLength("too long")
            return super().allocate(seq, num_tokens, limit=limit)

    trace = told(Huge, call("allocate", seq=0, num_tokens=10**12))
    assert story(Reducer(Huge).reduce(trace)) == ["allocate(A, 1000)"]


# ------------------------------------------------------------------------------ before it


def test_what_a_sparse_look_found_late_is_explained_where_it_went_wrong():
    """A leak that showed as a refusal, steps later, is reported as a leak, in one step."""
    violation = told(
        LeakOnRefusal,
        call("allocate", seq=0, num_tokens=2),
        call("allocate", seq=1, num_tokens=9),
        call("append", seq=0, num_tokens=0),
        call("allocate", seq=2, num_tokens=1),
        look=TOUCHED,
    )
    assert violation.law == "admission"
    explained, count = explain(target(LeakOnRefusal), violation, DEFAULT_CALL_TIMEOUT)
    assert (explained.law, count) == ("conservation", REPLAYS)
    assert story(explained) == ["allocate(A, 2)"]
    assert [step.look for step in explained.steps] == [FULL]


def test_what_only_a_sparse_look_finds_is_explained_with_that_look():
    """Where looking at everything hides the fault, the schedule that found it is kept."""

    class CuredByCounting(ReuseWhileLeased):
        """Keeps the rules for as long as somebody counts its blocks."""

        counted = False

        def num_free_blocks(self, pool=0):
            """The count, after which all is well."""
            self.counted = True
            return super().num_free_blocks(pool)

        def free(self, seq):
            """End `seq`, and its leases if nobody has counted."""
            return Reference.free(self, seq) if self.counted else super().free(seq)

    violation = told(
        CuredByCounting,
        call("allocate", seq=0, num_tokens=1),
        call("allocate", seq=1, num_tokens=1),
        call("begin_transfer", seq=1, lease=0),
        call("free", seq=1),
        call("allocate", seq=2, num_tokens=1),
        look=TOUCHED,
    )
    explained, count = explain(target(CuredByCounting), violation, DEFAULT_CALL_TIMEOUT)
    assert (explained.law, count) == ("in-flight", REPLAYS)
    assert {step.look for step in explained.steps} == {TOUCHED}
    assert story(explained) == [
        "allocate(A, 1)",
        "begin_transfer(A, #0)",
        "free(A)",
        "allocate(A, 1)",
    ]


def flaky(one_in):
    """A factory of which one in so many allocators leaks."""
    made = itertools.count()

    def make(geometry, *, checkpoint=None):
        kind = Reference if next(made) % one_in else LeakOnRefusal
        return kind(geometry, checkpoint=checkpoint)

    return make


def test_what_does_not_come_again_every_time_stays_as_it_was():
    """A violation that replays only sometimes is reported whole, with its count."""
    violation = told(
        LeakOnRefusal,
        call("allocate", seq=0, num_tokens=2),
        call("allocate", seq=1, num_tokens=9),
    )
    make = flaky(one_in=3)
    explained, count = explain(target(make, "flaky"), violation, DEFAULT_CALL_TIMEOUT)
    assert 0 < count < REPLAYS
    assert story(explained) == story(violation)
    assert not explained.reduced
    assert f"not reproduced ({count} of {REPLAYS})" in as_text(explained, count, REPLAYS)


def test_a_flaky_allocator_is_broken_all_the_same():
    """That the story did not come again is no excuse: the report says broken, and how often."""
    report = check_allocator(flaky(one_in=4), name="flaky", profile="quick")
    assert report.exit_code is ExitCode.BROKEN
    assert report.reproduced < report.replays == REPLAYS
    assert not report.trace.reduced


def test_an_absurd_length_makes_no_more_moves_than_any_other():
    """A wrong call may be about a million million tokens, and moves are tried one by one."""
    steps = [
        TraceStep(OPERATIONS["allocate"](seq=0, num_tokens=HUGE)),
        TraceStep(OPERATIONS["resize"](num_blocks=HUGE), wrong=True),
        TraceStep(OPERATIONS["append"](seq=0, num_tokens=1)),
    ]
    tried = list(itertools.islice(moves(Case(Geometry(3, 2), tuple(steps))), 2000))
    assert 10 < len(tried) < 2000
    assert all(move.geometry.num_blocks < 100 for move in tried)


def test_a_write_outside_is_never_brought_inside():
    """There it would write what nobody believes, and a right store would be at fault."""
    tested = target(StoredReference)
    spec = tested.specification(Geometry(2, 1))
    steps = [
        TraceStep(spec.operation(call("allocate", seq=0, num_tokens=1))),
        TraceStep(WriteOutside(0, 0, 1)),
    ]
    told = run(tested.make, spec, steps, tested.name, DEFAULT_CALL_TIMEOUT, sensible=True)
    assert [step.operation.method for step in told.steps] == ["allocate"]
    assert told.breaches == ()
