"""What a step cannot have touched is not judged again: that comes to the same as judging it."""

import pytest
from attrs import evolve

from kvimpls import museum
from kvimpls.museum.registry import MUSEUM
from kvimpls.reference import Reference
from kvspec.driver.target import target
from kvspec.engines import session
from kvspec.engines.episode import begin
from kvspec.engines.ledger import Ledger
from kvspec.engines.walk import SeededChooser, walk
from kvspec.kernel.outcome import FULL
from kvspec.rooms.core import contents

FAULTY = (
    museum.LeakOnRefusal,
    museum.HalfDoneAppend,
    museum.DoubleHandOut,
    museum.ForgottenCopyOnWrite,
    museum.ReuseWhileLeased,
    *(e.factory for e in MUSEUM if e.name in ("HeadFirst", "SplitLosesTheLock", "StaleIndex")),
)


def compared(make, seed, steps, claimed=None):
    """A walk each step of which is judged in both ways, and the laws that broke."""
    broken, compared_steps = [], 0

    def both(step):
        nonlocal compared_steps
        compared_steps += 1
        breaches = step.spec.judge(step)
        assert step.spec.agrees(step, breaches), step.operation
        broken.extend(breach.law for breach in breaches)

    contract = evolve(Reference.contract, capabilities=claimed)
    done = walk(target(make, contract=contract), seed, steps=steps, ledger=Ledger(watch=both))
    assert compared_steps == done.ledger.steps
    return broken, done


@pytest.mark.parametrize("claimed", [None, ("core",), ("core", "sharing", "rollback")])
@pytest.mark.parametrize("seed", range(3))
def test_shortcuts_come_to_the_same_on_the_reference(claimed, seed):
    """State for state and law for law, in every step of a walk."""
    assert compared(Reference, seed, 500, claimed)[0] == []


@pytest.mark.parametrize("make", FAULTY, ids=lambda make: make.__name__)
def test_shortcuts_come_to_the_same_where_a_law_is_broken(make):
    """The same laws are broken in the same step, for the same reasons."""
    for seed in range(3):
        broken, done = compared(make, seed, 20_000)
        assert broken
        assert [breach.law for breach in done.trace.breaches] == broken


@pytest.mark.parametrize("seed", range(3))
def test_what_is_possible_is_found_afresh_to_be_the_same(seed):
    """What was derived from the facts of an earlier state is what these facts give now."""
    chooser, kept = SeededChooser(seed), 0
    for _ in range(30):
        episode = begin(chooser, target(Reference), Ledger())
        spec, possible_in = episode.session.spec, episode.mix.possible_in
        for _ in range(20):
            state = episode.session.state
            kept += (possible_in, spec) in state._made
            assert state.once(possible_in, spec) == possible_in(state.bare(), spec)
            assert episode.step(chooser) == ()
    assert kept > 100


def test_every_so_many_steps_are_compared_in_every_run(monkeypatch):
    """A shortcut that misleads stops the run: it would be a mistake of the suite."""
    tested = target(Reference)
    spec = tested.specification()
    monkeypatch.setattr(session, "CROSS_CHECK", 2)
    running = session.Session(Reference, spec)
    running.call("allocate", FULL, seq=0, num_tokens=1)
    lying = evolve(contents.READ_BACK, broken=lambda step: None if step.still else "never")
    longhand = evolve(spec, laws=(lying,), shortcuts=False)
    monkeypatch.setitem(running.spec.__dict__, "_longhand", longhand)
    with pytest.raises(AssertionError, match="shortcuts mislead"):
        running.call("append", FULL, seq=0, num_tokens=1)
