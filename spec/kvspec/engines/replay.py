"""Replay: a trace's operations and looks once more, on a fresh allocator.

The outcomes are made anew, so that a trace is regression test and bug report at once.
"""

from collections.abc import Callable, Iterable
from typing import Any

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.watchdog import watching
from kvspec.engines.ledger import Ledger
from kvspec.engines.session import Session
from kvspec.kernel.specification import Specification
from kvspec.traces.trace import Trace, TraceStep


def run(
    make: Callable[..., Any],
    spec: Specification,
    steps: Iterable[TraceStep],
    name: str = "allocator",
    timeout: float = DEFAULT_CALL_TIMEOUT,
    ledger: Ledger | None = None,
    sensible: bool = False,
) -> Trace:
    """Perform `steps` on a fresh allocator, up to the first breach; the trace of it.

    Where only `sensible` ones are wanted, a call that is wrong and was not meant to be is left
    out, and so is one that no caller makes, or that would give a lease a name that another has.
    Raises `NotBuilt` where the factory makes no allocator.
    """
    session = Session(make, spec, name=name, timeout=timeout, ledger=ledger)
    named = set()
    with watching():
        for step in steps:
            operation = step.operation
            if sensible:
                errors = spec.expect(session.state, operation).errors
                made = bool(step.wrong) if errors else operation.sensible(session.state)
                if not (made and spec.claims(operation.capability)) or operation.handle in named:
                    continue
            if session.perform(operation, step.look, step.fault):
                break
            if operation.handle is not None and session.answered:
                named.add(operation.handle)
    return session.trace


def replay(make: Callable[..., Any], trace: Trace, timeout: float = DEFAULT_CALL_TIMEOUT) -> Trace:
    """The trace that `trace` gives now, with the allocator that `make` makes."""
    return run(make, trace.specification, trace.steps, trace.allocator, timeout)
