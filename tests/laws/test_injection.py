"""The room of injection: a call that is made to fail, and what it leaves."""

from collections.abc import Callable

import pytest
from attrs import evolve
from exploring import broken, shown
from faults import bites_in_its_witness, first_of_its_own, rehearsed, steps_of
from scopes import allocate, append, begin, end, fork, free, scope

from kvimpls.reference import Reference
from kvspec import InjectedFault
from kvspec.engines.session import Session
from kvspec.geometry import DEVICE
from kvspec.kernel.outcome import DONE, REFUSED, Answer, Asked, Outcome
from kvspec.kernel.script import Call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import table_of
from kvspec.kernel.step import Step
from kvspec.rooms import injection
from kvspec.rooms.admission import CanAllocate
from kvspec.rooms.introspection import FreeBlocks, RefCount
from kvspec.suite.check import check_allocator
from kvspec.traces.cases import Case, size
from kvspec.traces.export import as_pytest
from kvspec.traces.moves import moves
from kvspec.traces.table import as_text
from kvspec.traces.trace import from_json, to_json

ALL = ("core", "sharing", "lease", "introspection", "injection")
WIDE = scope(6, 2, capabilities=ALL)


def failing(one: Call, checkpoint: int) -> Call:
    """The same call, made to fail at a checkpoint."""
    return evolve(one, fault=checkpoint)


# ------------------------------------------------------------------------------ the law bites


def test_the_witness_makes_the_law_bite():
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(injection.LAWS[0], Reference)


class Uncounted(Reference):
    """Never calls the checkpoint."""

    def __init__(self, geometry, *, checkpoint=None):
        super().__init__(geometry)


def test_an_allocator_that_never_calls_its_checkpoint_is_not_tested_by_it():
    """Nothing fails where nothing can be made to: the law is vacuous, and the run says so."""
    assert not bites_in_its_witness(injection.LAWS[0], Uncounted)


# ------------------------------------------------------------------------------ what is right


def accepted(spec: Specification, step: Step) -> list[str]:
    """The kinds of answers that are accepted after the fault of a step, with nothing changed."""
    unchanged = spec.observed(step.before)
    answers = [
        *(DONE, REFUSED, Answer("injected", "a point"), Answer("error", "AllocatorError")),
        *(Answer("error", "UnknownSequence"), Answer("raised", "KeyError(0)"), Answer("hang")),
    ]
    steps = [
        spec.believe(step.before, step.operation, Outcome(answer, unchanged, "a point"))
        for answer in answers
    ]
    return [one.answer.kind for one in steps if not broken(one)]


@pytest.mark.parametrize(
    "script",
    [
        (allocate(0, 3),),
        (allocate(0, 13),),
        (allocate(0, -1),),
        (append(0, 1),),
        (allocate(0, 3), append(0, 9)),
        (allocate(0, 3), fork(0, 1), append(1, 1)),
        (allocate(0, 3), free(0)),
        (allocate(0, 3), begin(0, 0)),
        (allocate(0, 3), begin(0, 0), end(0)),
    ],
)
def test_after_a_fault_only_the_fault_is_an_answer(script):
    """Whether the call was right, wrong or to be refused: whatever happened, it comes through."""
    step = rehearsed(WIDE, *script)
    assert accepted(WIDE, step) == ["injected"]


def test_a_fault_that_was_not_injected_is_no_answer():
    """An allocator does not raise it by itself."""
    step = rehearsed(WIDE, allocate(0, 3))
    outcome = Outcome(Answer("injected", "a point"), WIDE.observed(step.before))
    assert broken(WIDE.believe(step.before, step.operation, outcome)) == ["well-formed"]


def test_the_checkpoint_that_fails_is_the_one_counted_within_the_call():
    """An allocation of three blocks passes three checkpoints at least, and more do not fail it."""
    points = []
    for fault in range(1, 30):
        [step] = steps_of(Reference, WIDE, failing(allocate(0, 5), fault))
        points.append(step.outcome.fault)
        assert (step.answer.kind == "injected") == (step.outcome.fault is not None)
    assert points[2] is not None
    assert points[-1] is None


# ------------------------------------------------------------------------------ wrong outcomes


def failed() -> Step:
    """B takes three blocks and fails at the third; A has two."""
    return rehearsed(WIDE, allocate(0, 3), failing(allocate(1, 5), 3))


def grown() -> Step:
    """A takes two blocks more and fails at the second; B shares what it had."""
    return rehearsed(WIDE, allocate(0, 3), fork(0, 1), failing(append(0, 3), 2))


def asked(step: Step, query: object, value: str) -> Step:
    """The same step with another answer to one of the standing queries."""
    others = tuple(
        Asked(a.query, Answer("done", value)) if a.query == query else a for a in step.seen.asked
    )
    seen = evolve(step.seen, asked=others)
    return step.spec.believe(step.before, step.operation, evolve(step.outcome, observation=seen))


@pytest.mark.parametrize("num_tokens", [-1, 1.5, "2", None])
def test_a_wrong_question_has_no_answer_that_must_stay(num_tokens):
    """Whatever was asked, there is a verdict."""
    step = failed()
    question = Asked(CanAllocate(num_tokens), Answer("done", "NEVER"))
    seen = evolve(step.seen, asked=(*step.seen.asked, question))
    odd = step.spec.believe(step.before, step.operation, evolve(step.outcome, observation=seen))
    assert "injection" not in {breach.law for breach in step.spec.judge(odd)}


WRONG: dict[str, tuple[Callable[[], Step], Callable[[Step], Step], str]] = {
    "the fault is swallowed": (failed, lambda s: shown(s, DONE), "must come through"),
    "the fault becomes a refusal": (failed, lambda s: shown(s, REFUSED), "the answer is: refused"),
    "the fault becomes an error": (
        *(failed, lambda s: shown(s, Answer("error", "AllocatorError"))),
        "the answer is: AllocatorError",
    ),
    "what was taken leaks": (
        *(failed, lambda s: shown(s, free={DEVICE: 2})),
        "the count of free blocks of the device was 4 and is 2: 2 lost",
    ),
    "what was taken is given back twice": (
        *(failed, lambda s: shown(s, free={DEVICE: 5})),
        "1 in excess",
    ),
    "the table has grown": (
        *(grown, lambda s: shown(s, tables={table_of(0): (0, 1, 2)})),
        "the table of A was [0 1] and is [0 1 2]",
    ),
    "the copy on write is in the table": (
        *(grown, lambda s: shown(s, tables={table_of(0): (0, 2)})),
        "the table of A was [0 1] and is [0 2]",
    ),
    "a bystander is changed": (
        *(grown, lambda s: shown(s, tables={table_of(1): ()})),
        "the table of B was [0 1] and is []",
    ),
    "a count of users is off": (
        *(grown, lambda s: asked(s, RefCount(1), "1")),
        "ref_count(1) was 2 and is 1",
    ),
    "a block is in no list": (
        *(grown, lambda s: asked(s, FreeBlocks(), "3 4 5")),
        "free_blocks() was 2 3 4 5 and is 3 4 5",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_outcome_is_rejected_and_the_law_says_where_and_what(fault):
    """The law is the first that is broken, and names the checkpoint and what has changed."""
    step, wrong, reason = WRONG[fault]
    bad = wrong(step())
    first = bad.spec.judge(bad)[0]
    assert first.law == "injection"
    assert reason in first.because
    assert repr(bad.outcome.fault) in first.because


def test_a_store_must_read_what_was_there_before():
    """A reading that the failed call changed is broken by this law, before read-back says so."""
    spec = scope(6, 2, capabilities=("core", "store", "injection"))
    state = spec.initial()
    operation = spec.operation(allocate(0, 2))
    state = spec.believe(state, operation, next(spec.choices(state, operation))).after
    cells = state.sequences[0].cells
    seen = evolve(spec.observed(state), readings={0: cells})
    outcome = Outcome(Answer("injected", "copy a block"), seen, "copy a block")
    append_ = spec.operation(append(0, 1))
    assert broken(spec.believe(state, append_, outcome)) == []
    other = evolve(seen, readings={0: (cells[0], None)})
    step = spec.believe(state, append_, evolve(outcome, observation=other))
    assert broken(step) == ["injection", "read-back"]


FAULTS_OF_LAWS: dict[str, Callable[[], Step]] = {
    "injection": lambda: shown(failed(), free={DEVICE: 2}),
}


def test_a_law_is_the_first_that_its_own_fault_breaks():
    """A leak on the way: the law says where, and then conservation implies it."""
    first_of_its_own("injection", FAULTS_OF_LAWS["injection"](), ["conservation"])


# ------------------------------------------------------------------------------ traces


class LeaksOnTheWay(Reference):
    """Keeps what it took when taking another block fails."""

    def _take(self, count):
        taken = []
        for _ in range(count):
            try:
                taken += super()._take(1)
            except InjectedFault:
                self._forgotten = getattr(self, "_forgotten", 0) + len(taken)
                raise
        return taken

    def num_free_blocks(self, pool=0):
        """Less what was forgotten."""
        return super().num_free_blocks(pool) - getattr(self, "_forgotten", 0)


@pytest.fixture(scope="module")
def report():
    """The report of an allocator that leaks on the way."""
    contract = WIDE.contract.__class__(capabilities=("core", "injection"))
    return check_allocator(LeaksOnTheWay, contract=contract, name="tests:LeaksOnTheWay")


def test_a_leak_on_the_way_is_found_and_told_in_one_step(report):
    """Two blocks, of which the second cannot be taken."""
    trace = report.trace
    assert trace is not None
    assert trace.law == "injection"
    assert [(s.operation.method, s.fault) for s in trace.steps] == [("allocate", 2)]
    assert "allocate(A, 2) failing at checkpoint 2" in as_text(trace, width=120)


def test_a_trace_with_faults_survives_json_and_replays_from_a_file_of_its_own(report):
    """The fault is part of the trace, and of the exported test."""
    trace = report.trace
    assert from_json(to_json(trace)) == trace
    source = as_pytest(trace)
    assert "{'seq': 0, 'num_tokens': 2, 'limit': None}, Look(full=True), 2)" in source
    assert "session.call(method, look, fault, **arguments)" in source
    compile(source, "exported", "exec")


def test_the_moves_drop_faults_and_lower_them():
    """Each fault may go or come earlier, and each of these is smaller."""
    session = Session(Reference, WIDE)
    session.perform(WIDE.operation(allocate(0, 5)), fault=3)
    case = Case(WIDE.geometry, session.trace.steps)
    faults = {move.steps[0].fault for move in moves(case) if move.steps and size(move) < size(case)}
    assert {0, 1, 2} <= faults
