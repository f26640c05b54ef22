"""The room of swapping: where a sequence is, which copies take it there, and what it may not do."""

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
from scopes import RandomChooser, allocate, append, begin, fork, free, reached, scope, told

from kvimpls.reference import Reference
from kvspec.contract import Contract, Geometries, Granular
from kvspec.geometry import DEVICE, HOST, Geometry
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE
from kvspec.kernel.script import Call, call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State, TableOf, table_of
from kvspec.kernel.step import Step
from kvspec.rooms import specification, swap

ALL = ("core", "sharing", "lease", "swap")
SMALL = scope(3, 2, num_host_blocks=2, capabilities=ALL)
WIDE = scope(5, 2, num_host_blocks=4, capabilities=(*ALL, "window"), window=3)
TWO = scope(2, 2, num_host_blocks=2, capabilities=("core", "swap"))


def out(seq: int) -> Call:
    """`swap_out(seq)`."""
    return call("swap_out", seq=seq)


def back(seq: int) -> Call:
    """`swap_in(seq)`."""
    return call("swap_in", seq=seq)


def at(seq: int) -> TableOf:
    """The table of `seq` on the device."""
    return table_of(seq)


def host(seq: int) -> TableOf:
    """The table of `seq` on the host."""
    return table_of(seq, 0, HOST)


# ------------------------------------------------------------------------------ the laws bite


@pytest.mark.parametrize("law", swap.LAWS, ids=lambda law: law.id)
def test_a_witness_makes_its_law_bite(law):
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(law, Reference)


def test_no_law_bites_where_nothing_is_ever_swapped():
    """A run without a swap tests nothing of the room, so both laws are vacuous in it."""
    for step in wandering(SMALL, 0):
        moved = step.operation.capability == "swap"
        moved |= any(not s.resident for s in step.before.sequences.values())
        if not moved:
            assert not any(law.bites(step) for law in swap.LAWS)


# ------------------------------------------------------------------------------ choices


def calls(spec: Specification, state: State) -> Iterator[Operation]:
    """The calls that make a difference in so small a pool, with at most two sequences."""
    script = [
        allocate(seq, n) for seq in (0, 1) for n in (0, 1, 3, 5) if seq not in state.sequences
    ]
    for seq, sequence in state.sequences.items():
        script += [append(seq, 1), append(seq, 2), free(seq), out(seq), fork(seq, 1 - seq)]
        script += [] if sequence.resident else [back(seq)]
    yield from map(spec.operation, script)


def test_every_choice_in_every_state_of_a_small_pool_is_accepted():
    """In 3 blocks of 2 and 2 on the host, with 2 sequences, no choice breaks a law."""
    spec = scope(3, 2, num_host_blocks=2, capabilities=("core", "sharing", "swap"))
    states = explored(spec, calls)
    away = [s for s in states.values() if any(not q.resident for q in s.sequences.values())]
    assert len(states) > 200
    assert len(away) > 60


@pytest.mark.parametrize(
    "spec",
    [
        SMALL,
        WIDE,
        scope(8, 2, num_host_blocks=5, capabilities=ALL, reservation=Granular(4)),
        scope(5, 2, num_host_blocks=4, capabilities=ALL, first_block=1, eager_fork="tail"),
    ],
)
def test_every_choice_on_random_walks_is_accepted(spec):
    """With leases, windows and reservations beside it, no choice of any call breaks a law."""
    kinds = set()
    for seed in range(15):
        for step in wandering(spec, seed):
            if step.operation.capability == "swap":
                kinds.add((step.operation.method, step.answer.kind))
    assert {"swap_out", "swap_in"} <= {method for method, kind in kinds if kind == "done"}
    assert {"swap_out", "swap_in"} <= {method for method, kind in kinds if kind == "refused"}


def wandering(spec: Specification, seed: int) -> Iterator[Step]:
    """The steps of a random walk over the choices."""
    chooser, state = RandomChooser(seed), spec.initial()
    for _ in range(60):
        operation = chooser.operation(spec, state)
        step = chooser.pick(accepted_choices(spec, state, operation))
        yield step
        state = step.after


@pytest.mark.parametrize(
    "script",
    [
        (allocate(0, 3), out(0)),
        (allocate(0, 4), out(0)),
        (allocate(0, 0), out(0)),
        (allocate(0, 3), out(0), back(0)),
        (allocate(0, 1), out(0), append(0, 1)),
        (allocate(0, 1), out(0), free(0)),
        (out(0),),
    ],
    ids=lambda script: " ".join(map(told, script)),
)
def test_judge_accepts_the_choices_and_rejects_every_other_outcome(script):
    """In 2 blocks and 2 on the host: all copies and all tables of both tiers, and all counts."""
    assert only_choices_are_accepted(TWO, *script)


def test_a_copy_of_what_was_never_written_may_be_left_out():
    """In a reservation beyond the length there is nothing to copy yet."""
    spec = scope(4, 2, num_host_blocks=4, capabilities=ALL, reservation=Granular(4))
    state = reached(spec, allocate(0, 1))
    answers = [o.answer.copies for o in spec.choices(state, spec.operation(out(0)))]
    assert sorted(map(len, answers)) == [1, 2]


# ------------------------------------------------------------------------------ wrong outcomes


def swapped_out() -> Step:
    """A goes to the host, while B is on the device."""
    return chosen(WIDE, allocate(1, 1), allocate(0, 3), out(0))


def refused_out() -> Step:
    """A has more blocks than the host."""
    return chosen(SMALL, allocate(0, 5), out(0))


def swapped_in() -> Step:
    """A comes back, to other blocks than it had."""
    return chosen(WIDE, allocate(0, 3), out(0), allocate(1, 1), back(0))


def refused_in() -> Step:
    """A cannot come back, since B has its blocks."""
    return chosen(SMALL, allocate(0, 3), out(0), allocate(1, 3), back(0))


def shared_out() -> Step:
    """A goes to the host, and its child keeps the blocks."""
    return chosen(WIDE, allocate(0, 3), fork(0, 1), out(0))


def leased_out() -> Step:
    """A goes to the host while its blocks are in flight."""
    return chosen(WIDE, allocate(0, 3), begin(0, 0), out(0))


def windowed_out() -> Step:
    """A goes to the host, without the entry that its window has left."""
    return chosen(WIDE, allocate(0, 4), append(0, 1), out(0))


def both_away() -> Step:
    """B goes to the host, where A is."""
    return chosen(WIDE, allocate(0, 3), allocate(1, 1), out(0), out(1))


def append_away() -> Step:
    """An append to a sequence that is on the host."""
    return chosen(WIDE, allocate(0, 3), out(0), append(0, 1))


WRONG: dict[str, tuple[Callable[[], Step], Callable[[Step], Step], str]] = {
    "a copy is forgotten": (swapped_out, lambda s: shown(s, copies((1, 0))), "swap"),
    "all copies are forgotten": (swapped_in, lambda s: shown(s, DONE), "swap"),
    "a copy goes to the wrong host block": (
        *(swapped_out, lambda s: shown(s, copies((1, 0), (2, 0)))),
        "swap",
    ),
    "the copies are the wrong way round": (
        *(swapped_out, lambda s: shown(s, copies((0, 1), (1, 2)))),
        "swap",
    ),
    "the blocks go in another order than their copies": (
        *(swapped_out, lambda s: shown(s, copies((1, 1), (2, 0)))),
        "swap",
    ),
    "a bystander's block is copied too": (
        *(swapped_out, lambda s: shown(s, copies((1, 0), (2, 1), (0, 2)))),
        "swap",
    ),
    "a copy is reported twice": (
        *(swapped_out, lambda s: shown(s, copies((1, 0), (2, 1), (2, 1)))),
        "swap",
    ),
    "the device table is still shown": (
        *(swapped_out, lambda s: shown(s, tables={at(0): (1, 2)})),
        "residence",
    ),
    "the host table has an entry too few": (
        *(swapped_out, lambda s: shown(s, copies((1, 0)), tables={host(0): (0,)})),
        "residence",
    ),
    "the host table has an entry too many": (
        *(swapped_out, lambda s: shown(s, tables={host(0): (0, 1, 2)})),
        "residence",
    ),
    "one host block holds two": (
        *(swapped_out, lambda s: shown(s, copies((1, 0), (2, 0)), tables={host(0): (0, 0)})),
        "no-overlap",
    ),
    "a block that the window left is back on the host": (
        *(windowed_out, lambda s: shown(s, tables={host(0): (2, 0, 1)}, free={HOST: 1})),
        "window",
    ),
    "the device blocks are not given back": (
        *(swapped_out, lambda s: shown(s, free={DEVICE: 2})),
        "conservation",
    ),
    "the host blocks are not counted": (
        *(swapped_out, lambda s: shown(s, free={HOST: 4})),
        "conservation",
    ),
    "a child's blocks go with its parent": (
        *(shared_out, lambda s: shown(s, free={DEVICE: 5})),
        "ref-count",
    ),
    "a child goes with its parent": (
        *(shared_out, lambda s: shown(s, tables={at(1): ()})),
        "frame",
    ),
    "the lease is forgotten": (
        *(leased_out, lambda s: shown(s, free={DEVICE: 5})),
        "in-flight",
    ),
    "a host block that another has is taken": (
        *(both_away, lambda s: shown(s, copies((2, 1)), tables={host(1): (1,)}, free={HOST: 2})),
        "no-overlap",
    ),
    "another on the host is moved": (
        *(both_away, lambda s: shown(s, tables={host(0): (0, 3)})),
        "frame",
    ),
    "a refused one has left the device": (
        *(refused_out, lambda s: shown(s, tables={at(0): ()}, free={DEVICE: 3})),
        "swap",
    ),
    "a refused one is on the host in part": (
        *(refused_out, lambda s: shown(s, tables={host(0): (0, 1)}, free={HOST: 0})),
        "residence",
    ),
    "a refused one keeps host blocks": (
        *(refused_out, lambda s: shown(s, free={HOST: 0})),
        "swap",
    ),
    "a host block leaks on the way in": (
        *(swapped_in, lambda s: shown(s, free={HOST: 3})),
        "conservation",
    ),
    "the host table is still shown": (
        *(swapped_in, lambda s: shown(s, tables={host(0): (0, 1)})),
        "residence",
    ),
    "a block of another is taken on the way in": (
        *(swapped_in, lambda s: shown(s, copies((0, 0), (1, 1)), tables={at(0): (0, 1)})),
        "no-overlap",
    ),
    "a refused one has left the host": (
        *(refused_in, lambda s: shown(s, tables={host(0): ()}, free={HOST: 2})),
        "swap",
    ),
    "a refused one keeps a device block": (
        *(refused_in, lambda s: shown(s, free={DEVICE: 0})),
        "swap",
    ),
    "what fits is refused": (swapped_out, undone, "admission"),
    "what fits is refused on the way in": (swapped_in, undone, "admission"),
    "it grows on the host": (append_away, lambda s: undone(s, DONE), "misuse"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_outcome_is_rejected_and_explained_by_its_own_law(fault):
    """What goes wrong with swapping in practice is seen, and the law reported first says what."""
    step, wrong, law = WRONG[fault]
    found = broken(wrong(step()))
    assert found[:1] == [law], found


@pytest.mark.parametrize("fault", [fault for fault, (*_, law) in WRONG.items() if law != "misuse"])
def test_a_reason_is_a_sentence_with_the_numbers(fault):
    """The reason names the sequence or the block, and ends as a sentence does."""
    step, wrong, _ = WRONG[fault]
    for breach in step().spec.judge(wrong(step())):
        assert breach.because.endswith(".")
        assert any(c.isdigit() for c in breach.because)


FAULTS_OF_LAWS: dict[str, Callable[[], Step]] = {
    "residence": lambda: shown(
        *(chosen(SMALL, allocate(0, 1), out(0), allocate(1, 1)), None),
        tables={at(0): (1,)},
        free={DEVICE: 1},
    ),
    "swap": lambda: shown(chosen(SMALL, allocate(0, 3), out(0)), copies((0, 0))),
}
IMPLIED_BY = {"swap": ["read-back"]}


@pytest.mark.parametrize("law", FAULTS_OF_LAWS)
def test_a_law_is_the_first_that_its_own_fault_breaks(law):
    """The law reported is the one whose fault it is, and later ones see it only where listed."""
    step, implied = FAULTS_OF_LAWS[law](), IMPLIED_BY.get(law, [])
    first_of_its_own(law, step, implied)
    not_idle(law, step, implied)


# ------------------------------------------------------------------------------ contents


def test_what_was_written_is_read_on_the_host_and_after_coming_back():
    """A lost copy shows in the contents too, at once and not only when somebody reads."""
    for step in (swapped_out(), swapped_in()):
        fewer = shown(step, DONE)
        assert "read-back" in broken(fewer)


def test_contents_on_the_host_survive_what_happens_on_the_device():
    """Blocks of both tiers may have the same id, and are not taken for each other."""
    state = reached(WIDE, allocate(0, 3), out(0), allocate(1, 6), free(1))
    step = chosen(WIDE, allocate(0, 3), out(0), allocate(1, 6), free(1), back(0))
    assert state.table(0) == (0, 1)
    assert broken(step) == []


# ------------------------------------------------------------------------------ the guard


def test_everything_but_free_and_swap_in_is_an_error_of_what_is_swapped_out():
    """Whatever room a call is from, of a sequence on the host it raises `NotResident`."""
    spec = scope(4, 2, num_host_blocks=3, capabilities=ALL)
    state = reached(spec, allocate(0, 1), out(0), allocate(1, 1))
    for one in (append(0, 0), append(0, 1), fork(0, 2), begin(0, 0), out(0)):
        assert spec.expect(state, spec.operation(one)).errors == {"NotResident"}
    for one in (free(0), back(0), call("block_table", seq=0), call("host_block_table", seq=0)):
        assert not spec.expect(state, spec.operation(one)).errors
    assert not spec.expect(state, spec.operation(append(1, 1))).errors


def test_proposals_never_swap_in_what_is_on_the_device():
    """That is outside the conventions; and with `callers_duty` no wrong call is proposed at all."""
    strict, duty = SMALL, scope(3, 2, num_host_blocks=2, capabilities=ALL, misuse="callers_duty")
    for spec in (strict, duty):
        for seed in range(10):
            for step in wandering(spec, seed):
                if step.operation.method == "swap_in":
                    live = (step.before.sequences.get(seq) for seq in step.operation.subjects)
                    assert not any(sequence and sequence.resident for sequence in live)
                assert spec is strict or not step.expected.errors


# ------------------------------------------------------------------------------ geometries


def test_swapping_asks_for_host_blocks_and_host_blocks_for_swapping():
    """Without a host there is nothing to judge; and blocks that nobody may use make no sense."""
    assert "swap" not in {room.capability for room in scope(capabilities=ALL).rooms}
    with pytest.raises(ValueError, match="asks for swap"):
        specification(Geometry(3, 2, num_host_blocks=1), Contract(), ("core",))
    with pytest.raises(ValueError, match="placed contiguous"):
        specification(Geometry(3, 2), Contract(placement="contiguous"), ("core", "swap"))


def test_drawn_hosts_are_of_all_sizes_and_never_empty():
    """Both a host that holds everything and one of a single block come often."""
    shapes = [swap.ROOM.shaped(Geometry(4, 2), Geometries(), RandomChooser(s)) for s in range(40)]
    drawn = [shape.num_host_blocks for shape in shapes]
    assert {1, 2, 4} <= set(drawn)
    assert min(drawn) > 0
