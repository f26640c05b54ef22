"""CrossHair as the backend of the machine: it solves for a number that random search misses."""

import pytest
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS

from kvimpls.reference import Reference
from kvspec import Contract, Geometry, OutOfBlocks
from kvspec.contract import Geometries, Unspecified
from kvspec.driver.target import TargetError, target
from kvspec.engines.ledger import Ledger
from kvspec.engines.machine import PROFILES, Profile, missing, run_machine
from kvspec.suite.check import check_allocator, explain

NEEDLE = 1234
"""One of 4097 lengths that may be asked for."""


class Needle:
    """It answers one question wrongly, for one length alone.

    It refuses what is longer than a few tokens, as its contract allows: to write thousands of
    tokens would take all the time.
    """

    contract = Contract(
        capabilities=("core", "admission"),
        reservation=Unspecified(),
        misuse="callers_duty",
        geometries=Geometries(min_blocks=2, max_blocks=2, block_sizes=(4096,), max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        self._pool = Reference(geometry)

    def allocate(self, seq, num_tokens):
        self._short(num_tokens)
        return self._pool.allocate(seq, num_tokens)

    def append(self, seq, num_tokens):
        self._short(num_tokens)
        return self._pool.append(seq, num_tokens)

    def _short(self, num_tokens):
        if num_tokens > 4:
            raise OutOfBlocks("longer than a few tokens")

    def free(self, seq):
        return self._pool.free(seq)

    def block_table(self, seq):
        return self._pool.block_table(seq)

    def num_free_blocks(self):
        return self._pool.num_free_blocks()

    def can_allocate(self, num_tokens):
        return "MAYBE" if num_tokens == NEEDLE else self._pool.can_allocate(num_tokens)


def test_random_search_misses_the_needle():
    """In a quick run, and in the default one as well, which takes longer than a test should."""
    assert run_machine(target(Needle), PROFILES["quick"], Ledger()).trace is None


@pytest.mark.skipif(
    missing("crosshair") is not None, reason="hypothesis-crosshair is not installed"
)
def test_crosshair_finds_the_needle():
    """In episodes of a few calls; the trace has plain numbers, and replays without Hypothesis.

    The solver gives up on a way by the clock, so that one run of it may miss what the next finds.
    """
    tested, plan = target(Needle), Profile(episodes=60, steps=2)
    for number in range(8):
        run = run_machine(tested, plan, Ledger(), number, backend="crosshair")
        if run.trace is not None:
            break
    assert run.trace is not None
    trace, reproduced = explain(tested, run.trace, 10.0)
    assert (trace.law, reproduced) == ("well-formed", 5)
    (step,) = trace.steps
    assert type(step.operation.num_tokens) is int
    assert step.operation.num_tokens == NEEDLE


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    """One line, before anything is run."""
    monkeypatch.delitem(AVAILABLE_PROVIDERS, "crosshair", raising=False)
    with pytest.raises(TargetError, match=r"pip install 'kvspec\[crosshair\]'"):
        check_allocator(Needle, backend="crosshair")


def test_a_backend_that_there_is_not_is_one_line():
    """It names the package that would have it."""
    with pytest.raises(TargetError, match="hypothesis-odd is not installed"):
        check_allocator(Needle, backend="odd")
