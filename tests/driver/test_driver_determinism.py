"""The same seed gives the same trace, to the byte; what does not come again is said to be so."""

import json
import os
import random
import subprocess
import sys

import pytest
from hostile import CONTROL, Plain, doing, reported

from kvimpls.museum import EXHIBITS
from kvspec import Contract
from kvspec.contract import Unspecified
from kvspec.suite.check import REPLAYS, check_allocator
from kvspec.suite.report import ExitCode, Verdict
from kvspec.traces.table import as_text
from kvspec.traces.trace import from_json, to_json


def traces(seed):
    """The reduced trace of every exhibit, by name, as JSON."""
    return {
        make.__name__: to_json(check_allocator(make, profile="quick", seed=seed).trace)
        for make in EXHIBITS
    }


ALONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_driver_determinism import traces
print(json.dumps(traces(7)))
"""


@pytest.fixture(scope="module")
def told():
    """The traces of this process."""
    return traces(7)


def test_a_second_run_gives_the_same_traces(told):
    """Nothing is left in the process that the next check could depend on."""
    random.seed(1)
    assert traces(7) == told


def test_another_process_gives_the_same_traces(told):
    """Neither the order of hashes nor anything else of the process reaches a trace."""
    run = subprocess.run(
        [sys.executable, "-c", ALONE, os.path.dirname(__file__)],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == told


def test_no_address_is_in_a_trace(told):
    """Addresses differ from run to run."""
    assert all("0x" not in text for text in told.values())


class Odd:
    """Has the repr that every object has."""


ODD = {
    "object": Odd,
    "list": lambda: [Odd()],
    "tuple": lambda: (Odd(), Odd()),
    "pair": lambda: [(Odd(), 0)],
    "class": lambda: Odd,
    "method": lambda: Odd().__repr__,
    "function": lambda: lambda: 0,
    "iterator": lambda: iter([Odd()]),
    "set": lambda: {"a", "b", "c"},
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
@pytest.mark.parametrize("method", ["allocate", "block_table", "num_free_blocks", "can_allocate"])
def test_no_address_of_an_answer_is_in_a_trace(method, value):
    """An answer is shown without what is different in the next run."""
    reported(doing(method, lambda right: value()), "well-formed")


class Sometimes(Plain):
    """Loses count at random, with randomness that nobody can seed."""

    odds = 0.05
    _random = random.SystemRandom()

    def num_free_blocks(self):
        return super().num_free_blocks() - (self._random.random() < self.odds)


class Once(Plain):
    """Loses count once in the life of the process."""

    calls = 0

    def num_free_blocks(self):
        type(self).calls += 1
        return super().num_free_blocks() - (self.calls == 100)


def checked(make):
    report = check_allocator(make, profile="quick")
    assert report.trace is not None
    assert report.exit_code is ExitCode.BROKEN
    assert report.laws["conservation"].verdict is Verdict.BROKEN
    assert from_json(to_json(report.trace)) == report.trace
    return report


def test_a_fault_that_comes_once_is_not_reproduced():
    """What is seen once is reported as it was seen, unreduced, as not reproduced."""
    report = checked(type("Once", (Once,), {}))
    assert (report.reproduced, report.replays) == (0, REPLAYS)
    assert not report.trace.reduced
    assert f"not reproduced (0 of {REPLAYS})" in as_text(
        report.trace, report.reproduced, report.replays
    )
    with pytest.raises(AssertionError, match="not reproduced"):
        report.raise_for_status()


@pytest.mark.parametrize("odds", [0.02, 0.1, 0.5])
def test_a_fault_that_comes_at_random_is_reported(odds):
    """However often it comes again, there is a report and no crash."""
    for _ in range(4):
        report = checked(type("Sometimes", (Sometimes,), {"odds": odds}))
        assert 0 <= report.reproduced <= report.replays == REPLAYS
        assert report.trace.reduced == (report.reproduced == REPLAYS)
        assert as_text(report.trace, report.reproduced, report.replays)


class Generous(Plain):
    """Takes a block too many at random, as its contract allows."""

    contract = Contract(capabilities=CONTROL, reservation=Unspecified())
    _random = random.SystemRandom()

    def allocate(self, seq, num_tokens, *, limit=None):
        copies = super().allocate(seq, num_tokens, limit=limit)
        if num_tokens and self._free and self._random.random() < 0.5:
            self._sequences[seq].blocks += self._take(1)
        return copies


def test_an_allocator_may_be_random():
    """An allocator that is not deterministic and breaks no law is found to hold them all."""
    assert check_allocator(Generous, profile="quick").trace is None


class Moody(Plain):
    """Raises at random what no interface has."""

    _random = random.SystemRandom()

    def append(self, seq, num_tokens):
        if self._random.random() < 0.2:
            raise KeyError(self._random.random())
        return super().append(seq, num_tokens)


def test_an_error_that_comes_at_random_is_reported():
    """The text of an outcome may differ from run to run, when the allocator does."""
    for _ in range(4):
        report = check_allocator(Moody, profile="quick")
        assert report.exit_code is ExitCode.BROKEN
        assert report.trace.law in ("well-formed", "misuse", "limit")
        assert from_json(to_json(report.trace)) == report.trace
