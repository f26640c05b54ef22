"""The walk: what it tries, that it comes again, and that it leaves nothing behind."""

import gc
import os
import subprocess
import sys
import weakref
from collections import Counter

import pytest
from attrs import evolve

from kvimpls.museum import LeakOnRefusal, ReuseWhileLeased
from kvimpls.reference import Reference
from kvspec.driver.driver import NotBuilt
from kvspec.driver.target import target
from kvspec.engines import machine
from kvspec.engines import walk as walking
from kvspec.engines.distinct import Distinct
from kvspec.engines.episode import begin
from kvspec.engines.ledger import Ledger
from kvspec.engines.walk import STEPS, SeededChooser, walk
from kvspec.interface import UnsupportedGeometry
from kvspec.kernel.names import call_text
from kvspec.suite.walking import walk_allocator
from kvspec.traces.reduce import Reducer
from kvspec.traces.trace import to_json


def called(make, seed, **limits):
    """What a walk calls, and the walk."""
    calls = []
    ledger = Ledger(watch=lambda step: calls.append(call_text(step.operation)))
    done = walk(target(make), seed, ledger=ledger, **limits)
    return calls, done


def test_the_same_seed_gives_the_same_walk():
    """Calls, bites and states come again; another seed gives others."""
    calls, once = called(Reference, 7, steps=400)
    again, twice = called(Reference, 7, steps=400)
    assert calls == again
    assert (once.ledger.bites, once.states, once.episodes) == (
        twice.ledger.bites,
        twice.states,
        twice.episodes,
    )
    assert calls != called(Reference, 8, steps=400)[0]


def test_the_same_seed_gives_the_same_trace():
    """The violation too, to the byte, also when it is reduced."""
    once, again = (walk_allocator(ReuseWhileLeased, seed=3, steps=50_000) for _ in range(2))
    assert once.report.trace.law == "in-flight"
    assert to_json(once.report.trace) == to_json(again.report.trace)


def test_steps_are_exact():
    """A walk of so many steps has just so many, whether or not an episode is over."""
    for steps in (1, STEPS, STEPS + 1):
        done = walk(target(Reference), 0, steps=steps)
        assert (done.ledger.steps, done.trace) == (steps, None)
        assert done.episodes == -(-steps // STEPS)


def test_the_clock_only_decides_when_it_stops():
    """A walk of some time is the beginning of every longer one with its seed."""
    calls, _ = called(Reference, 5, seconds=0.2)
    longer, _ = called(Reference, 5, steps=len(calls) + 50)
    assert longer[: len(calls)] == calls


def test_a_walk_ends_somewhen():
    with pytest.raises(ValueError, match="say which"):
        walk(target(Reference))
    with pytest.raises(ValueError, match="a walk of 0 steps is none"):
        walk(target(Reference), steps=0)


def test_it_stops_at_the_first_violation_which_is_reduced():
    """What is reported is a story in which no single move leaves a smaller one."""
    found = walk_allocator(LeakOnRefusal, seed=1, steps=50_000).report
    assert found.trace.law == "conservation"
    assert (found.reproduced, found.trace.reduced) == (found.replays, True)
    assert Reducer(LeakOnRefusal).is_minimal(found.trace)
    assert len(found.trace.steps) <= 2 < found.steps


def test_nothing_of_an_ended_episode_is_kept():
    """However many episodes, one allocator is alive, and none of what was done with the others."""
    alive = weakref.WeakSet()

    def make(geometry):
        made = Reference(geometry)
        alive.add(made)
        return made

    counted = []

    def count(done):
        if not counted or counted[-1][0] != done.episodes:
            gc.collect()
            counted.append((done.episodes, len(alive)))

    tested = evolve(target(Reference), make=lambda g, checkpoint=None: make(g))
    walking_every_step = walking.TELL
    walking.TELL = 0.0
    try:
        walk(tested, 0, steps=5 * STEPS, progress=count)
    finally:
        walking.TELL = walking_every_step
    assert counted[-1][0] == 5
    assert {count for _, count in counted} == {1}


def test_the_machine_draws_its_episodes_in_the_same_way(monkeypatch):
    """With the same choices, the machine and the walk have the same episode."""
    begun = []

    def beginning(chooser, *arguments):
        begun.append(begin(chooser, *arguments))
        return begun[-1]

    monkeypatch.setattr(machine, "begin", beginning)
    monkeypatch.setattr(walking, "begin", beginning)
    tested, plan = target(Reference), machine.Profile(episodes=1, steps=3)
    machine.run_machine(tested, plan, Ledger())
    with_machine = len(begun)
    walk(tested, 0, steps=1)
    assert 0 < with_machine < len(begun)


def test_episodes_are_of_every_kind():
    """Sparse and full looks, faults never, always or later, about many rooms and geometries."""
    chooser, tested = SeededChooser(0), target(Reference)
    episodes = [begin(chooser, tested, Ledger()) for _ in range(60)]
    assert {(e.sparse, e.faulty) for e in episodes} == {
        (sparse, faulty) for sparse in (True, False) for faulty in (None, 0, 12)
    }
    assert len({tuple(p.name for p, _ in e.mix.proposals) for e in episodes}) > 50
    assert len({e.session.spec.geometry for e in episodes}) > 40


@pytest.mark.parametrize("low", [-3, 0, 2])
def test_the_chooser_keeps_to_its_bounds_and_favours_what_is_near(low):
    """As the one of the machine: about half of the draws are of as many that are near."""
    chooser = SeededChooser(1)
    drawn = Counter(chooser.integer(low, low + 3, near=(9, 10, 11, 12)) for _ in range(4000))
    assert set(drawn) == {9, 10, 11, 12, *range(low, low + 4)}
    assert 1800 < sum(drawn[n] for n in (9, 10, 11, 12)) < 2200
    assert {chooser.pick("abc") for _ in range(50)} == set("abc")


def test_a_geometry_that_is_refused_is_drawn_again():
    """An allocator need not take every geometry; one that takes none cannot be walked on."""

    def picky(geometry):
        if geometry.num_blocks % 2:
            raise UnsupportedGeometry("an even number")
        return Reference(geometry)

    assert walk(target(picky), 0, steps=1200).refused_geometries > 0
    tested = target(Reference)

    def fails(geometry, checkpoint=None):
        raise ValueError("not today")

    with pytest.raises(NotBuilt, match="not today"):
        walk(evolve(tested, make=fails), 0, steps=10)


def test_laws_bite_on_the_reference():
    """In a walk of a few thousand operations every claimed law but idle ones has bitten."""
    found = walk_allocator(Reference, seed=0, steps=6000).report
    assert int(found.exit_code) == 0


# ------------------------------------------------------------------------------ counting


@pytest.mark.parametrize("count", [0, 1, 100, 20_000, 300_000])
def test_the_count_of_states_is_right_within_three_percent(count):
    """In the same memory, whether there are few or many, and however often each comes."""
    seen = Distinct()
    for number in range(count):
        seen.add(hash((number, 1)))
        if number % 3 == 0:
            seen.add(hash((number, 1)))
    assert abs(seen.count - count) <= 0.03 * count


def test_the_count_of_states_is_the_same_in_every_process():
    """Neither texts nor addresses go into it, which Python hashes anew in every process."""
    program = (
        "from kvimpls.reference import Reference\n"
        "from kvspec.driver.target import target\n"
        "from kvspec.engines.walk import walk\n"
        "import sys\n"
        "print(walk(target(Reference), 2, steps=400).states.count, 'hypothesis' in sys.modules)"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert printed[0][1] == "False", "the walk is without Hypothesis"
