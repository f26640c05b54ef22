"""The room of batches: what one call leaves is what the loop over its sequences could leave."""

from collections.abc import Callable, Hashable, Iterator
from itertools import product

import numpy as np
import pytest
from attrs import evolve
from exploring import (
    accepted_choices,
    broken,
    chosen,
    copies,
    explored,
    shown,
    undone,
)
from faults import bites_in_its_witness, first_of_its_own
from scopes import (
    RandomChooser,
    allocate,
    append,
    begin,
    canonical,
    end,
    fork,
    free,
    reached,
    scope,
    told,
)

from kvimpls.reference import Reference
from kvspec.contract import Contract, Granular, Unspecified
from kvspec.driver.driver import Driver
from kvspec.engines.session import Session
from kvspec.geometry import DEVICE, Geometry, Group
from kvspec.interface import Copy
from kvspec.kernel.names import call_text
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE, FULL, REFUSED, Answer, Observation, Outcome
from kvspec.kernel.script import Call, call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State, table_of
from kvspec.kernel.step import Step
from kvspec.rooms import batch, specification
from kvspec.traces.cases import Case, size
from kvspec.traces.moves import moves
from kvspec.traces.trace import from_json, to_json

ALL = ("core", "sharing", "lease", "batch")
SMALL = scope(3, 2, capabilities=ALL)
WIDE = scope(6, 2, capabilities=ALL)


def both(seqs: tuple[int, ...], num_tokens: object = 1) -> Call:
    """`append_batch(seqs, num_tokens)`."""
    return call("append_batch", seqs=seqs, num_tokens=num_tokens)


# ------------------------------------------------------------------------------ the law bites


def test_the_witness_makes_the_law_bite():
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(batch.LAWS[0], Reference)


# ------------------------------------------------------------------------------ the loop


def by_the_loop(
    spec: Specification, state: State, calls: list[tuple[int, int]]
) -> Iterator[tuple[tuple[Copy, ...], State]]:
    """The copies and states with which the loop of appends may end, by the choices of each."""
    if not calls:
        yield (), state
        return
    (seq, tokens), *later = calls
    operation = spec.operation(append(seq, tokens))
    for outcome in spec.choices(evolve(state, refused=None), operation):
        if outcome.answer.kind == "done":
            after = spec.believe(state, operation, outcome).after
            # All of the batch is one step.
            for further, end_ in by_the_loop(spec, evolve(after, clock=state.clock), later):
                yield (*outcome.answer.copies, *further), end_


def of_originals(copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
    """The copies with what is a copy itself named by what it was copied from."""
    made: list[Copy] = []
    for source, to in copies:
        earlier = [copy.source for copy in made if copy.destination == source]
        made.append(Copy(earlier[-1] if earlier else source, to))
    return tuple(made)


def named(spec: Specification, state: State, outcome: Outcome) -> Hashable:
    """An outcome up to the names of free blocks, and up to copies of copies."""
    answer = evolve(outcome.answer, copies=of_originals(outcome.answer.copies))
    return canonical(spec, state, evolve(outcome, answer=answer))


def loop_outcomes(spec: Specification, state: State, operation: Operation) -> set[Hashable]:
    """The outcomes of a batch that the loop could have."""
    assert isinstance(operation, batch.AppendBatch)
    calls = list(zip(operation.seqs, operation.numbers, strict=True))
    return {
        named(spec, state, Outcome(Answer("done", copies=made), spec.observed(after)))
        for made, after in by_the_loop(spec, state, calls)
    }


def accepted(
    spec: Specification, state: State, operation: Operation, entries: int
) -> set[Hashable]:
    """The successes that judge accepts: up to two copies, and tables of so many entries."""
    ids = list(state.blocks())
    pairs = [Copy(*pair) for pair in product(ids, ids)]
    tables = [t for n in range(entries + 1) for t in product(ids, repeat=n)]
    found = set()
    for made in (m for n in range(3) for m in product(pairs, repeat=n)):
        for ways in product(tables, repeat=len(state.sequences)):
            seen = dict(zip(map(table_of, state.sequences), ways, strict=True))
            bare = spec.believe(
                state, operation, Outcome(Answer("done", copies=made), Observation(tables=seen))
            )
            if any(law.judge(bare) is not None for law in spec.laws):
                continue
            for count in range(len(ids) + 1):
                full = evolve(bare.outcome.observation, free={DEVICE: count})
                outcome = evolve(bare.outcome, observation=full)
                if not broken(spec.believe(state, operation, outcome)):
                    found.add(named(spec, state, outcome))
    return found


def agrees(spec: Specification, state: State, operation: Operation) -> bool:
    """Whether a batch succeeds exactly if the loop can, with just the outcomes of the loop."""
    expected, ends = spec.expect(state, operation), loop_outcomes(spec, state, operation)
    assert expected.done == bool(ends)
    assert expected.refused == (not ends) or isinstance(spec.contract.reservation, Unspecified)
    outcomes = [o for o in spec.choices(state, operation) if o.answer.kind == "done"]
    assert {named(spec, state, outcome) for outcome in outcomes} == ends
    assert len(outcomes) == len(ends)
    return bool(ends)


def calls(spec: Specification, state: State) -> Iterator[Operation]:
    """The calls that make a difference in so small a pool, with at most three sequences."""
    live, leases = tuple(state.sequences), state.slices["lease"]
    script = [allocate(seq, n) for seq in (0,) for n in (1,) if seq not in live]
    script += [fork(seq, new) for seq in live for new in (1, 2) if new not in live][:1]
    script += [free(seq) for seq in live]
    for count in range(4):
        for seqs in product(live, repeat=count):
            if len(set(seqs)) == count:
                script += [both(seqs)] if count > 1 else [both(seqs), both(seqs, (2,) * count)]
    script += [begin(seq, 0) for seq in live if not (leases.open or leases.ended)][:1]
    yield from map(spec.operation, [*script, *map(end, leases.open)])


def test_in_every_state_of_a_small_pool_a_batch_is_the_loop():
    """In 3 blocks of 2 and for every batch of 3 sequences, what is allowed is what loops end in."""
    states = explored(SMALL, calls)
    succeeded = refused = 0
    for state in states.values():
        for operation in calls(SMALL, state):
            if operation.method == "append_batch":
                done = agrees(SMALL, state, operation)
                succeeded, refused = succeeded + done, refused + (not done)
    assert len(states) > 100
    assert succeeded > 500
    assert refused > 500


WORLDS = {
    "strict": WIDE,
    "tight": scope(4, 2, capabilities=ALL),
    "granules": scope(8, 1, capabilities=ALL, reservation=Granular(3)),
    "eager tail": scope(6, 2, capabilities=ALL, eager_fork="tail", first_block=1),
    "rollback": scope(5, 3, capabilities=(*ALL, "rollback")),
    "unspecified": scope(4, 2, capabilities=ALL, reservation=Unspecified()),
}


@pytest.mark.parametrize("world", WORLDS)
def test_on_random_walks_a_batch_is_the_loop(world):
    """Also in larger pools and under other contracts."""
    spec, done = WORLDS[world], set()
    for seed in range(10):
        for state, operation in wandering(spec, seed):
            if operation.method == "append_batch" and not spec.expect(state, operation).errors:
                done.add(agrees(spec, evolve(state, refused=None), operation))
    assert done == {True, False}


def wandering(spec: Specification, seed: int) -> Iterator[tuple[State, Operation]]:
    """The states and calls of a random walk over the choices, all of which are accepted."""
    chooser, state = RandomChooser(seed), spec.initial()
    for _ in range(40):
        operation = chooser.operation(spec, state)
        yield state, operation
        state = chooser.pick(accepted_choices(spec, state, operation)).after


@pytest.mark.parametrize(
    "spec",
    [
        scope(6, 2, capabilities=(*ALL, "window", "rollback"), window=2),
        scope(6, 1, capabilities=(*ALL, "window"), window=1, window_release="early"),
        scope(5, 2, capabilities=(*ALL, "groups"), groups=[Group(2), Group(1, num_blocks=6)]),
    ],
)
def test_with_windows_and_groups_a_batch_succeeds_exactly_if_the_loop_can(spec):
    """What one sequence lets go of before its window counts for those after it."""
    found = set()
    for seed in range(15):
        for state, operation in wandering(spec, seed):
            expected = spec.expect(state, operation)
            if isinstance(operation, batch.AppendBatch) and not expected.errors:
                pairs = list(zip(operation.seqs, operation.numbers, strict=True))
                done = any(True for _ in by_the_loop(spec, state, pairs))
                assert (expected.done, expected.refused) == (done, not done)
                found.add(done)
    assert found == {True, False}


SHARED = (allocate(0, 1), fork(0, 1))


@pytest.mark.parametrize(
    ("script", "entries"),
    [
        ((allocate(0, 1), allocate(1, 1), both((0, 1))), 2),
        ((allocate(0, 1), allocate(1, 2), both((0, 1))), 2),
        ((*SHARED, both((0, 1))), 2),
        ((*SHARED, both((1, 0))), 2),
        ((*SHARED, both((1,))), 2),
        ((*SHARED, begin(0, 0), both((0, 1))), 2),
        ((*SHARED, begin(0, 0), both((1,))), 2),
        ((*SHARED, both((0, 1), (0, 1))), 2),
        ((*SHARED, both(())), 2),
        ((*SHARED, fork(0, 2), both((0, 1))), 1),
        ((*SHARED, fork(0, 2), both((2, 0))), 1),
        ((*SHARED, fork(0, 2), both((0, 1, 2))), 1),
        ((*SHARED, fork(0, 2), both((1,))), 1),
    ],
    ids=lambda case: " ".join(map(told, case)) if isinstance(case, tuple) else str(case),
)
def test_judge_accepts_the_ends_of_the_loop_and_rejects_every_other_success(script, entries):
    """In 3 blocks of 2: up to two copies, all tables of one or two entries, and all counts."""
    state, operation = reached(SMALL, *script[:-1]), SMALL.operation(script[-1])
    ends = loop_outcomes(SMALL, state, operation)
    assert accepted(SMALL, state, operation, entries) == ends
    assert ends


def test_a_batch_that_the_loop_cannot_do_never_succeeds():
    """Of 3 blocks A and B have two, and both need another."""
    state = reached(SMALL, allocate(0, 2), allocate(1, 2))
    assert not accepted(SMALL, state, SMALL.operation(both((0, 1))), 2)


# ------------------------------------------------------------------------------ the interface


class Noting(Reference):
    """Notes the arguments of batches."""

    def append_batch(self, seqs, num_tokens):
        """As ever."""
        self.given = (seqs, num_tokens)
        return super().append_batch(seqs, num_tokens)


def test_a_batch_is_passed_as_arrays_of_64_bits():
    """Ids and numbers are numpy arrays; one number for all stays a number."""
    spec = specification(Geometry(6, 2), Contract(), ("core", "batch"))
    driver, state = Driver(Noting, spec), spec.initial()
    for made in (allocate(0, 1), allocate(1, 1), both((1, 0), (1, 2)), both((0,), 3)):
        operation = spec.operation(made)
        outcome = driver.perform(operation, state, FULL)
        step = spec.believe(state, operation, outcome)
        assert spec.judge(step) == ()
        state = step.after
        if operation.method == "append_batch":
            seqs, numbers = driver._allocator.given
            assert isinstance(seqs, np.ndarray)
            assert seqs.dtype == np.int64
            assert tuple(seqs) == operation.seqs
            assert type(numbers) is int or tuple(numbers) == operation.num_tokens


def test_numbers_that_are_none_are_passed_as_they_are():
    """An array would make 1 of 1.5, so the caller's list is passed, and the call is wrong."""
    operation = batch.AppendBatch((0, 1), (1, 1.5))
    assert operation.arguments()[0][1] == (1, 1.5)
    assert WIDE.expect(reached(WIDE, *SHARED), operation).errors == {"AllocatorError"}


@pytest.mark.parametrize(
    "seqs_and_numbers",
    [((0, 0), 1), ((0, 7), 1), ((0, 1), (1,)), ((0,), (1, 1)), ((0, 1), (1, -1)), ((), (1,))],
)
def test_a_wrong_batch_may_fail_with_any_error_and_must_with_one(seqs_and_numbers):
    """Duplicates, unknown ids, unequal lengths and lengths that are none."""
    state, operation = reached(WIDE, *SHARED), WIDE.operation(both(*seqs_and_numbers))
    unchanged = WIDE.observed(state)
    for error in ("AllocatorError", "UnknownSequence", "InvalidLength"):
        outcome = Outcome(Answer("error", error), unchanged)
        assert broken(WIDE.believe(state, operation, outcome)) == []
    assert broken(WIDE.believe(state, operation, Outcome(DONE, unchanged))) == ["misuse"]


def test_bounds_of_single_sequences_are_bounds_in_a_batch():
    """A limit that the caller gave to one of them makes the whole call wrong."""
    spec = scope(6, 2, capabilities=(*ALL, "reservation"))
    state = reached(spec, allocate(0, 1, 2), allocate(1, 1))
    assert spec.expect(state, spec.operation(both((1, 0), (1, 2)))).errors
    assert spec.expect(state, spec.operation(both((1, 0), (2, 1)))).done


# ------------------------------------------------------------------------------ wrong outcomes


def two() -> Step:
    """A and B grow, A within its block."""
    return chosen(WIDE, allocate(0, 1), allocate(1, 2), both((0, 1)))


def sharers() -> Step:
    """A, B and C share a tail, and A and B write into it."""
    return chosen(WIDE, *SHARED, fork(0, 2), both((0, 1)))


def all_sharers() -> Step:
    """A and B share a tail, and both write into it."""
    return chosen(WIDE, *SHARED, both((0, 1)))


def short() -> Step:
    """There is a block for A and none for B."""
    return chosen(SMALL, allocate(0, 2), allocate(1, 2), both((0, 1)))


def exact() -> Step:
    """The last block is just enough."""
    return chosen(scope(2, 2, capabilities=ALL), *SHARED, both((0, 1)))


def table(seq: int, *blocks: int) -> dict[object, object]:
    """A table as it is seen."""
    return {table_of(seq): blocks}


WRONG: dict[str, tuple[Callable[[], Step], Callable[[Step], Step], str]] = {
    "all sharers get a copy": (
        *(
            all_sharers,
            lambda s: shown(s, copies((0, 1), (0, 2)), {**table(0, 1), **table(1, 2)}, {DEVICE: 4}),
        ),
        "batch",
    ),
    "no writer keeps the block, and a bystander moves": (
        *(
            sharers,
            lambda s: shown(
                s,
                copies((0, 1), (0, 2), (0, 3)),
                {**table(0, 1), **table(1, 2), **table(2, 3)},
                {DEVICE: 3},
            ),
        ),
        "batch",
    ),
    "the writers share the copy": (
        *(sharers, lambda s: shown(s, copies((0, 1)), {**table(0, 1), **table(1, 1)})),
        "copy-on-write",
    ),
    "a writer shares with a bystander": (
        *(sharers, lambda s: shown(s, copies((0, 1)), {**table(0, 1), **table(1, 0)})),
        "copy-on-write",
    ),
    "both grow into one block": (
        *(
            lambda: chosen(WIDE, allocate(0, 2), allocate(1, 2), both((0, 1))),
            lambda s: shown(s, tables=table(1, 1, 2), free={DEVICE: 3}),
        ),
        "batch",
    ),
    "a block of its own is replaced": (
        *(two, lambda s: shown(s, copies((0, 3)), table(0, 3))),
        "batch",
    ),
    "one of them did not grow": (
        *(two, lambda s: shown(s, tables=table(1, 1), free={DEVICE: 4})),
        "bounded-waste",
    ),
    "a copy is forgotten": (all_sharers, lambda s: shown(s, DONE), "read-back"),
    "a copy is reported twice": (
        *(sharers, lambda s: shown(s, copies((0, 1), (0, 2), (0, 2)))),
        "needless-copy",
    ),
    "the first has grown when all are refused": (
        *(short, lambda s: shown(s, tables=table(0, 0, 2), free={DEVICE: 0})),
        "atomicity",
    ),
    "one too many succeeds": (short, lambda s: undone(s, DONE), "bounded-waste"),
    "an exact fit is refused": (exact, undone, "admission"),
    "a block leaks": (two, lambda s: shown(s, free={DEVICE: 2}), "conservation"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_outcome_is_rejected_and_explained_by_its_own_law(fault):
    """What goes wrong with batches in practice is seen, and the law reported first says what."""
    step, wrong, law = WRONG[fault]
    found = broken(wrong(step()))
    assert found[:1] == [law], found


def test_a_batch_that_copies_through_another_block_is_the_loop_too():
    """Where the writer stays and the others get the copy, the second copy is made of the first."""
    step = sharers()
    chain = shown(step, copies((0, 1), (1, 2)), {**table(0, 0), **table(1, 1), **table(2, 2)})
    assert broken(chain) == []
    backwards = shown(step, copies((1, 2), (0, 1)), {**table(0, 0), **table(1, 1), **table(2, 2)})
    assert broken(backwards) == ["read-back"]


def test_a_block_is_not_handed_out_before_the_loop_would_let_go_of_it():
    """A takes what B leaves before its window only later in the batch."""
    spec = scope(6, 1, capabilities=(*ALL, "window"), window=1)
    late = chosen(spec, allocate(0, 1), allocate(1, 1), both((0, 1)))
    assert late.after.entries(table_of(1)) == (None, 0)
    early = chosen(spec, allocate(0, 1), allocate(1, 1), both((1, 0)))
    exchanged = shown(early, tables={table_of(0): (None, 2), table_of(1): (None, 0)})
    assert broken(exchanged) == ["batch"]


FAULTS_OF_LAWS: dict[str, Callable[[], Step]] = {
    "batch": lambda: WRONG["all sharers get a copy"][1](all_sharers())
}


def test_a_law_is_the_first_that_its_own_fault_breaks():
    """Nobody keeps what all sharers wrote into: no other law sees that."""
    first_of_its_own("batch", FAULTS_OF_LAWS["batch"]())


def test_the_answer_to_a_refused_batch_changes_nothing():
    """A refused batch is refused again."""
    step = short()
    assert step.answer == REFUSED
    again = SMALL.choices(step.after, step.operation)
    assert [outcome.answer for outcome in again] == [REFUSED]


# ------------------------------------------------------------------------------ traces


def test_the_moves_make_a_batch_smaller():
    """A sequence less, one number for all, other names; and of a batch of one, the append."""
    session = Session(Reference, WIDE)
    for one in (allocate(0, 1), allocate(1, 1), both((1, 0), (2, 1)), both((0,), 3)):
        assert session.perform(WIDE.operation(one)) == ()
    case = Case(WIDE.geometry, session.trace.steps)
    smaller = [move for move in moves(case) if size(move) < size(case)]
    found = {call_text(step.operation) for move in smaller for step in move.steps}
    assert {"append_batch([A], [1])", "append_batch([B], [2])"} <= found
    assert {"append_batch([B A], 1)", "append_batch([A B], [2 1])", "append(A, 3)"} <= found
    assert from_json(to_json(session.trace)) == session.trace
