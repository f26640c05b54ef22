"""Each law: that it is told in full, that it bites, and that its own fault is reported as its own.

A fault here is one real step of the reference whose outcome was changed in the smallest way.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from attending import Attending
from attrs import evolve
from faults import bites_in_its_witness, faulty, first_of_its_own, not_idle, rehearsed, witnessed
from scopes import (
    CONTROL,
    UNSHARED,
    RandomChooser,
    allocate,
    append,
    begin,
    can_allocate,
    fork,
    free,
    scope,
    tables,
    write,
)

from kvimpls.museum import SpuriousRefusalAtExactFit
from kvimpls.reference import Reference
from kvimpls.traditional import ContiguousFirstFit
from kvspec.contract import Contract, Exact, Geometries, Granular, Unspecified
from kvspec.geometry import DEVICE, Geometry
from kvspec.interface import Copy
from kvspec.kernel.law import Law, LawBroken
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE, REFUSED, Answer
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import TableOf
from kvspec.kernel.step import Step
from kvspec.rooms import LAWS, ORDER, ROOMS, specification

BY_ID = {law.id: law for law in LAWS}
ATTENDING = scope(4, capabilities=("core", "store", "attention"))
EXTENTS = scope(4, 1, placement="contiguous", reservation=Exact(), capabilities=UNSHARED)


def told(law: Law) -> str:
    """A law as a test's id."""
    return law.id


# ------------------------------------------------------------------------------ told in full


def test_the_published_order_names_every_law_once():
    """`ORDER` and the rooms' laws have the same ids, none twice."""
    ids = [law.id for room in ROOMS for law in room.laws]
    assert len(set(ids)) == len(ids)
    assert len(set(ORDER)) == len(ORDER)
    assert set(ids) == set(ORDER)
    assert tuple(law.id for law in LAWS) == ORDER


@pytest.mark.parametrize("law", LAWS, ids=told)
def test_a_law_says_what_it_claims_and_whence(law):
    """A law has a statement that is a sentence, a source, and something that disturbs it."""
    assert law.statement.endswith(".")
    assert law.source.strip()
    assert law.shaken_by
    assert law in next(room for room in ROOMS if room.capability == law.capability).laws


def test_each_law_has_an_exception_of_its_own_named_after_it():
    """A test can expect the breach of one law: `no-overlap` raises `NoOverlapBroken`."""
    names = [law.exception.__name__ for law in LAWS]
    assert names == [law.id.title().replace("-", "") + "Broken" for law in LAWS]
    assert len({law.exception for law in LAWS}) == len(LAWS)
    for law in LAWS:
        assert issubclass(law.exception, LawBroken)
        assert issubclass(law.exception, AssertionError)
        assert law.exception.__doc__ == law.statement


# ------------------------------------------------------------------------------ bites


PLACED = {"placement"}
"""The laws that claim nothing of an allocator whose blocks may lie anywhere."""

STORED = ("store", "attention")
"""The capabilities of allocators that hold the data."""

ANYWHERE = [law for law in LAWS if law.id not in PLACED]


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        ({}, {"placement"}),
        ({"misuse": "callers_duty"}, {"placement", "misuse", "limit", "write-bounds"}),
        ({"eager_fork": "tail"}, {"placement", "copy-on-write"}),
        ({"eager_fork": "tail", "reservation": Granular(6)}, {"placement"}),
        ({"eager_fork": "all"}, {"placement", "copy-on-write", "ref-count"}),
    ],
)
def test_a_law_is_idle_where_no_step_can_be_relevant_to_it(fields, idle):
    """A law claims nothing under a contract by which what it is about never comes to pass."""
    spec = scope(6, capabilities=(*CONTROL, "store"), **fields)
    assert {law.id for law in spec.laws if law.idle(spec.contract)} == idle
    relevant = {
        law.id for seed in range(9) for step in wandering(spec, seed) for law in step.relevant
    }
    assert not relevant & idle


@pytest.mark.parametrize("law", [x for x in ANYWHERE if x.capability not in STORED], ids=told)
def test_a_witness_makes_its_law_bite_on_the_reference(law):
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(law, Reference)


@pytest.mark.parametrize("law", ANYWHERE, ids=told)
def test_a_witness_makes_its_law_bite_on_a_store(law):
    """The same of an allocator that holds the data itself."""
    torch_paged = pytest.importorskip("kvimpls.torch_paged", reason="torch is not installed")
    assert bites_in_its_witness(law, torch_paged.TorchPaged)


@pytest.mark.parametrize("law", [x for x in LAWS if x.capability == "core"], ids=told)
def test_a_witness_makes_its_law_bite_on_an_extent(law):
    """The same of an allocator that gives each sequence one extent."""
    assert bites_in_its_witness(law, ContiguousFirstFit)


def told_by_choices(spec: Specification, operations: Iterable[Operation]) -> Iterator[Step]:
    """The steps of a script, each answered by the first outcome that is allowed."""
    state = spec.initial()
    for operation in operations:
        step = spec.believe(state, operation, next(spec.choices(state, operation)))
        yield step
        state = step.after


def wandering(spec: Specification, seed: int) -> Iterator[Step]:
    """The steps of a random walk over the choices."""
    chooser, state = RandomChooser(seed), spec.initial()
    for _ in range(25):
        operation = chooser.operation(spec, state)
        step = spec.believe(state, operation, chooser.pick(list(spec.choices(state, operation))))
        yield step
        state = step.after


def undisturbed_steps() -> Iterator[Step]:
    """The steps of every witness, and of some random walks."""
    everything = scope(4, capabilities=(*CONTROL, "store"))
    for spec in (scope(4), everything, EXTENTS):
        for witness in {law.witness: None for law in spec.laws}:
            yield from told_by_choices(spec, map(spec.operation, witness(spec.geometry)))
    for spec in (scope(), scope(4, 1, max_tokens=3), everything, EXTENTS):
        for seed in range(3):
            yield from wandering(spec, seed)
    # The specification lists neither what attention may give nor how standing queries are
    # answered, so a store and the reference do.
    for law in ANYWHERE:
        if law.capability == "attention":
            yield from witnessed(law, Attending)
        elif law.capability not in (*CONTROL, "store"):
            yield from witnessed(law, Reference)


def disturbed_steps() -> Iterator[Step]:
    """The same steps, and each with its outcome disturbed in every way."""
    for step in undisturbed_steps():
        yield step
        for disturb in {p: None for law in step.spec.laws for p in law.shaken_by}:
            for outcome in disturb(step):
                yield step.spec.believe(step.before, step.operation, outcome)


def test_only_a_relevant_law_breaks_and_says_why_in_full_sentences():
    """Over disturbed steps in which every law breaks, none breaks where it is not relevant."""
    broken = dict.fromkeys(BY_ID, 0)
    for step in disturbed_steps():
        for law in step.spec.laws:
            because = law.judge(step)
            if because is not None:
                assert law.relevant(step)
                assert because.endswith(".")
                broken[law.id] += 1
        assert [b.law for b in step.spec.judge(step)] == [
            law.id for law in step.spec.laws if law.judge(step) is not None
        ]
    assert all(broken.values()), broken


def test_a_law_bites_where_a_disturbance_of_its_own_breaks_it_and_nowhere_else():
    """A bite is found by believing a disturbed outcome and asking the law about that step."""
    bites = dict.fromkeys(BY_ID, 0)
    for step in undisturbed_steps():
        for law in step.spec.laws:
            disturbed = [
                step.spec.believe(step.before, step.operation, outcome)
                for disturb in law.shaken_by
                for outcome in disturb(step)
            ]
            breaks = any(law.judge(other) is not None for other in disturbed)
            assert law.bites(step) == (law.relevant(step) and breaks)
            bites[law.id] += law.bites(step)
    assert all(bites.values()), bites


# ------------------------------------------------------------------------------ reported


def limit() -> Step:
    """An append beyond the caller's bound succeeds."""
    return faulty(rehearsed(scope(4), allocate(0, 1, 2), append(0, 2)), DONE)


def write_bounds() -> Step:
    """A store takes a row that was never reserved. Only the specification takes part."""
    spec = scope(4, capabilities=("core", "store"))
    calls = map(spec.operation, (allocate(0, 1), write(0, 1, 1)))
    *_, step = told_by_choices(spec, calls)
    return faulty(step, DONE)


def misuse() -> Step:
    """An append to an id that is not in use succeeds."""
    return faulty(rehearsed(scope(4), append(0, 1)), DONE)


def well_formed() -> Step:
    """A call does its work, and then raises an exception that is none of the interface's."""
    step = rehearsed(scope(4), allocate(0, 1), append(0, 1))
    return faulty(step, Answer("raised", "KeyError(0)"))


def snapshot() -> Step:
    """The table that the caller has changes with the allocator's."""
    return faulty(rehearsed(scope(4), allocate(0, 1), append(0, 2)), aliased=(TableOf(0),))


def can_allocate_() -> Step:
    """What would fit later is said never to fit."""
    step = rehearsed(scope(4), allocate(0, 8), can_allocate(1))
    return faulty(step, Answer("done", "NEVER"))


def in_flight() -> Step:
    """A block goes to another sequence while a lease has it, whose own has been freed."""
    step = rehearsed(scope(4), allocate(0, 2), begin(0, 0), free(0), allocate(1, 1))
    return faulty(step, tables=tables({1: (0,)}), free={DEVICE: 3})


def copy_on_write() -> Step:
    """A child writes into the tail that it shares with its parent."""
    step = rehearsed(scope(4), allocate(0, 1), fork(0, 1), append(1, 1))
    return faulty(step, DONE, tables=tables({0: (0,), 1: (0,)}), free={DEVICE: 3})


def fork_() -> Step:
    """A child gets a block of its own for one that it must share."""
    step = rehearsed(scope(4), allocate(0, 2), fork(0, 1))
    return faulty(
        step,
        Answer("done", copies=(Copy(0, 1),)),
        tables=tables({0: (0,), 1: (1,)}),
        free={DEVICE: 2},
    )


def no_overlap() -> Step:
    """A block is handed out twice."""
    step = rehearsed(scope(4), allocate(0, 1), allocate(1, 1))
    return faulty(step, tables=tables({0: (0,), 1: (0,)}), free={DEVICE: 3})


def needless_copy() -> Step:
    """A copy is reported that no table shows."""
    step = rehearsed(scope(4), allocate(0, 1), append(0, 1))
    return faulty(step, Answer("done", copies=(Copy(0, 1),)))


def placement() -> Step:
    """An extent has a gap."""
    return faulty(
        rehearsed(EXTENTS, allocate(0, 2), make=ContiguousFirstFit), tables=tables({0: (0, 2)})
    )


def atomicity() -> Step:
    """A refused append leaves a block in the table."""
    step = rehearsed(scope(4), allocate(0, 1), append(0, 8))
    return faulty(step, tables=tables({0: (0, 1)}), free={DEVICE: 2})


def frame() -> Step:
    """An append to one sequence gives a block to another."""
    step = rehearsed(scope(4), allocate(0, 1), allocate(1, 1), append(0, 1))
    return faulty(step, tables=tables({0: (0,), 1: (1, 2)}), free={DEVICE: 1})


def bounded_waste() -> Step:
    """A block is taken one token early."""
    step = rehearsed(scope(4), allocate(0, 1), append(0, 1))
    return faulty(step, tables=tables({0: (0, 1)}), free={DEVICE: 2})


def retry() -> Step:
    """What was refused just before succeeds, under a contract that may refuse what would fit."""
    spec = scope(4, reservation=Unspecified())
    again = (allocate(0, 8), allocate(0, 8))
    step = rehearsed(spec, *again, make=SpuriousRefusalAtExactFit)
    return faulty(step, DONE, tables=tables({0: (0, 1, 2, 3)}), free={DEVICE: 0})


def admission() -> Step:
    """What would fit is refused."""
    return faulty(rehearsed(scope(4), allocate(0, 8)), REFUSED, tables=tables({}), free={DEVICE: 4})


def ref_count() -> Step:
    """The first user of a shared block to go makes it free."""
    return faulty(rehearsed(scope(4), allocate(0, 2), fork(0, 1), free(1)), free={DEVICE: 4})


def conservation() -> Step:
    """A freed block is lost."""
    return faulty(rehearsed(scope(4), allocate(0, 1), free(0)), free={DEVICE: 3})


def read_back() -> Step:
    """The copy that a table shows is not reported, so nobody carries it out."""
    return faulty(rehearsed(scope(4), allocate(0, 1), fork(0, 1), append(1, 1)), DONE)


def attention() -> Step:
    """A number comes out that is not the mean of what was written."""
    step = rehearsed(ATTENDING, allocate(0, 3), make=Attending)
    attended = step.seen.attended[0]
    [probe] = attended.probes
    output = (probe.output[0] + 1 / 64, *probe.output[1:])
    return faulty(step, attended={0: evolve(attended, probes=(evolve(probe, output=output),))})


FAULTS: dict[str, Callable[[], Step]] = {
    fault.__name__.strip("_").replace("_", "-"): fault
    for fault in (
        *(limit, write_bounds, misuse, well_formed, snapshot, can_allocate_, in_flight),
        *(copy_on_write, fork_, no_overlap, needless_copy, placement, atomicity, frame),
        *(bounded_waste, retry, admission, ref_count, conservation, read_back, attention),
    )
}

IMPLIED_BY = {
    "limit": ["misuse"],
    "write-bounds": ["misuse"],
    "no-overlap": ["read-back"],
    "atomicity": ["bounded-waste"],
    "ref-count": ["conservation"],
}
"""The laws that are there to say earlier and better what a later one sees too."""


def test_there_is_a_fault_for_every_law_told_here():
    """No law of these rooms goes without a step in which it is the one reported."""
    here = (*CONTROL, *STORED)
    assert set(FAULTS) == {law.id for law in LAWS if law.capability in here}


def test_there_is_a_fault_for_every_law():
    """Nor does one of any other room: its tests have such a step too, in a mapping so named."""
    told_somewhere = set(FAULTS)
    for path in Path(__file__).parent.glob("test_*.py"):
        if path != Path(__file__):
            told_somewhere |= set(getattr(import_module(path.stem), "FAULTS_OF_LAWS", {}))
    assert told_somewhere == set(BY_ID)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_law_is_the_first_that_its_own_fault_breaks(fault):
    """The law reported is the one whose fault it is, and later ones see it only where listed."""
    first_of_its_own(fault, FAULTS[fault](), IMPLIED_BY.get(fault, []))


@pytest.mark.parametrize("fault", FAULTS)
def test_without_its_law_a_fault_passes_unless_a_later_law_implies_it(fault):
    """No law is idle: leave it out, and its fault is accepted, or reported by the one listed."""
    not_idle(fault, FAULTS[fault](), IMPLIED_BY.get(fault, []))


def test_under_the_strict_contract_a_change_of_mind_is_a_breach_of_admission():
    """Rightly refused, then granted: so `retry` is alone only where what fits may be refused."""
    step = rehearsed(scope(4), allocate(0, 2), allocate(1, 8), allocate(1, 8))
    changed = faulty(step, DONE, tables=tables({0: (0,), 1: (1, 2, 3)}), free={DEVICE: 0})
    broken = {breach.law for breach in step.spec.judge(changed)}
    assert {"retry", "admission"} <= broken


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.capability)
def test_a_capability_that_is_not_claimed_brings_no_law(room):
    """The laws of a specification are those of the rooms claimed, in the published order."""
    claimed = ("core",) if room.capability == "core" else ("core", room.capability, *room.needs)
    geometry = room.shaped(Geometry(4, 2), Geometries(), None)
    spec = specification(geometry, Contract(), claimed)
    applies = {r.capability for r in ROOMS if r.capability in claimed and r.applies(geometry)}
    assert room.capability in applies
    assert [law.id for law in spec.laws] == [
        law_id for law_id in ORDER if law_id in BY_ID and BY_ID[law_id].capability in applies
    ]
