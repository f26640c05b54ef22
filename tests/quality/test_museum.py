"""The catalogue of the museum: complete, consistent, each exhibit wrong and each control right."""

import inspect
import os
import re
from collections import Counter

import pytest

from kvimpls import museum
from kvimpls.museum.controls import CONTROLS
from kvimpls.museum.registry import AS_RIGHT, CORRECTED, MUSEUM, NO_REPORT, OUT_OF_SCOPE
from kvimpls.reference import Reference, StoredReference
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import target
from kvspec.engines.ledger import Ledger
from kvspec.engines.machine import PROFILES, run_machine
from kvspec.engines.replay import replay
from kvspec.rooms import ORDER
from kvspec.suite.check import check_allocator, explain
from kvspec.suite.report import ExitCode

GAPS = {5, 10, 13, 17, 19, 22, 25, 28, 31, 34, 38, 40, 42, 44, 46, 48, 49, 50, 52, 55, 57, 59}
GAPS |= {62, 64, 65, 66, 70, 72, 75, 76, 78, 79, 80, 83, 85, 88, 90, 93, 96, 98, 101, 102, 105}
GAPS |= {108, 113, 115, 118}
RECORDS = {f"B{number:02}" for number in range(1, 120) if number not in GAPS}
"""The numbers of the collection, which has gaps where two reports turned out to be one."""

BY_NAME = {exhibit.name: exhibit for exhibit in MUSEUM}

exhibits = pytest.mark.parametrize("exhibit", MUSEUM, ids=list(BY_NAME))


def capabilities(kind):
    """What an allocator claims."""
    return set(target(kind).capabilities)


def test_every_record_is_an_exhibits_or_out_of_scope():
    """All 72 records are accounted for, each in one way."""
    assert len(RECORDS) == 72
    shown = {record for exhibit in MUSEUM for record in exhibit.records}
    assert shown | set(OUT_OF_SCOPE) == RECORDS
    assert not shown & set(OUT_OF_SCOPE)
    assert set(CORRECTED) <= RECORDS


def test_the_catalogue_is_in_the_order_of_the_records():
    """The exhibits without a record come last."""
    firsts = [int(exhibit.records[0][1:]) for exhibit in MUSEUM if exhibit.records]
    assert firsts == sorted(firsts)
    assert not any(exhibit.records for exhibit in MUSEUM[len(firsts) :])


def test_every_law_is_expected_of_an_exhibit():
    """No law of the published order is without a fault that it must report first."""
    assert {exhibit.law for exhibit in MUSEUM} == set(ORDER)
    assert {law for exhibit in MUSEUM for law in exhibit.laws} == set(ORDER)


def test_every_exhibit_has_its_name_in_the_museum():
    """A command can say `kvimpls.museum:NAME`, wherever in it the exhibit stands."""
    assert all(getattr(museum, e.name) is e.factory for e in MUSEUM)
    with pytest.raises(AttributeError, match="no attribute 'NoSuchFault'"):
        _ = museum.NoSuchFault


def test_no_exhibit_stands_there_twice():
    """Neither by its name nor by its factory."""
    assert len(BY_NAME) == len(MUSEUM)
    assert len({exhibit.factory for exhibit in MUSEUM}) == len(MUSEUM)


@exhibits
def test_an_exhibit_says_where_its_fault_was_seen(exhibit):
    """Its docstring cites each of its sources, or says that there is none."""
    doc = inspect.cleandoc(exhibit.factory.__doc__)
    assert bool(exhibit.sources) == bool(exhibit.records)
    assert all(source in doc for source in exhibit.sources)
    assert bool(exhibit.sources) != (NO_REPORT.split(".")[0] in " ".join(doc.split()))
    cited = set(re.findall(r"[\w.-]+/[\w.-]+#\d+", doc))
    assert cited == set(exhibit.sources)


@exhibits
def test_an_exhibit_departs_from_a_correct_allocator(exhibit):
    """It overrides something, or promises something else; and it is built like the other."""
    kind = exhibit.factory
    assert kind.__mro__[1].__module__.startswith("kvimpls.")
    own = {name for name in vars(kind) if not name.startswith("__") or name == "__init__"}
    assert own, "it is the allocator that it departs from"
    assert kind.__module__ == f"kvimpls.museum.{exhibit.family.replace(' ', '_')}"


@exhibits
def test_an_exhibit_claims_all_that_the_correct_one_does(exhibit):
    """It is not made easy to find by a narrow claim, unless its contract has to be another."""
    kind = exhibit.factory
    if "contract" in vars(kind):
        assert "contract" in exhibit.departs
    elif issubclass(kind, StoredReference):
        assert capabilities(kind) == capabilities(StoredReference)
    elif issubclass(kind, Reference):
        assert capabilities(kind) == capabilities(Reference)


def test_a_verdict_is_given_exactly_where_the_run_disagreed():
    """The expectation stays in the catalogue, and the reason beside it."""
    for exhibit in MUSEUM:
        assert bool(exhibit.broke) == bool(exhibit.verdict), exhibit.name
        assert exhibit.law not in exhibit.broke


def test_why_another_law_is_as_right_is_said_of_each():
    """Of all that an exhibit has beside its law, and of no other."""
    assert {law for exhibit in MUSEUM for law in exhibit.also} == set(AS_RIGHT)


SEEDS = range(int(os.environ.get("MUSEUM_SEEDS", "0")))
"""How many seeds of the machine have to find everything; that takes minutes a seed."""


@pytest.mark.skipif(
    not SEEDS, reason="set MUSEUM_SEEDS to find the whole museum with so many seeds"
)
@exhibits
@pytest.mark.parametrize("seed", SEEDS or (0,))
def test_the_machine_finds_every_exhibit(exhibit, seed):
    """Without a witness, in the default profile, by the law that is expected or has a verdict."""
    trace = run_machine(target(exhibit.factory), PROFILES["ci"], Ledger(), seed).trace
    assert trace is not None
    assert explain(target(exhibit.factory), trace, DEFAULT_CALL_TIMEOUT)[0].law in exhibit.laws


QUICKLY_FOUND = {
    "OffByOneAtBoundary": 0,
    "CountsFromZero": 0,
    "KeepsWhatItTook": 0,
    "ForkNotCounted": 0,
    "ReuseWhileLeased": 0,
    "StaleIndex": 0,
    "EvictsFirst": 0,
    "ShiftedByOne": 0,
    "JudgedByTheLast": 0,
    "KeepsBeyondTheCut": 0,
    "DecidesForAllAtOnce": 1,
    "FirstGroupKeeps": 0,
    "ShrinksUnderTheTables": 0,
    "ScatteredExtents": 0,
    "PoisonedPadding": 0,
}
"""One of each family, with the seed of the machine."""


@pytest.mark.parametrize(("name", "seed"), QUICKLY_FOUND.items())
def test_the_machine_finds_one_of_each_family(name, seed):
    """No witness runs; the reference goes through the same steps and breaks nothing."""
    exhibit = BY_NAME[name]
    # The profile only bounds the search, which ends at the first violation.
    trace = run_machine(target(exhibit.factory), PROFILES["thorough"], Ledger(), seed).trace
    assert trace is not None
    # A sparse look may see it by a law that comes later, and its own law with it or not.
    explained, _ = explain(target(exhibit.factory), trace, DEFAULT_CALL_TIMEOUT)
    assert explained.law in exhibit.laws
    if issubclass(exhibit.factory, Reference) and "contract" not in vars(exhibit.factory):
        correct = StoredReference if issubclass(exhibit.factory, StoredReference) else Reference
        assert replay(correct, trace).breaches == ()


def test_each_family_has_one_that_is_found_quickly():
    """The selection above leaves out no family."""
    assert {BY_NAME[name].family for name in QUICKLY_FOUND} == {e.family for e in MUSEUM}
    assert set(Counter(BY_NAME[name].family for name in QUICKLY_FOUND).values()) == {1}


@pytest.mark.parametrize("control", [*CONTROLS, StoredReference], ids=lambda kind: kind.__name__)
def test_a_control_is_not_flagged(control):
    """What was reported and is right breaks no law, and leaves none without a bite."""
    report = check_allocator(control, profile="quick")
    assert report.exit_code is ExitCode.HELD, report.trace and report.trace.breaches
