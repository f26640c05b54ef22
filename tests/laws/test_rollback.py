"""The room of rollback: what is left of a table, and what the next append does with it."""

from collections.abc import Callable, Iterator

import pytest
from exploring import (
    accepted_choices,
    broken,
    chosen,
    copies,
    explored,
    only_choices_are_accepted,
    shown,
    undone,
)
from faults import bites_in_its_witness, first_of_its_own
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
    told,
)

from kvimpls.reference import Reference
from kvspec.contract import Doubling, Exact, Geometries, Granular, Pow2, ToMax, Unspecified
from kvspec.geometry import DEVICE, Group, Place
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE, REFUSED, Answer
from kvspec.kernel.script import Call, call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State, table_of
from kvspec.kernel.step import Step
from kvspec.rooms import rollback

ALL = ("core", "sharing", "rollback", "lease")
SMALL = scope(3, 2, capabilities=ALL)
WIDE = scope(6, 2, capabilities=ALL)
WINDOWED = scope(6, 2, capabilities=(*ALL, "window"), window=3)
BOUNDED = Geometries(max_tokens="required")


def cut(seq: int, num_tokens: object) -> Call:
    """`truncate(seq, num_tokens)`."""
    return call("truncate", seq=seq, num_tokens=num_tokens)


# ------------------------------------------------------------------------------ the law bites


def test_the_witness_makes_the_law_bite():
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(rollback.LAWS[0], Reference)


# ------------------------------------------------------------------------------ choices


def calls(spec: Specification, state: State) -> Iterator[Operation]:
    """The calls that make a difference in so small a pool, with at most two sequences."""
    script = [allocate(seq, n) for seq in (0, 1) for n in (1, 3) if seq not in state.sequences]
    leases = state.slices["lease"]
    for seq, sequence in state.sequences.items():
        script += [append(seq, 1), free(seq), fork(seq, 1 - seq)]
        script += [cut(seq, n) for n in range(sequence.length + 2)]
        script += [] if leases.open or leases.ended else [begin(seq, 0)]
    yield from map(spec.operation, [*script, *map(end, leases.open)])


def test_every_choice_in_every_state_of_a_small_pool_is_accepted():
    """In 3 blocks of 2, with 2 sequences and a lease, no choice of any call breaks a law."""
    assert len(explored(SMALL, calls)) > 300


def wandering(spec: Specification, seed: int) -> Iterator[Step]:
    """The steps of a random walk over the choices."""
    chooser, state = RandomChooser(seed), spec.initial()
    for _ in range(60):
        operation = chooser.operation(spec, state)
        step = chooser.pick(accepted_choices(spec, state, operation))
        yield step
        state = step.after


WORLDS = {
    "strict": WIDE,
    "a window": WINDOWED,
    "an early window": scope(6, 2, capabilities=(*ALL, "window"), window=3, window_release="early"),
    "granules": scope(8, 2, capabilities=ALL, reservation=Granular(4)),
    "exact": scope(8, 2, capabilities=(*ALL, "reservation"), reservation=Exact()),
    "powers of two": scope(8, 2, capabilities=(*ALL, "reservation"), reservation=Pow2()),
    "doubling": scope(8, 2, capabilities=ALL, reservation=Doubling()),
    "to max": scope(8, 2, max_tokens=4, capabilities=ALL, reservation=ToMax(), geometries=BOUNDED),
    "unspecified": scope(5, 2, capabilities=ALL, reservation=Unspecified()),
    "eager tail": scope(6, 2, capabilities=ALL, eager_fork="tail", first_block=1),
    "one extent": scope(6, 1, capabilities=("core", "rollback"), placement="contiguous"),
    "an aligned extent": scope(
        8, 1, capabilities=("core", "rollback"), placement="aligned", reservation=Exact()
    ),
    "groups": scope(6, 2, capabilities=(*ALL, "groups"), groups=[Group(2), Group(1, num_blocks=8)]),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_choice_on_random_walks_is_accepted(world):
    """Under every reservation, with windows, groups and extents, no choice breaks a law."""
    kinds = set()
    for seed in range(12):
        for step in wandering(WORLDS[world], seed):
            if step.operation.method == "truncate":
                kinds.add(step.answer.kind)
    assert kinds == {"done", "error"}


@pytest.mark.parametrize(
    "script",
    [
        (allocate(0, 3), cut(0, 2)),
        (allocate(0, 3), cut(0, 3)),
        (allocate(0, 3), cut(0, 0)),
        (allocate(0, 3), cut(0, 4)),
        (allocate(0, 3), cut(0, -1)),
        (allocate(0, 2), fork(0, 1), cut(0, 1)),
        (allocate(0, 2), fork(0, 1), cut(0, 1), append(0, 1)),
        (allocate(0, 3), begin(0, 0), cut(0, 1)),
        (allocate(0, 4), begin(0, 0), cut(0, 3), append(0, 1)),
        (cut(0, 0),),
    ],
    ids=lambda script: " ".join(map(told, script)),
)
def test_judge_accepts_the_choices_and_rejects_every_other_outcome(script):
    """In 3 blocks of 2: up to one copy, all tables of two entries, and all counts."""
    assert only_choices_are_accepted(SMALL, *script, copied=1)


def test_an_unspecified_reservation_may_keep_any_number_of_entries():
    """What a contract does not bound from above may be kept, but never more than there was."""
    spec = scope(4, 2, capabilities=ALL, reservation=Unspecified())
    state = reached(spec, allocate(0, 5))
    outcomes = spec.choices(state, spec.operation(cut(0, 1)))
    assert sorted(len(o.observation.tables[table_of(0)]) for o in outcomes) == [1, 2, 3]


@pytest.mark.parametrize(("length", "errors"), [(8, ()), (7, ("InvalidLength",)), (0, ())])
def test_a_cut_into_what_the_window_has_left_is_invalid(length, errors):
    """Of 8 tokens in blocks of 2 with a window of 3, entries 0 and 1 have gone."""
    state = reached(WINDOWED, allocate(0, 6), append(0, 1), append(0, 1))
    assert state.table(0)[:2] == (None, None)
    operation = WINDOWED.operation(cut(0, length))
    assert WINDOWED.expect(state, operation).errors == set(errors) or length == 7
    assert WINDOWED.expect(state, WINDOWED.operation(cut(0, 6))).errors == {"InvalidLength"}


# ------------------------------------------------------------------------------ wrong outcomes


def shorter() -> Step:
    """A is cut from three blocks to one and a half."""
    return chosen(WIDE, allocate(1, 1), allocate(0, 5), cut(0, 3))


def same() -> Step:
    """A is cut to the length that it has."""
    return chosen(WIDE, allocate(0, 3), cut(0, 3))


def emptied() -> Step:
    """A is cut to nothing, and its child keeps the blocks."""
    return chosen(WIDE, allocate(0, 3), fork(0, 1), cut(0, 0))


def leased() -> Step:
    """A is cut while its blocks are in flight."""
    return chosen(WIDE, allocate(0, 3), begin(0, 0), cut(0, 0))


def longer() -> Step:
    """A cut to more than there is, which is an error."""
    return chosen(WIDE, allocate(0, 3), cut(0, 4))


def grown_again() -> Step:
    """A was cut within a block that its child has too, and writes into it again."""
    return chosen(WIDE, allocate(0, 4), fork(0, 1), cut(0, 3), append(0, 1))


def grouped() -> Step:
    """A is cut in two groups."""
    return chosen(WORLDS["groups"], allocate(0, 4), cut(0, 2))


POOL_1 = Place(pool=1)
WRONG: dict[str, tuple[Callable[[], Step], Callable[[Step], Step], str]] = {
    "an entry too many is kept": (
        *(shorter, lambda s: shown(s, tables={table_of(0): (1, 2, 3)}, free={DEVICE: 2})),
        "rollback",
    ),
    "an entry too few is kept": (
        *(shorter, lambda s: shown(s, tables={table_of(0): (1,)}, free={DEVICE: 4})),
        "rollback",
    ),
    "the last entries are kept": (
        *(shorter, lambda s: shown(s, tables={table_of(0): (2, 3)})),
        "rollback",
    ),
    "another block is shown": (
        *(shorter, lambda s: shown(s, tables={table_of(0): (1, 4)})),
        "rollback",
    ),
    "a kept entry is released": (
        *(shorter, lambda s: shown(s, tables={table_of(0): (None, 2)})),
        "rollback",
    ),
    "a cut to the same length gives up a block": (
        *(same, lambda s: shown(s, tables={table_of(0): (0,)}, free={DEVICE: 5})),
        "rollback",
    ),
    "the other group is forgotten": (
        *(grouped, lambda s: shown(s, tables={table_of(0, 1, POOL_1): (6, 7, 8, 9)})),
        "rollback",
    ),
    "the block that is cut into is copied": (
        *(shorter, lambda s: shown(s, copies((2, 4)), tables={table_of(0): (1, 4)})),
        "rollback",
    ),
    "a copy is reported that was not made": (
        *(shorter, lambda s: shown(s, copies((2, 4)))),
        "needless-copy",
    ),
    "what was given up leaks": (shorter, lambda s: shown(s, free={DEVICE: 2}), "conservation"),
    "a child's blocks are given up": (emptied, lambda s: shown(s, free={DEVICE: 6}), "ref-count"),
    "the child is cut too": (
        *(emptied, lambda s: shown(s, tables={table_of(1): ()}, free={DEVICE: 6})),
        "frame",
    ),
    "the lease is forgotten": (leased, lambda s: shown(s, free={DEVICE: 6}), "in-flight"),
    "a cut is refused": (shorter, undone, "admission"),
    "a cut that is right is called wrong": (
        *(shorter, lambda s: undone(s, Answer("error", "InvalidLength"))),
        "admission",
    ),
    "a cut makes it longer": (longer, lambda s: undone(s, DONE), "misuse"),
    "a wrong cut is out of blocks": (longer, lambda s: undone(s, REFUSED), "misuse"),
    "the shared block is written into again": (
        *(grown_again, lambda s: undone(s, DONE)),
        "copy-on-write",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_outcome_is_rejected_and_explained_by_its_own_law(fault):
    """What goes wrong with rollback in practice is seen, and the law reported first says what."""
    step, wrong, law = WRONG[fault]
    found = broken(wrong(step()))
    assert found[:1] == [law], found


@pytest.mark.parametrize("fault", WRONG)
def test_a_reason_is_a_sentence(fault):
    """Every reason ends as a sentence does."""
    step, wrong, _ = WRONG[fault]
    assert all(b.because.endswith(".") for b in step().spec.judge(wrong(step())))


def test_what_was_cut_off_reads_as_what_is_written_next():
    """After a cut, the position reads the new cell; a table that lost the old block breaks that."""
    step = chosen(WIDE, allocate(0, 4), cut(0, 3), append(0, 1))
    assert step.after.sequences[0].cells[3].operation == 2
    assert broken(shown(step, tables={table_of(0): (0, 3)}))[-1] == "read-back"


FAULTS_OF_LAWS: dict[str, Callable[[], Step]] = {
    "rollback": lambda: shown(shorter(), tables={table_of(0): (1, 3)}),
}


def test_a_law_is_the_first_that_its_own_fault_breaks():
    """Another block in a table that was cut: the law says so, and then the laws that imply it."""
    first_of_its_own("rollback", FAULTS_OF_LAWS["rollback"](), ["needless-copy", "read-back"])
