"""Allocators that are right and unusual are not flagged, and no law is held without a bite."""

import pytest
from attrs import evolve

from kvimpls.reference import Reference
from kvimpls.unusual import (
    CopiesUnderLease,
    Deduplicates,
    EagerAll,
    EagerTail,
    EvictsOnRequest,
    Fifo,
    FirstBlockOne,
    Granules,
    LowestAddress,
    NumpyIds,
    OtherSideCopies,
    Prealloc,
    RandomOrder,
    Relocating,
)
from kvspec.contract import Contract
from kvspec.geometry import Geometry
from kvspec.rooms import LAWS
from kvspec.suite.check import check_allocator
from kvspec.suite.report import ExitCode, Verdict

FAMILIES = {
    "LIFO": (Reference,),
    "FIFO": (Fifo,),
    "random": (RandomOrder,),
    "lowest-address": (LowestAddress,),
    "relocating with reported copies": (Relocating,),
    "eager-copy fork": (EagerTail, EagerAll),
}

OTHERS = (
    OtherSideCopies,
    CopiesUnderLease,
    NumpyIds,
    FirstBlockOne,
    EvictsOnRequest,
    Deduplicates,
    Granules,
    Prealloc,
)

RELAXATIONS = {
    Relocating: ("relocates",),
    EagerTail: ("eager_fork",),
    EagerAll: ("eager_fork",),
    FirstBlockOne: ("first_block",),
    EvictsOnRequest: ("eviction",),
    Deduplicates: ("deduplicates",),
    Granules: ("reservation",),
    Prealloc: ("reservation", "geometries"),
}
"""The relaxations of the contracts; of all that are not named here, none."""

IDLE = {EagerTail: {"copy-on-write"}, EagerAll: {"copy-on-write", "ref-count"}}
"""The laws whose situation these contracts exclude: copies are made before anything is shared."""

NAMED = [kind for kinds in FAMILIES.values() for kind in kinds]


def name(kind):
    """The name of a class, as a test's id."""
    return kind.__name__


def excused(contract):
    """The laws that say of themselves that nothing can happen under the contract for them."""
    return {law.id for law in LAWS if law.idle(contract)}


def assert_not_flagged(kind, report):
    """Every claimed law was held and bit, but for those that are idle under the contract."""
    assert report.exit_code is ExitCode.HELD, report.trace and report.trace.breaches
    assert report.trace is None
    for law in LAWS:
        result = report.laws[law.id]
        if law.capability in report.capabilities and law.id not in excused(report.contract):
            assert result.verdict is Verdict.HELD, law.id
            assert result.bites > 0, law.id
        else:
            assert result.verdict is Verdict.NOT_CLAIMED, law.id
    assert report.contract.relaxations() == RELAXATIONS.get(kind, ())


@pytest.mark.parametrize("kind", NAMED, ids=name)
def test_the_named_families_are_not_flagged(kind):
    """Two seeds of the quick profile find nothing to object to in any of the families."""
    for seed in range(2):
        assert_not_flagged(kind, check_allocator(kind, profile="quick", seed=seed))


@pytest.mark.parametrize("kind", OTHERS, ids=name)
@pytest.mark.parametrize("seed", range(2))
def test_other_unusual_allocators_are_not_flagged(kind, seed):
    """A few short runs find nothing to object to in what differs in other ways."""
    assert_not_flagged(kind, check_allocator(kind, profile="quick", seed=seed))


@pytest.mark.parametrize("kind", [*NAMED, *OTHERS], ids=name)
def test_a_relaxed_contract_excuses_no_other_law(kind):
    """Beyond what is idle under the strict contract, only eager forks leave a law without work."""
    contract = getattr(kind, "contract", Contract())
    assert excused(contract) - excused(Contract()) == IDLE.get(kind, set())


def tables(kind):
    """The tables that one and the same story leaves behind."""
    pool = kind(Geometry(6, 2))
    for seq, num_tokens in enumerate((3, 2, 1)):
        pool.allocate(seq, num_tokens)
    pool.free(0)
    pool.free(1)
    pool.allocate(3, 3)
    pool.fork(3, 4)
    pool.append(3, 2)
    return [list(pool.block_table(seq)) for seq in (2, 3, 4)]


def test_they_are_unusual():
    """The same story leaves other tables in each, so it is not one allocator seven times."""
    left = {kind.__name__: tables(kind) for kind in NAMED}
    assert len({str(found) for found in left.values()}) == len(NAMED), left


def test_duties_of_the_caller_go_with_relocation():
    """The witnesses' wrong calls are left out, also where choices are not enumerated."""

    class Trusting(Relocating):
        contract = evolve(Relocating.contract, misuse="callers_duty")

    assert check_allocator(Trusting, profile="quick").trace is None
