"""The room of resizing: when a pool may shrink, and what is left as it was."""

from collections.abc import Callable, Iterator

import pytest
from exploring import accepted_choices, broken, chosen, explored, shown, undone
from faults import bites_in_its_witness, first_of_its_own
from scopes import (
    RandomChooser,
    allocate,
    append,
    begin,
    can_allocate,
    end,
    fork,
    free,
    reached,
    scope,
    told,
)

from kvimpls.reference import Reference
from kvspec.contract import Contract, Granular
from kvspec.engines.session import Session
from kvspec.geometry import DEVICE, Geometry, Group
from kvspec.interface import OutOfBlocks
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE, REFUSED, Answer, Observation, Outcome
from kvspec.kernel.script import Call, call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State, table_of
from kvspec.kernel.step import Step
from kvspec.rooms import resize, specification
from kvspec.traces.cases import Case
from kvspec.traces.moves import moves
from kvspec.traces.trace import TraceError, from_json, to_json

ALL = ("core", "admission", "sharing", "lease", "resize")
SMALL = scope(2, 2, capabilities=ALL)
WIDE = scope(4, 2, capabilities=ALL)


def to(num_blocks: object) -> Call:
    """`resize(num_blocks)`."""
    return call("resize", num_blocks=num_blocks)


# ------------------------------------------------------------------------------ the law bites


def test_the_witness_makes_the_law_bite():
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(resize.LAWS[0], Reference)


# ------------------------------------------------------------------------------ choices


def calls(spec: Specification, state: State) -> Iterator[Operation]:
    """The calls that make a difference in so small a pool, with at most two sequences."""
    leases = state.slices["lease"]
    script = [allocate(seq, n) for seq in (0, 1) for n in (1, 3) if seq not in state.sequences]
    for seq in state.sequences:
        script += [append(seq, 1), free(seq), fork(seq, 1 - seq)]
        script += [] if leases.open or leases.ended else [begin(seq, 0)]
    script += [*map(to, range(5)), can_allocate(5), *map(end, leases.open)]
    yield from map(spec.operation, script)


def test_every_choice_in_every_state_of_a_small_pool_is_accepted():
    """In 2 blocks of 2 that become 1 to 4, with 2 sequences and a lease, no choice breaks a law."""
    states = explored(SMALL, calls)
    assert {len(state.blocks()) for state in states.values()} == {1, 2, 3, 4}
    assert len(states) > 500


@pytest.mark.parametrize(
    "spec",
    [
        WIDE,
        scope(5, 1, capabilities=ALL, first_block=3),
        scope(6, 2, capabilities=ALL, reservation=Granular(4)),
        scope(4, 2, capabilities=(*ALL, "introspection")),
    ],
)
def test_every_choice_on_random_walks_is_accepted(spec):
    """Wherever the ids begin, and never to more than twice the blocks that there were."""
    kinds = set()
    for seed in range(15):
        chooser, state = RandomChooser(seed), spec.initial()
        for _ in range(40):
            operation = chooser.operation(spec, state)
            step = chooser.pick(accepted_choices(spec, state, operation))
            state = step.after
            assert len(state.blocks()) <= 2 * spec.geometry.num_blocks
            if operation.method == "resize":
                kinds.add(step.answer.kind)
    assert kinds == {"done", "refused", "error"}


@pytest.mark.parametrize(
    ("script", "sizes"),
    [
        ((), {1, 2, 3, 4, 5, 6}),
        ((allocate(0, 3),), {2, 3, 4, 5, 6}),
        ((allocate(0, 2), allocate(1, 2), free(0)), {2, 3, 4, 5, 6}),
        ((allocate(0, 2), allocate(1, 2), free(1)), {1, 2, 3, 4, 5, 6}),
        ((allocate(0, 2), allocate(1, 2), begin(1, 0), free(1)), {2, 3, 4, 5, 6}),
        ((allocate(0, 2), allocate(1, 2), begin(1, 0), free(1), end(0)), {1, 2, 3, 4, 5, 6}),
        ((to(6), allocate(0, 12)), {6}),
    ],
    ids=lambda case: " ".join(map(told, case)) if isinstance(case, tuple) else "",
)
def test_a_pool_shrinks_to_just_the_sizes_beyond_which_nothing_is_in_use(script, sizes):
    """Of 4 blocks of 2, as far as used and leased blocks allow; it always grows."""
    state = reached(WIDE, *script)
    for size in range(1, 7):
        expected = WIDE.expect(state, WIDE.operation(to(size)))
        assert (expected.done, expected.refused) == (size in sizes, size not in sizes)


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", None])
def test_a_size_that_is_none_is_an_invalid_length(size):
    """No pool has less than a block."""
    assert WIDE.expect(WIDE.initial(), WIDE.operation(to(size))).errors == {"InvalidLength"}


def test_where_blocks_may_move_only_the_number_and_leases_count():
    """Under a contract that relocates, what is used may move below the new end."""
    spec = scope(4, 2, capabilities=ALL, relocates=True)
    state = reached(WIDE, allocate(0, 4), allocate(1, 2), free(0))
    assert state.table(1) == (2,)
    assert spec.expect(state, spec.operation(to(1))).done
    assert not WIDE.expect(state, WIDE.operation(to(1))).done
    leased = reached(WIDE, allocate(0, 4), allocate(1, 2), free(0), begin(1, 0))
    assert spec.expect(leased, spec.operation(to(2))).refused
    full = reached(WIDE, allocate(0, 4))
    assert spec.expect(full, spec.operation(to(1))).refused


def test_there_is_no_resizing_of_groups():
    """In a geometry of several groups the room has nothing to say."""
    spec = specification(
        Geometry(4, 2, groups=[Group(2), Group(2)]), Contract(), ("core", "groups", "resize")
    )
    assert not spec.claims("resize")


# ------------------------------------------------------------------------------ wrong outcomes


def grown() -> Step:
    """From 4 blocks to 6, with A in the first."""
    return chosen(WIDE, allocate(0, 1), to(6))


def shrunk() -> Step:
    """From 4 blocks to 2, with A in the first."""
    return chosen(WIDE, allocate(0, 1), to(2))


def used() -> Step:
    """To 1 block, with A in two."""
    return chosen(WIDE, allocate(0, 3), to(1))


def leased() -> Step:
    """To 1 block, with the second in flight."""
    return chosen(WIDE, allocate(0, 2), allocate(1, 2), begin(1, 0), free(1), to(1))


def wrong() -> Step:
    """To no block."""
    return chosen(WIDE, to(0))


def later() -> Step:
    """An allocation of all that there is after the pool has grown."""
    return chosen(WIDE, to(6), allocate(0, 12))


def asked() -> Step:
    """Whether there could ever be six blocks, after the pool has grown to that."""
    return chosen(WIDE, to(6), can_allocate(12))


def done(step: Step) -> Step:
    """The call succeeds where it may not, and shows what was there before."""
    return undone(step, DONE)


WRONG: dict[str, tuple[Callable[[], Step], Callable[[Step], Step], str]] = {
    "growing is refused": (grown, undone, "resize"),
    "shrinking is refused where nothing is beyond the end": (shrunk, undone, "resize"),
    "a used block beyond the end is given up": (used, done, "resize"),
    "a leased block beyond the end is given up": (leased, done, "resize"),
    "the new blocks are not counted": (grown, lambda s: shown(s, free={DEVICE: 3}), "resize"),
    "the old blocks are still counted": (shrunk, lambda s: shown(s, free={DEVICE: 3}), "resize"),
    "a table is moved": (shrunk, lambda s: shown(s, tables={table_of(0): (1,)}), "resize"),
    "a table is emptied": (shrunk, lambda s: shown(s, tables={table_of(0): ()}), "resize"),
    "a right size is called wrong": (
        *(shrunk, lambda s: undone(s, Answer("error", "InvalidLength"))),
        "resize",
    ),
    "a copy is reported": (
        *(shrunk, lambda s: shown(s, Answer("done", copies=((0, 1),)))),
        "needless-copy",
    ),
    "no block is a size": (wrong, done, "misuse"),
    "a wrong size is refused": (wrong, lambda s: undone(s, REFUSED), "misuse"),
    "the size that it was built with still bounds it": (later, undone, "admission"),
    "the size that it was built with still decides what is never": (
        *(asked, lambda s: undone(s, Answer("done", "NEVER"))),
        "can-allocate",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_outcome_is_rejected_and_explained_by_its_own_law(fault):
    """What goes wrong with resizing is seen, and the law reported first says what."""
    step, distort, law = WRONG[fault]
    found = broken(distort(step()))
    assert found[:1] == [law], found


class Careless(Reference):
    """Gives up blocks in use, though their tables go on naming them."""

    def resize(self, num_blocks):
        """Nothing is looked at."""
        try:
            return super().resize(num_blocks)
        except OutOfBlocks:
            return []


def test_a_table_with_a_block_that_has_gone_is_a_matter_of_the_law():
    """What is beyond the end was a block just now, so that a table has it is no nonsense."""
    session = Session(Careless, WIDE)
    assert session.perform(WIDE.operation(allocate(0, 4))) == ()
    breaches = session.perform(WIDE.operation(to(1)))
    assert breaches[0].law == "resize"
    assert "block 1 beyond the new end is in use" in breaches[0].because


def test_where_blocks_may_move_a_table_must_be_below_the_end_afterwards():
    """A relocating allocator shrinks, and leaves a table where it was."""
    spec = scope(4, 2, capabilities=ALL, relocates=True)
    state = reached(WIDE, allocate(0, 2), allocate(1, 2), free(0))
    seen = Observation(tables={table_of(1): (1,)}, free={DEVICE: 0})
    step = spec.believe(state, spec.operation(to(1)), Outcome(DONE, seen))
    assert broken(step)[0] == "resize"
    moved = Observation(tables={table_of(1): (0,)}, free={DEVICE: 0})
    answer = Answer("done", copies=((1, 0),))
    assert broken(spec.believe(state, spec.operation(to(1)), Outcome(answer, moved))) == []


FAULTS_OF_LAWS: dict[str, Callable[[], Step]] = {
    "resize": lambda: shown(grown(), free={DEVICE: 3}),
}


def test_a_law_is_the_first_that_its_own_fault_breaks():
    """New blocks that are not counted: the law says so, and then conservation implies it."""
    first_of_its_own("resize", FAULTS_OF_LAWS["resize"](), ["conservation"])


# ------------------------------------------------------------------------------ traces


def test_no_move_makes_a_pool_more_than_twice_as_large_as_it_was_built():
    """A smaller pool takes its resizes with it."""
    session = Session(Reference, WIDE)
    for one in (allocate(0, 1), to(8), to(3)):
        assert session.perform(WIDE.operation(one)) == ()
    case = Case(WIDE.geometry, session.trace.steps)
    for move in moves(case):
        sizes = [s.operation.num_blocks for s in move.steps if s.operation.method == "resize"]
        assert all(size <= 2 * move.geometry.num_blocks for size in sizes)
    assert any(move.geometry.num_blocks == 3 and len(move.steps) == 3 for move in moves(case))


def test_a_trace_that_makes_the_pool_larger_than_that_is_not_read():
    """Following it would take memory that nobody has bounded."""
    session = Session(Reference, WIDE)
    session.perform(WIDE.operation(to(8)))
    text = to_json(session.trace)
    assert from_json(text) == session.trace
    with pytest.raises(TraceError, match="larger than 8 blocks"):
        from_json(text.replace('"num_blocks": 8', '"num_blocks": 9'))
