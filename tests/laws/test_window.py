"""The room of the window: what is let go of, when, and whom that helps."""

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
from faults import bites_in_its_witness, first_of_its_own, not_idle
from scopes import RandomChooser, allocate, append, begin, fork, free, scope, tables, told

from kvimpls.reference import Reference
from kvspec.contract import Contract, Geometries, Granular
from kvspec.geometry import DEVICE, Geometry, Group
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE
from kvspec.kernel.script import Call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State
from kvspec.kernel.step import Step
from kvspec.rooms import specification, window

ALL = ("core", "sharing", "lease", "window")


def sliding(num_blocks: int = 5, width: int = 3, **fields: object) -> Specification:
    """Blocks of 2 tokens, under a window of 3 unless it is given."""
    fields = {"capabilities": ALL, **fields}
    return scope(num_blocks, 2, window=width, **fields)  # type: ignore[arg-type]  # of any kind


# ------------------------------------------------------------------------------ the law bites


@pytest.mark.parametrize("law", window.LAWS, ids=lambda law: law.id)
def test_a_witness_makes_its_law_bite(law):
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(law, Reference)


def test_the_law_is_vacuous_as_long_as_nothing_leaves_the_window():
    """A run in which every sequence is shorter than the window tests nothing of the room."""
    [law] = window.LAWS
    assert not law.bites(chosen(sliding(), allocate(0, 4)))
    assert not law.bites(chosen(sliding(), allocate(0, 2), append(0, 1)))
    assert law.bites(chosen(sliding(), allocate(0, 4), append(0, 1)))
    assert law.bites(chosen(sliding(), allocate(0, 4), append(0, 1), allocate(1, 1)))


# ------------------------------------------------------------------------------ when


@pytest.mark.parametrize(
    ("width", "length", "added", "table"),
    [
        (3, 4, 1, "-xx"),  # its first new token sees 2, 3 and 4
        (3, 3, 1, "xx"),  # it sees 1
        (3, 4, 4, "-xxx"),  # what its last one sees does not matter
        (3, 8, 1, "---xx"),  # a prompt longer than the window: several blocks at once
        (1, 2, 1, "-x"),
        (1, 1, 1, "x"),
        (2, 3, 1, "-x"),
        (5, 8, 1, "--xxx"),
    ],
)
def test_an_append_releases_what_its_first_new_token_does_not_see(width, length, added, table):
    """Entry i is released exactly when `(i + 1) * block_size <= length + 1 - window`."""
    step = chosen(sliding(8, width), allocate(0, length), append(0, added))
    assert "".join("-" if block is None else "x" for block in step.after.table(0)) == table


def test_a_prompt_releases_nothing_however_long():
    """Allocation needs all of its blocks, and `can_allocate` can only agree with that."""
    assert None not in chosen(sliding(), allocate(0, 9)).after.table(0)


def test_what_is_released_counts_for_the_append_that_releases_it():
    """In a full pool an append fits by what it lets go of, and one token more does not."""
    full = (allocate(0, 4),)
    assert chosen(sliding(2), *full, append(0, 2)).answer.kind == "done"
    assert chosen(sliding(2), *full, append(0, 3)).answer.kind == "refused"


@pytest.mark.parametrize("holder", [fork(0, 1), begin(0, 0)], ids=told)
def test_what_another_still_holds_is_released_and_not_free(holder):
    """A child or a lease keeps the block, so that it does not count for the append."""
    assert chosen(sliding(2), allocate(0, 4), holder, append(0, 1)).answer.kind == "refused"
    step = chosen(sliding(3), allocate(0, 4), holder, append(0, 1))
    assert step.after.table(0) == (None, 1, 2)
    assert step.seen.free == {DEVICE: 0}


def test_released_entries_are_inherited_and_stay_so():
    """A child has the holes of its parent, and further appends leave them as they are."""
    script = (allocate(0, 4), append(0, 1), fork(0, 1))
    assert chosen(sliding(), *script).after.table(1) == (None, 1, 2)
    assert chosen(sliding(), *script, append(1, 1)).after.table(1)[:2] == (None, 1)


# ------------------------------------------------------------------------------ choices


def calls(spec: Specification, state: State) -> Iterator[Operation]:
    """The calls that make a difference in so small a pool, with at most two sequences."""
    script: list[Call] = []
    for seq in (0, 1):
        if seq not in state.sequences:
            script += [allocate(seq, n) for n in (1, 3, 4, 6)]
    for seq in state.sequences:
        script += [append(seq, n) for n in (0, 1, 2, 3)] + [free(seq), fork(seq, 1 - seq)]
    yield from map(spec.operation, script)


def test_every_choice_in_every_state_of_a_small_pool_is_accepted():
    """In 3 blocks of 2 with a window of 3, with 2 sequences of 6, no choice breaks a law."""
    spec = sliding(3, capabilities=("core", "sharing", "window"), max_tokens=6)
    states = explored(spec, calls)
    slid = [s for s in states.values() if any(None in entries for _, entries in s.tables())]
    assert len(states) > 120
    assert len(slid) > 40


WORLDS = {
    "strict": sliding(),
    "a window of one": sliding(4, 1),
    "late": sliding(window_release="late"),
    "early": sliding(window_release="early"),
    "before a refusal": sliding(window_before_refusal=True),
    "granules of 4": sliding(8, reservation=Granular(4)),
    "eager tail": sliding(eager_fork="tail", first_block=1),
    "one group of two": scope(
        *(7, 2), groups=[Group(2), Group(3, window=4, num_blocks=4)], capabilities=(*ALL, "groups")
    ),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_choice_on_random_walks_is_accepted(world):
    """Under every contract that is about windows, no choice of a proposed call breaks a law."""
    spec, slides = WORLDS[world], set()
    for seed in range(15):
        chooser, state = RandomChooser(seed), spec.initial()
        for _ in range(40):
            operation = chooser.operation(spec, state)
            step = chooser.pick(accepted_choices(spec, state, operation))
            for table, before, after in step.survivors:
                if step.operation.added(table.seq):
                    gone = sum(
                        b is not None and a is None for b, a in zip(before, after, strict=False)
                    )
                    slides.add((step.answer.kind, min(gone, 2)))
            state = step.after
    assert {("done", 0), ("done", 1), ("done", 2), ("refused", 0)} <= slides
    assert (("refused", 1) in slides) == (world == "before a refusal")


@pytest.mark.parametrize(
    "script",
    [
        (allocate(0, 4), append(0, 1)),
        (allocate(0, 4), append(0, 2)),
        (allocate(0, 4), append(0, 3)),
        (allocate(0, 3), append(0, 1)),
        (allocate(0, 4), append(0, 0)),
        (allocate(0, 4),),
        (allocate(0, 4), begin(0, 0), append(0, 1)),
        (allocate(0, 4), append(0, 1), begin(0, 0)),
    ],
    ids=lambda script: " ".join(map(told, script)),
)
def test_judge_accepts_the_choices_and_rejects_every_other_outcome(script):
    """In 2 blocks: one copy or none, all tables of 3 entries with and without holes, all counts."""
    assert only_choices_are_accepted(sliding(2), *script, entries=3, copied=1, none=True)


def test_judge_accepts_the_choices_of_a_child_and_rejects_every_other_outcome():
    """Of two tables with a hole in common, the child's may be no other than its parent's."""
    script = (allocate(0, 2), append(0, 1), fork(0, 1))
    assert only_choices_are_accepted(sliding(2, 1), *script, copied=1, none=True)


# ------------------------------------------------------------------------------ wrong outcomes


def slid() -> Step:
    """The window leaves the first block of A."""
    return chosen(sliding(), allocate(0, 4), append(0, 1))


def slid_again() -> Step:
    """A grows within its last block, and its window leaves nothing more."""
    return chosen(sliding(), allocate(0, 4), append(0, 1), append(0, 1))


def slid_far() -> Step:
    """The window leaves three blocks of a long prompt at once."""
    return chosen(sliding(8), allocate(0, 8), append(0, 1))


def long_append() -> Step:
    """A grows by more than the window."""
    return chosen(sliding(8), allocate(0, 4), append(0, 4))


def prompt() -> Step:
    """A prompt longer than the window."""
    return chosen(sliding(), allocate(0, 6))


def nothing_added() -> Step:
    """An append of no tokens, to a prompt longer than the window."""
    return chosen(sliding(), allocate(0, 6), append(0, 0))


def refused() -> Step:
    """An append that does not fit, though the window leaves a block."""
    return chosen(sliding(2), allocate(0, 4), append(0, 3))


def exact_fit() -> Step:
    """An append that fits by what the window leaves."""
    return chosen(sliding(2), allocate(0, 4), append(0, 1))


def shared() -> Step:
    """The window leaves a block that the child of A has too."""
    return chosen(sliding(), allocate(0, 4), fork(0, 1), append(0, 1))


def leased() -> Step:
    """The window leaves a block that is in flight."""
    return chosen(sliding(), allocate(0, 4), begin(0, 0), append(0, 1))


def leased_full() -> Step:
    """The same in a full pool."""
    return chosen(sliding(2), allocate(0, 4), begin(0, 0), append(0, 1))


def forked() -> Step:
    """A child of a sequence with a hole."""
    return chosen(sliding(), allocate(0, 4), append(0, 1), fork(0, 1))


def bystander() -> Step:
    """B grows, and A is longer than the window."""
    return chosen(sliding(), allocate(0, 6), allocate(1, 1), append(1, 1))


def seen(step: Step, by_seq: dict[int, tuple[int | None, ...]], free: int) -> Step:
    """The step with other tables, and with the count that would go with them."""
    return shown(step, tables=tables(by_seq), free={DEVICE: free})


WRONG: dict[str, tuple[Callable[[], Step], Callable[[Step], Step], str]] = {
    "nothing is released": (slid, lambda s: seen(s, {0: (0, 1, 2)}, 2), "window"),
    "an entry too many is released": (slid, lambda s: seen(s, {0: (None, None, 2)}, 4), "window"),
    "a block of the window is released instead": (
        *(slid, lambda s: seen(s, {0: (0, None, 2)}, 3)),
        "window",
    ),
    "one of several is kept": (
        *(slid_far, lambda s: seen(s, {0: (None, None, 2, 3, 4)}, 5)),
        "window",
    ),
    "the last of several is kept in the middle": (
        *(slid_far, lambda s: seen(s, {0: (None, 1, None, 3, 4)}, 5)),
        "window",
    ),
    "the last new token judges": (
        *(long_append, lambda s: seen(s, {0: (None, None, 2, 3)}, 6)),
        "window",
    ),
    "a prompt releases at once": (prompt, lambda s: seen(s, {0: (None, 1, 2)}, 3), "window"),
    "no tokens release": (nothing_added, lambda s: seen(s, {0: (None, 1, 2)}, 3), "window"),
    "a released entry comes back": (slid_again, lambda s: seen(s, {0: (3, 1, 2)}, 2), "window"),
    "a child fills the hole of its parent": (
        *(forked, lambda s: seen(s, {1: (3, 1, 2)}, 2)),
        "window",
    ),
    "a bystander's window slides": (bystander, lambda s: seen(s, {0: (None, 1, 2)}, 2), "window"),
    "a refused append has released": (refused, lambda s: seen(s, {0: (None, 1)}, 1), "window"),
    "the table is shortened": (slid, lambda s: seen(s, {0: (1, 2)}, 3), "window"),
    "a released block is not free": (slid, lambda s: shown(s, free={DEVICE: 2}), "conservation"),
    "a shared one is free": (shared, lambda s: shown(s, free={DEVICE: 3}), "ref-count"),
    "one in flight is free": (leased, lambda s: shown(s, free={DEVICE: 3}), "in-flight"),
    "one in flight is used again": (leased, lambda s: seen(s, {0: (None, 1, 0)}, 3), "in-flight"),
    "a shared one is used again": (shared, lambda s: seen(s, {0: (None, 1, 0)}, 3), "no-overlap"),
    "a block of the window is used again": (
        *(exact_fit, lambda s: seen(s, {0: (None, 1, 1)}, 1)),
        "no-overlap",
    ),
    "what fits by the window is refused": (exact_fit, undone, "admission"),
    "one in flight counts for the append": (
        *(leased_full, lambda s: shown(s, DONE, tables({0: (None, 1, 0)}), {DEVICE: 0})),
        "in-flight",
    ),
    "a copy goes where there is no entry": (
        slid,
        lambda s: shown(s, copies((0, 2))),
        "needless-copy",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_outcome_is_rejected_and_explained_by_its_own_law(fault):
    """What goes wrong with windows in practice is seen, and the law reported first says what."""
    step, wrong, law = WRONG[fault]
    found = broken(wrong(step()))
    assert found[:1] == [law], found


def test_a_reason_has_the_window_and_the_tables():
    """The sentence says how long the sequence was, what the window left, and what is shown."""
    step = seen(slid(), {0: (0, 1, 2)}, 2)
    [because] = [b.because for b in step.spec.judge(step) if b.law == "window"]
    assert because == (
        "A gets 1 token beyond 4, and 1 of its blocks of 2 lies wholly before its window of 3 "
        "then; the table was [0 1] and is [0 1 2]: entry 0 must be released by now."
    )


FAULTS_OF_LAWS: dict[str, Callable[[], Step]] = {"window": lambda: seen(slid(), {0: (0, 1, 2)}, 2)}


def test_the_law_is_the_only_one_that_its_fault_breaks():
    """Nothing else sees that a block is kept too long: without the law it passes."""
    step = FAULTS_OF_LAWS["window"]()
    first_of_its_own("window", step)
    not_idle("window", step)


# ------------------------------------------------------------------------------ contracts


@pytest.mark.parametrize(
    ("release", "table"),
    [("exact", (None, 1, 2, 3)), ("late", (0, 1, 2, 3)), ("early", (None, None, 2, 3))],
)
def test_the_contract_says_by_which_token_is_judged(release, table):
    """By the first new one, by the last before it, or by the last new one."""
    spec = sliding(8, window_release=release)
    step = chosen(spec, allocate(0, 4), append(0, 3))
    assert step.after.table(0) == table
    for other in {(None, 1, 2, 3), (0, 1, 2, 3), (None, None, 2, 3)} - {table}:
        assert broken(seen(step, {0: other}, 8 - sum(b is not None for b in other)))[0] == "window"


def test_the_contract_may_let_a_refused_append_release():
    """Then both are allowed: that it has, and that it has not; but nothing else."""
    spec = sliding(2, window_before_refusal=True)
    assert (
        only_choices_are_accepted(
            *(spec, allocate(0, 4), append(0, 3)), entries=3, copied=1, none=True
        )
        == 2
    )


def test_windows_need_the_capability_and_blocks_that_lie_anywhere():
    """A geometry with a window asks for the claim, and no extent has a hole."""
    with pytest.raises(ValueError, match="asks for window"):
        specification(Geometry(3, 2, window=3), Contract(), ("core",))
    with pytest.raises(ValueError, match="placed contiguous"):
        specification(Geometry(3, 2), Contract(placement="contiguous"), ("core", "window"))
    assert "window" not in {room.capability for room in scope(capabilities=ALL).rooms}


def test_most_of_the_drawn_geometries_have_a_small_window():
    """The others leave room for what windows have no part in."""
    shapes = [window.ROOM.shaped(Geometry(4, 2), Geometries(), RandomChooser(s)) for s in range(99)]
    drawn = [shape.window for shape in shapes]
    assert 20 < drawn.count(None) < 50
    assert {1, 2, 3, 4, 5, None} == set(drawn)
