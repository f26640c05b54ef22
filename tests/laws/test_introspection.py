"""The room of introspection: what the allocator's own books say, against the facts."""

from collections.abc import Callable

import pytest
from attrs import evolve
from exploring import broken
from faults import bites_in_its_witness, first_of_its_own, rehearsed
from scopes import RandomChooser, allocate, append, begin, fork, free, reached, scope

from kvimpls.reference import Reference
from kvspec.contract import Contract
from kvspec.engines.session import Session
from kvspec.geometry import Geometry, Group
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import Answer, Asked, Outcome
from kvspec.kernel.script import call
from kvspec.kernel.state import Holder
from kvspec.kernel.step import Step
from kvspec.rooms import introspection, specification
from kvspec.rooms.introspection import AT_ONCE, FreeBlocks, RefCount

ALL = ("core", "sharing", "lease", "introspection")
WIDE = scope(4, 2, capabilities=ALL)


# ------------------------------------------------------------------------------ the laws bite


@pytest.mark.parametrize("law", introspection.LAWS, ids=lambda law: law.id)
def test_a_witness_makes_its_law_bite(law):
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(law, Reference)


# ------------------------------------------------------------------------------ what is right


def answered(step: Step) -> Step:
    """The step with the standing queries answered rightly."""
    queries = step.spec.queries(step.after)
    asked = tuple(
        Asked(query, Answer("done", query.value(step.after, step.spec))) for query in queries
    )
    seen = evolve(step.seen, asked=asked)
    return step.spec.believe(step.before, step.operation, evolve(step.outcome, observation=seen))


@pytest.mark.parametrize("first", [0, 3])
def test_right_answers_are_accepted_on_random_walks(first):
    """In every state and after every call, the facts are what may be told of them."""
    spec = scope(5, 2, capabilities=ALL, first_block=first)
    told = 0
    for seed in range(15):
        chooser, state = RandomChooser(seed), spec.initial()
        for _ in range(40):
            operation = chooser.operation(spec, state)
            outcome = chooser.pick(list(spec.choices(state, operation)))
            step = answered(spec.believe(state, operation, outcome))
            assert spec.judge(step) == ()
            told += len(step.seen.asked)
            state = step.after
    assert told > 1000


def test_only_the_one_right_answer_is_accepted():
    """Of every count of every block, and of every set of free blocks, just one is right."""
    state = reached(WIDE, allocate(0, 3), fork(0, 1), begin(0, 0), append(1, 1), free(0))
    unchanged = WIDE.observed(state)
    for block in state.blocks():
        operation = WIDE.operation(call("ref_count", block=block))
        right = [
            n
            for n in range(9)
            if not broken(
                WIDE.believe(state, operation, Outcome(Answer("done", str(n)), unchanged))
            )
        ]
        tables = [state.table(seq) for seq in state.sequences]
        assert right == [sum(table.count(block) for table in tables)]
    operation = WIDE.operation(call("free_blocks"))
    accepted = []
    for chosen in range(2 ** len(state.blocks())):
        ids = [block for block in state.blocks() if chosen >> block & 1]
        answer = Answer("done", " ".join(map(str, ids)))
        if not broken(WIDE.believe(state, operation, Outcome(answer, unchanged))):
            accepted.append(ids)
    held = {b for entries in state.holds.values() for b in entries}
    assert accepted == [[block for block in state.blocks() if block not in held]]


class Kept(Holder):
    """Something that can be displaced."""

    pins = False


class PerhapsKept(Kept):
    """The same, of which it is not known whether it is still there."""

    doubtful = True


@pytest.mark.parametrize(
    ("counted", "right"),
    [(True, {(0, 1, 2, 3)}), (False, {(2, 3), (1, 2, 3)})],
)
def test_cached_blocks_are_told_as_the_contract_says(counted, right):
    """Block 0 is cached and block 1 perhaps: left out are the one surely, and the other maybe."""
    spec = scope(4, 2, capabilities=ALL, free_counts_cached=counted)
    state = spec.initial().holding(Kept(), (0,)).holding(PerhapsKept(), (1,))
    operation, accepted = spec.operation(call("free_blocks")), set()
    for chosen in range(16):
        ids = tuple(block for block in range(4) if chosen >> block & 1)
        answer = Answer("done", " ".join(map(str, ids)))
        step = spec.believe(state, operation, Outcome(answer))
        if not broken(step):
            accepted.add(ids)
    assert accepted == right


def test_there_is_no_introspection_of_groups():
    """In a geometry of several groups the room has nothing to say."""
    spec = specification(
        Geometry(4, 2, groups=[Group(2), Group(2)]),
        Contract(),
        ("core", "groups", "introspection"),
    )
    assert not spec.claims("introspection")


# ------------------------------------------------------------------------------ what is asked


def test_in_a_large_pool_all_blocks_are_asked_in_turn_and_shared_ones_always():
    """At most so many at once, and each within as many looks as it takes."""
    spec = scope(100, 2, capabilities=ALL)
    state = reached(spec, allocate(0, 3), fork(0, 1))
    asked: set[int] = set()
    for clock in range(state.clock, state.clock + 17):
        queries = list(spec.queries(state.having(clock=clock)))
        blocks = [query.block for query in queries if isinstance(query, RefCount)]
        assert len(blocks) <= AT_ONCE
        assert {0, 1} <= set(blocks)
        asked.update(blocks)
    assert asked == set(range(100))


def test_the_queries_are_part_of_every_full_look():
    """A driver asks them after every call, and keeps the answers."""
    session = Session(Reference, WIDE)
    assert session.perform(WIDE.operation(allocate(0, 3))) == ()
    [step] = session.trace.steps
    assert step.outcome is not None
    queries = [asked.query for asked in step.outcome.observation.asked]
    assert queries == [*map(RefCount, range(4)), FreeBlocks()]


# ------------------------------------------------------------------------------ wrong answers


def told_of(step: Step, query: Operation, value: str) -> Step:
    """The same step with another answer to one of the standing queries."""
    assert query in [asked.query for asked in step.seen.asked]
    asked = tuple(
        Asked(a.query, Answer("done", value)) if a.query == query else a for a in step.seen.asked
    )
    seen = evolve(step.seen, asked=asked)
    return step.spec.believe(step.before, step.operation, evolve(step.outcome, observation=seen))


def shared() -> Step:
    """A and B share a block, and another is free."""
    return rehearsed(WIDE, allocate(0, 3), fork(0, 1))


def in_flight() -> Step:
    """A block is in no table and under a lease."""
    return rehearsed(WIDE, allocate(0, 1), begin(0, 0), free(0))


WRONG: dict[str, tuple[Callable[[], Step], Callable[[Step], Step], str]] = {
    "a child is not counted": (shared, lambda s: told_of(s, RefCount(0), "1"), "table-counts"),
    "a free block is counted": (shared, lambda s: told_of(s, RefCount(3), "1"), "table-counts"),
    "a table is counted twice": (shared, lambda s: told_of(s, RefCount(1), "3"), "table-counts"),
    "a lease is counted": (in_flight, lambda s: told_of(s, RefCount(0), "1"), "table-counts"),
    "a free block is missing": (shared, lambda s: told_of(s, FreeBlocks(), "2"), "free-set"),
    "no block is free": (shared, lambda s: told_of(s, FreeBlocks(), ""), "free-set"),
    "a used block is free": (shared, lambda s: told_of(s, FreeBlocks(), "1 2 3"), "free-set"),
    "another block is free": (shared, lambda s: told_of(s, FreeBlocks(), "0 3"), "free-set"),
    "a leased block is free": (
        *(in_flight, lambda s: told_of(s, FreeBlocks(), "0 1 2 3")),
        "free-set",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_answer_is_rejected_and_explained_by_its_own_law(fault):
    """What goes wrong in an allocator's books is seen, and no other law is about it."""
    step, wrong, law = WRONG[fault]
    first_of_its_own(law, wrong(step()))


FAULTS_OF_LAWS: dict[str, Callable[[], Step]] = {
    "table-counts": lambda: told_of(shared(), RefCount(0), "1"),
    "free-set": lambda: told_of(shared(), FreeBlocks(), "2"),
}
