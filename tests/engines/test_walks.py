"""Walks at once: they come to what each does alone, and nothing of the clock is in it."""

import multiprocessing
import subprocess
import sys
from functools import partial
from itertools import count
from multiprocessing.context import SpawnProcess
from operator import eq, gt

import pytest

from kvimpls.museum import LeakOnRefusal
from kvimpls.reference import Reference
from kvspec.driver.target import TargetError, target
from kvspec.engines.distinct import Distinct
from kvspec.engines.episode import begin
from kvspec.engines.ledger import Ledger
from kvspec.engines.walk import STEPS, SeededChooser, walk
from kvspec.engines.walks import Died, seeds, shares, together, walks
from kvspec.suite.contracts import resolve
from kvspec.suite.coverage import Coverage

UNUSUAL = """
import os, signal, time
from pathlib import Path
from {module} import {kind}

made = 0


def outlive():
    for _ in range(200):
        if Path(__file__).with_name("over").exists():
            os._exit(0)
        time.sleep(0.1)
    Path(__file__).with_name("late").touch()
    os._exit(0)


def make(geometry, *, checkpoint=None):
    global made
    made += 1
    print("made", made, flush=True)
    if made == 2 and str(geometry) == {geometry!r}:  # the first one is only looked at
        {deed}
    return {kind}(geometry, checkpoint=checkpoint)


make.contract = {kind}.contract
"""
"""An allocator that prints, and does a deed at the beginning of the walk that begins so."""


class Miscounts(Reference):
    """Every walk ends at the first look."""

    def num_free_blocks(self, pool=0):
        return super().num_free_blocks(pool) + 1


def geometries(kind, own):
    """What the first allocator of each walk is built with."""
    begun = (begin(SeededChooser(seed), target(kind), Ledger()) for seed in own)
    return [str(episode.session.spec.geometry) for episode in begun]


def unusual(path, kind, geometry, deed):
    """The target whose deed is done in the walk that begins so, to be made in another process."""
    text = UNUSUAL.format(module=kind.__module__, kind=kind.__name__, geometry=geometry, deed=deed)
    path.write_text(text)
    return partial(resolve, f"{path}:make")


def test_walks_come_to_the_sum_of_each_alone():
    """Counts, coverage and states, to the last one; and nobody is left behind."""
    ended = walks("it", partial(target, Reference), 5, processes=2, steps=401, watcher=Coverage)
    covered, alone, numbers = Coverage(), [], []
    for seed, steps in zip(seeds(5, 2), (201, 200), strict=True):
        ledger = Ledger(watch=covered.note)
        alone.append(walk(target(Reference), seed, steps=steps, ledger=ledger))
        numbers.append(steps)
    assert [one.seed for one in ended] == [5, 5 + 2**32]
    assert [one.walk.ledger.steps for one in ended] == numbers
    assert [one.walk.states for one in ended] == [one.states for one in alone]
    whole = together(one.walk for one in ended)
    assert (whole.ledger.steps, whole.episodes) == (401, sum(one.episodes for one in alone))
    assert whole.ledger.evaluations == alone[0].ledger.evaluations + alone[1].ledger.evaluations
    assert whole.ledger.bites == alone[0].ledger.bites + alone[1].ledger.bites
    assert whole.seconds == max(one.walk.seconds for one in ended)
    seen = Coverage()
    for one in ended:
        seen.include(one.watcher)
    assert seen == covered
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("kind", "of_steps", "earliest"),
    [(LeakOnRefusal, gt, 1), (Miscounts, eq, 0)],
    ids=["earlier", "as early"],
)
def test_the_earliest_violation_is_told_whoever_is_the_first_by_the_clock(
    tmp_path, kind, of_steps, earliest
):
    """The walk that finds it is the slow one; what is told of it is what it comes to alone."""
    for seed in count():
        own = seeds(seed, 2)
        alone = [walk(target(kind), one, steps=1000) for one in own]
        begun = geometries(kind, own)
        if of_steps(*(one.ledger.steps for one in alone)) and begun[0] != begun[1]:
            break
    slow = unusual(tmp_path / "slow.py", kind, begun[earliest], "time.sleep(1.5)")
    [ended] = walks("it", slow, seed, processes=2, seconds=60)
    expected = alone[earliest]
    assert ended.seed == own[earliest]
    assert ended.walk.trace.steps == expected.trace.steps
    assert ended.walk.ledger.bites == expected.ledger.bites
    assert (ended.walk.states, ended.walk.episodes) == (expected.states, expected.episodes)


@pytest.mark.parametrize(
    ("deed", "how"),
    [
        ("os._exit(7)", "with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"of signal 11 \(Segmentation fault\)"),
        # A process of its own has all of its pipes, and outlives it.
        ("os.fork() and os._exit(7) or outlive()", "with exit code 7"),
    ],
)
def test_a_process_that_dies_is_one_error_and_the_others_are_stopped(tmp_path, deed, how):
    """It says which walk died, in which step, and how."""
    first, second = geometries(Reference, seeds(0, 2))
    assert first != second
    dies = unusual(tmp_path / "dies.py", Reference, second, deed)
    with pytest.raises(Died, match=f"it: the walk with seed {2**32} died in its step 1, {how};"):
        walks("it", dies, processes=2, seconds=60)
    assert multiprocessing.active_children() == []
    (tmp_path / "over").touch()
    assert not (tmp_path / "late").exists()


def not_here():
    """What is resolved in a process of a walk."""
    raise TargetError("it: not in this process")


def test_what_cannot_be_walked_on_in_the_process_is_its_own_error():
    with pytest.raises(TargetError, match="it: not in this process"):
        walks("it", not_here, processes=2, seconds=60)


def test_an_interruption_leaves_no_process_behind():
    """Whatever ends it here ends the walks."""
    told = []

    def interrupt(done):
        told.append(done.ledger.steps)
        if done.ledger.steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walks("it", partial(target, Reference), processes=2, seconds=60, progress=interrupt)
    assert told == sorted(told)
    assert multiprocessing.active_children() == []


def test_processes_that_cannot_be_started_are_one_error(monkeypatch):
    """Those that were started already are ended."""
    start = SpawnProcess.start

    def once(process):
        if multiprocessing.active_children():
            raise BlockingIOError("no more of them")
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", once)
    with pytest.raises(TargetError, match="it: 3 processes cannot be started at once: no more"):
        walks("it", partial(target, Reference), processes=3, seconds=60)
    assert multiprocessing.active_children() == []


def test_steps_are_shared_out_to_the_last_one():
    """And there is no walk of none, which would not end."""
    for steps in (1, 7, STEPS):
        for processes in (1, 2, 3, 8):
            own = shares(steps, processes)
            assert (sum(own), len(own)) == (steps, min(steps, processes))
            assert max(own) - min(own) <= 1
            assert own == sorted(own, reverse=True)


def test_seeds_differ_as_generators_see_them():
    """A generator has the same numbers for a seed and its negative."""
    for seed in (0, 1, -1, -(2**31), 2**32):
        own = seeds(seed, 4)
        assert own[0] == seed
        assert len({abs(one) for one in own}) == 4


def test_a_script_that_each_process_would_run_again_is_told_so(tmp_path):
    """What is walked on is right, and would walk alone."""
    script = tmp_path / "script.py"
    script.write_text(
        "from kvspec.suite.walking import walk_named\n"
        "walk_named('reference', processes=2, steps=4)\n",
        encoding="utf-8",
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "died before it began, with exit code 1; a script that walks does so under" in run.stderr


def test_walks_end_somewhen():
    with pytest.raises(ValueError, match="say which"):
        walks("it", partial(target, Reference), processes=2)
    with pytest.raises(ValueError, match="2 processes and 0 steps are no walks"):
        walks("reference", partial(target, Reference), processes=2, steps=0)


def test_states_that_were_seen_twice_count_once():
    """What two have seen together is what one has seen that saw all of it."""
    one, other, all_of_it = Distinct(), Distinct(), Distinct()
    for number in range(3000):
        for seen in (one,) * (number < 2000) + (other,) * (number >= 1000) + (all_of_it,):
            seen.add(number)
    assert one != all_of_it
    one.include(other)
    assert one == all_of_it
