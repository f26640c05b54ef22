"""What the tests of quality share: a violation that a machine found, and its explanation."""

import functools
from collections.abc import Callable

import pytest

from kvimpls.reference import Reference
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import target
from kvspec.engines.ledger import Ledger
from kvspec.engines.machine import PROFILES, run_machine
from kvspec.suite.check import explain
from kvspec.traces.trace import Trace


@functools.cache
def _by_machine(exhibit: type[Reference], seed: int) -> tuple[Trace, Trace, int]:
    tested = target(exhibit)
    # The profile only bounds the search, which ends at the first violation.
    violation = run_machine(tested, PROFILES["thorough"], Ledger(), seed).trace
    assert violation is not None, f"{exhibit.__name__} got past the machine with seed {seed}"
    return violation, *explain(tested, violation, DEFAULT_CALL_TIMEOUT)


@pytest.fixture(scope="session")
def by_machine() -> Callable[[type[Reference], int], tuple[Trace, Trace, int]]:
    """Of an exhibit and a seed: what the machine alone found, as explained, and the count.

    No witness runs first, so that the story is the machine's and the reducer's own.
    """
    return _by_machine
