"""`kvspec walk`, and `--coverage`: what they print, save and end with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from test_cli_check import ODD

from kvspec.engines.ledger import Ledger
from kvspec.engines.walk import Walk
from kvspec.suite.coverage import SITUATIONS
from kvspec.suite.walk_command import line
from kvspec.traces.trace import load

LEAKING = "kvimpls.museum:LeakOnRefusal"

RECYCLING = "kvimpls.museum:ReuseWhileLeased"

DIES = """
import os
from kvimpls.reference import Reference

made = 0


def make(geometry):
    global made
    made += 1
    return Reference(geometry) if made < 3 else os._exit(7)


make.contract = Reference.contract
"""
"""Its process dies when a walk begins the second episode."""

TELLS = """
import multiprocessing, os, time
from pathlib import Path
from kvimpls.reference import Reference as make

Path(f"{os.getpid()}.pid").touch()
if multiprocessing.parent_process():
    time.sleep(60)
"""
"""It tells that it is being imported; in the process of a walk that takes long."""


@pytest.fixture
def walk(kvspec):
    return lambda *arguments: kvspec("walk", *arguments)


def test_a_walk_without_a_violation_says_how_far_it_came(walk, folder):
    """Operations, episodes, the rate and the states, below the matrix; exit 0."""
    done = walk("reference", "--steps", 6000, "--json", "walk.json")
    assert done.code == 0, done.out
    assert "6,000 operations in 100 episodes" in done.out
    assert "different states" in done.out
    data = json.loads(Path("walk.json").read_text(encoding="utf-8"))
    assert data["exit_code"] == 0
    assert (data["walk"]["operations"], data["walk"]["episodes"]) == (6000, 100)
    assert data["walk"]["states"] > 1000
    [report] = data["allocators"]
    assert (report["steps"], report["profile"], report["seed"]) == (6000, "walk", 0)
    assert report["coverage"] is None


def test_a_walk_stops_at_a_violation_shows_and_saves_it(walk, folder):
    """The reduced trace is printed and saved, and the exit code is 1."""
    done = walk(LEAKING, "--seconds", 30, "--seed", 4, "--save-traces", "traces")
    assert done.code == 1
    assert "1-minimal" in done.out
    assert "because:" in done.out
    [path] = Path("traces").iterdir()
    assert (load(path).law, load(path).reduced) == ("conservation", True)


def test_a_short_walk_leaves_laws_vacuous(walk):
    """No witness is run, so what never bit was not tested: exit 3."""
    done = walk("reference", "--steps", 3)
    assert done.code == 3
    assert "VACUOUS" in done.out


def test_time_ends_a_walk(walk):
    """The number of operations is then whatever was done."""
    done = walk("reference", "--contract", "capabilities=core", "--seconds", 0.5)
    assert done.code in (0, 3)
    assert " operations in " in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere:Nothing"], "nowhere"),
        (["reference", "--contract", "no-such"], "no-such"),
        (["reference", "--json", "missing/walk.json"], "no such folder"),
    ],
)
def test_what_cannot_be_walked_on_is_one_line(walk, arguments, said):
    assert said in walk(*arguments).refused()


@pytest.mark.parametrize("option", [["--seconds", "0"], ["--seconds", "nan"], ["--steps", "0"]])
def test_a_walk_of_nothing_is_a_usage_error(walk, option):
    assert walk("reference", *option).code == 2


def test_an_allocator_that_is_not_made_is_one_line(walk, folder):
    """Found when the walk draws a geometry that the factory does not expect."""
    Path("odd.py").write_text(ODD, encoding="utf-8")
    assert "only four" in walk("odd.py:Picky", "--steps", 500).refused()


def test_processes_share_the_steps_and_are_told_as_one(walk, folder):
    """The matrix, the coverage and the counts are of all of them."""
    core = ["reference", "--contract", "capabilities=core"]
    done = walk(*core, "--steps", 301, "--processes", 2, "--coverage", "--json", "walk.json")
    assert "301 operations in 6 episodes in 2 processes, " in done.out
    data = json.loads(Path("walk.json").read_text(encoding="utf-8"))
    assert (data["walk"]["operations"], data["walk"]["processes"]) == (301, 2)
    [report] = data["allocators"]
    assert (report["steps"], report["seed"]) == (301, 0)
    assert sum(row["calls"] for row in report["coverage"].values()) == 301


def test_no_more_processes_are_told_than_there_are_steps(walk, folder):
    done = walk("reference", "--steps", 1, "--processes", 3, "--json", "walk.json")
    assert "1 operation in 1 episode, " in done.out
    assert json.loads(Path("walk.json").read_text(encoding="utf-8"))["walk"]["processes"] == 1


def test_what_one_of_the_processes_finds_is_what_its_seed_finds_alone(walk, folder):
    """Law for law and count for count, however far the other one came meanwhile."""
    found = walk(RECYCLING, "--processes", 2, "--json", "found.json")
    [report] = json.loads(Path("found.json").read_text(encoding="utf-8"))["allocators"]
    assert (found.code, report["seed"]) == (1, 2**32)
    assert f"of the walk with seed {2**32}, one of 2" in found.out
    assert walk(RECYCLING, "--seed", report["seed"], "--json", "alone.json").code == 1
    assert [report] == json.loads(Path("alone.json").read_text(encoding="utf-8"))["allocators"]


def test_a_process_that_does_not_come_back_is_one_line(walk, folder):
    """Whether its allocator is not made or takes it down with it."""
    Path("odd.py").write_text(ODD, encoding="utf-8")
    assert "only four" in walk("odd.py:Picky", "--processes", 2).refused()
    Path("dies.py").write_text(DIES, encoding="utf-8")
    said = walk("dies.py:make", "--processes", 2, "--seed", 7).refused()
    assert said.startswith("dies.py:make: the walk with seed 7 died in its step 61, with exit code")


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="an interruption of all at once")
def test_an_interruption_ends_all_processes_with_one_line(folder):
    """A terminal interrupts all that belongs to the command, however far each of them is."""
    Path("told.py").write_text(TELLS, encoding="utf-8")
    command = [sys.executable, "-m", "kvspec.cli", "walk", "told.py:make", "--processes", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as running:
        until = time.monotonic() + 30
        while len(pids := list(Path().glob("*.pid"))) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        assert running.communicate(timeout=30)[1] == b"kvspec: interrupted\n"
    assert (running.returncode, len(pids)) == (2, 3)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.stem), 0)


def test_the_live_line_says_how_far_the_walk_has_come():
    """Seconds, operations, rate, states, and the bites of the laws."""
    ledger = Ledger(steps=12_000)
    ledger.evaluations = Counter({"frame": 9, "admission": 7, "retry": 1})
    ledger.bites = Counter({"frame": 3, "admission": 2})
    shown = line(Walk(ledger, seconds=2.0))
    assert shown == (
        "2 s · 12,000 operations · 6,000/s · 0 states · 2 laws bit, 5 times, 1 not yet"
    )


def test_coverage_is_a_table_and_in_the_json(check, folder):
    """Operations down, situations across, in the terminal and as data."""
    done = check("reference", "--coverage", "--json", "report.json")
    assert "reference: calls by situation" in done.out
    for word in ("refusal", "eviction", "append_batch"):
        assert word in done.out
    assert max(map(len, done.out.splitlines())) <= 120
    [report] = json.loads(Path("report.json").read_text(encoding="utf-8"))["allocators"]
    names = {"calls", *(situation.name for situation in SITUATIONS)}
    assert {frozenset(row) for row in report["coverage"].values()} == {frozenset(names)}
    assert "calls by situation" not in check("reference").out


def test_coverage_of_a_walk(walk):
    done = walk("reference", "--steps", 200, "--coverage")
    assert "reference: calls by situation" in done.out
