"""What the tests of this folder share: allocators with one odd answer, and ways to drive them."""

import random

from kvimpls.reference import Reference
from kvspec import Contract, Geometry
from kvspec.driver.target import target
from kvspec.engines.session import Session
from kvspec.kernel.outcome import FULL, TOUCHED
from kvspec.suite.check import check_allocator
from kvspec.suite.report import ExitCode
from kvspec.traces.table import as_text
from kvspec.traces.trace import from_json, to_json

CONTROL = ("core", "reservation", "admission", "sharing", "lease")
"""The capabilities whose calls and queries the tests of this folder are about."""


class Plain(Reference):
    """The reference, as far as these tests need it: its tables are asked for by sequence alone."""

    contract = Contract(capabilities=CONTROL)


def doing(method, deed):
    """The plain reference, but that `method` answers what `deed(right answer)` gives or raises."""

    def odd(self, *arguments, **keywords):
        return deed(getattr(Reference, method)(self, *arguments, **keywords))

    def odd_allocate(self, seq, num_tokens, *, limit=None):
        return deed(Reference.allocate(self, seq, num_tokens, limit=limit))

    # The signature of `allocate` is a part of the claim.
    return type("Odd", (Plain,), {method: odd_allocate if method == "allocate" else odd})


def answering(method, value):
    """The plain reference, but that `method` answers `value` after it has done its work."""
    return doing(method, lambda right: value)


def raising(method, error):
    """The plain reference, but that `method` raises `error` after it has done its work."""

    def deed(right):
        raise error

    return doing(method, deed)


def reported(make, law, *snippets, **options):
    """The report of a quick check that found `law` broken for a reason that has the snippets.

    What every such report must be: reproduced, reduced, told in texts of one line without
    addresses, and a trace that can be saved, loaded and shown.
    """
    report = check_allocator(make, profile="quick", **options)
    assert report.trace is not None, "nothing was found"
    because = report.trace.breaches[0].because
    assert report.trace.law == law, because
    for snippet in snippets:
        assert snippet in because
    assert report.exit_code is ExitCode.BROKEN
    assert report.reproduced == report.replays
    assert report.trace.reduced
    assert "\n" not in because
    text = to_json(report.trace)
    assert "0x" not in text
    assert from_json(text) == report.trace
    assert law in as_text(report.trace)
    return report


class Seeded:
    """A chooser that draws from a seeded generator."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def integer(self, low, high, near=()):
        if near and self._random.random() < 0.5:
            return self._random.choice(near)
        return self._random.randint(low, high)

    def pick(self, items):
        return self._random.choice(items)


def walk(make, seed=0, steps=60, geometry=None, timeout=10.0, tested=None):
    """A session of random steps, up to the first breach."""
    chooser = Seeded(seed)
    tested = tested or target(make)
    geometry = geometry or Geometry(chooser.pick((1, 3, 5)), chooser.pick((1, 2, 3)))
    session = Session(make, tested.specification(geometry), "walk", timeout)
    proposals = list(session.spec.proposals())
    for _ in range(steps):
        possible = [p for p in proposals if p.possible(session.state, session.spec)]
        operation = chooser.pick(possible).draw(session.state, session.spec, chooser)
        if session.perform(operation, chooser.pick((FULL, TOUCHED))):
            break
    return session
