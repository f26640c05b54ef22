"""Coverage of situations: each is told from its neighbours, and all of them occur."""

import json

import pytest

from kvimpls.museum import LeakOnRefusal
from kvimpls.reference import Reference
from kvspec.driver.target import target
from kvspec.engines.ledger import Ledger
from kvspec.engines.session import Session
from kvspec.geometry import Geometry
from kvspec.kernel.script import Call, call
from kvspec.suite.check import check_allocator
from kvspec.suite.coverage import SITUATIONS, Coverage
from kvspec.suite.matrix import as_data
from kvspec.suite.walking import walk_allocator

PLAIN = Geometry(4, 2)
WITH_HOST = Geometry(4, 2, num_host_blocks=4)
WITH_WINDOW = Geometry(3, 2, window=2)

ALLOCATED = call("allocate", seq=0, num_tokens=3)
PUBLISHED = (
    call("allocate_prompt", seq=0, tokens=(1, 2, 3)),
    call("mark_written", seq=0, num_tokens=2),
)

# For each situation a script whose last call is in it, and one whose last call just is not.
SCRIPTS = {
    "wrong call": (
        (PLAIN, ALLOCATED, call("append", seq=1, num_tokens=1)),
        (PLAIN, ALLOCATED, call("append", seq=0, num_tokens=1)),
    ),
    "injected fault": (
        (PLAIN, Call("allocate", {"seq": 0, "num_tokens": 3}, fault=2)),
        (PLAIN, Call("allocate", {"seq": 0, "num_tokens": 3}, fault=3)),
    ),
    "refusal": (
        (PLAIN, ALLOCATED, call("append", seq=0, num_tokens=6)),
        (PLAIN, ALLOCATED, call("append", seq=0, num_tokens=5)),
    ),
    "exact fit": (
        (PLAIN, ALLOCATED, call("append", seq=0, num_tokens=5)),
        (PLAIN, ALLOCATED, call("append", seq=0, num_tokens=3)),
    ),
    "zero tokens": (
        (PLAIN, ALLOCATED, call("append_tokens", seq=0, tokens=())),
        (PLAIN, ALLOCATED, call("append", seq=0, num_tokens=1)),
    ),
    "empty pool": (
        (PLAIN, call("allocate", seq=0, num_tokens=0), call("can_allocate", num_tokens=1)),
        (PLAIN, ALLOCATED, call("can_allocate", num_tokens=1)),
    ),
    "full pool": (
        (PLAIN, call("allocate", seq=0, num_tokens=8), call("free", seq=0)),
        (PLAIN, call("allocate", seq=0, num_tokens=6), call("free", seq=0)),
    ),
    "from a boundary": (
        (PLAIN, call("allocate", seq=0, num_tokens=4), call("truncate", seq=0, num_tokens=3)),
        (PLAIN, ALLOCATED, call("truncate", seq=0, num_tokens=2)),
    ),
    "to a boundary": (
        (PLAIN, ALLOCATED, call("truncate", seq=0, num_tokens=2)),
        (PLAIN, ALLOCATED, call("truncate", seq=0, num_tokens=1)),
    ),
    "swapped out": (
        (WITH_HOST, ALLOCATED, call("swap_out", seq=0), call("swap_in", seq=0)),
        (WITH_HOST, ALLOCATED, call("swap_out", seq=0)),
    ),
    "shared written": (
        (PLAIN, ALLOCATED, call("fork", parent=0, child=1), call("append", seq=1, num_tokens=1)),
        (PLAIN, ALLOCATED, call("append", seq=0, num_tokens=1)),
    ),
    "copies and grows": (
        (PLAIN, ALLOCATED, call("fork", parent=0, child=1), call("append", seq=1, num_tokens=2)),
        (PLAIN, ALLOCATED, call("fork", parent=0, child=1), call("append", seq=1, num_tokens=1)),
    ),
    "hit in free list": (
        (
            PLAIN,
            *PUBLISHED,
            call("free", seq=0),
            call("allocate_prompt", seq=1, tokens=(1, 2, 4)),
        ),
        (PLAIN, *PUBLISHED, call("allocate_prompt", seq=1, tokens=(1, 2, 4))),
    ),
    "hit in use": (
        (PLAIN, *PUBLISHED, call("allocate_prompt", seq=1, tokens=(1, 2, 4))),
        (PLAIN, *PUBLISHED, call("allocate_prompt", seq=1, tokens=(2, 2, 4))),
    ),
    "eviction": (
        (PLAIN, *PUBLISHED, call("free", seq=0), call("allocate", seq=1, num_tokens=8)),
        (PLAIN, *PUBLISHED, call("free", seq=0), call("allocate", seq=1, num_tokens=6)),
    ),
    "in flight": (
        (PLAIN, ALLOCATED, call("begin_transfer", seq=0, lease=0), call("free", seq=0)),
        (
            PLAIN,
            ALLOCATED,
            call("begin_transfer", seq=0, lease=0),
            call("allocate", seq=1, num_tokens=1),
        ),
    ),
    "window release": (
        (WITH_WINDOW, ALLOCATED, call("append", seq=0, num_tokens=1)),
        (WITH_WINDOW, call("allocate", seq=0, num_tokens=2), call("append", seq=0, num_tokens=1)),
    ),
    "release fits": (
        (WITH_WINDOW, ALLOCATED, call("append", seq=0, num_tokens=5)),
        (WITH_WINDOW, ALLOCATED, call("append", seq=0, num_tokens=3)),
    ),
}


def situations_of(geometry, *script):
    """The situations of the last call of a script."""
    steps = []
    spec = target(Reference).specification(geometry)
    session = Session(Reference, spec, ledger=Ledger(watch=steps.append))
    for one in script:
        session.perform(spec.operation(one), fault=one.fault)
    assert session.breaches == ()
    return {situation.name for situation in SITUATIONS if situation.holds(steps[-1])}


def test_every_situation_has_its_scripts():
    assert list(SCRIPTS) == [situation.name for situation in SITUATIONS]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_situation_is_told_from_its_neighbour(name):
    """It holds for one call, and not for another that differs in little else."""
    inside, outside = SCRIPTS[name]
    assert name in situations_of(*inside)
    assert name not in situations_of(*outside)


def test_calls_and_standing_queries_are_counted():
    """Every operation that is claimed has its row, whether or not it was ever called."""
    coverage = Coverage()
    tested = target(Reference)
    session = Session(Reference, tested.specification(PLAIN), ledger=Ledger(watch=coverage.note))
    session.call("allocate", seq=0, num_tokens=8)
    session.call("append", seq=0, num_tokens=1)
    table = coverage.table(tested.rooms)
    assert (table["append"]["calls"], table["append"]["refusal"]) == (1, 1)
    assert table["append"]["full pool"] == 1
    assert table["allocate"]["exact fit"] == 1
    assert table["ref_count"]["calls"] > 0
    assert table["resize"] == {"calls": 0, **{s.name: 0 for s in SITUATIONS}}


def test_nothing_is_counted_unless_it_is_asked_for():
    """The report says that it was not counted, which is not that it did not occur."""
    report = check_allocator(LeakOnRefusal, profile="quick")
    assert report.coverage is None
    assert as_data([report])["allocators"][0]["coverage"] is None


def test_the_counts_are_in_the_report_of_a_check():
    """In the witnesses and in what the machine tries; and they are JSON."""
    report = check_allocator(Reference, profile="quick", coverage=True)
    assert sum(counts["calls"] for counts in report.coverage.values()) > report.steps
    data = json.loads(json.dumps(as_data([report])))
    assert data["allocators"][0]["coverage"] == report.coverage


def test_a_walk_comes_into_every_situation():
    """What a soak never tries it cannot find wrong."""
    found = walk_allocator(Reference, seed=1, steps=12_000, coverage=True).report.coverage
    together = {s.name: sum(row[s.name] for row in found.values()) for s in SITUATIONS}
    assert min(together.values()) > 0, together
    assert min(row["calls"] for row in found.values()) > 0, found
