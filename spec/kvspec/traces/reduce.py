"""The reducer: the shortest story that breaks the same law.

Moves are tried on replays until none helps: drop runs of steps, grow once instead of twice,
let one sequence do what another did, lower the pool, the block size, lengths and bounds,
rename. The result is *1-minimal*: no single move leaves a smaller trace that breaks the same
law first. It is deterministic, and every candidate is a whole run of a fresh allocator.
"""

from collections.abc import Callable
from typing import Any

from attrs import evolve, frozen

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, NotBuilt
from kvspec.engines.replay import run
from kvspec.kernel.outcome import FULL
from kvspec.rooms import specification
from kvspec.traces.cases import Case, size
from kvspec.traces.moves import moves
from kvspec.traces.trace import Trace


@frozen
class Reducer:
    """Reduces traces of one allocator."""

    make: Callable[..., Any]
    timeout: float = DEFAULT_CALL_TIMEOUT

    def reproduce(self, trace: Trace, times: int = 1, full: bool = False) -> tuple[int, Trace]:
        """In how many of `times` replays the same law is broken, and the last such trace.

        With `full`, everything is looked at after every step, and any law counts: what was
        found late by a sparse look is then found where it went wrong.
        """
        steps = trace.steps
        if full:
            steps = tuple(evolve(step, look=FULL) for step in steps)
        again, count = trace, 0
        for _ in range(times):
            run = self._run(trace, Case(trace.geometry, steps))
            if run is not None and (full or run.law == trace.law):
                again, count = run, count + 1
        return count, again

    def plainer(self, trace: Trace) -> Trace:
        """The trace without injected faults, groups, window and host blocks, as far as it can be.

        Any law counts: what is wrong without groups is no fault of groups, whichever law sees it
        where there are some.
        """
        without: tuple[dict[str, Any], ...] = ({"groups": None}, {"window": None})
        for fewer in ({}, *without, {"num_host_blocks": 0}):
            geometry = evolve(trace.geometry, **fewer)
            steps = trace.steps if fewer else tuple(evolve(s, fault=0) for s in trace.steps)
            case = Case(geometry, steps)
            if case != Case(trace.geometry, trace.steps) and trace.contract.geometries.admits(
                geometry
            ):
                trace = self._run(trace, case) or trace
        return trace

    def reduce(self, trace: Trace) -> Trace:
        """A 1-minimal trace that breaks the same law; `trace` must do so on every replay."""
        best = trace
        while True:
            better = self.improve(best)
            if better is None:
                return evolve(best, reduced=True)
            best = better

    def is_minimal(self, trace: Trace) -> bool:
        """Whether no single move leaves a smaller trace that breaks the same law."""
        return self.improve(trace) is None

    def improve(self, trace: Trace) -> Trace | None:
        """A smaller trace, one move away, that breaks the same law, or `None`."""
        case = Case(trace.geometry, trace.steps)
        before = size(case)
        for move in moves(case):
            if size(move) < before and trace.contract.geometries.admits(move.geometry):
                run = self._run(trace, move)
                if run is not None and run.law == trace.law:
                    return run
        return None

    def _run(self, trace: Trace, case: Case) -> Trace | None:
        """The trace of `case` up to the first breach, or `None` if there is none.

        A call that made sense only because of a dropped one (its sequence is gone) is dropped
        with it, not turned into misuse; and so is one that would give a lease a name that
        another has.
        """
        spec = specification(case.geometry, trace.contract, trace.capabilities)
        try:
            again = run(self.make, spec, case.steps, trace.allocator, self.timeout, sensible=True)
        except NotBuilt:
            return None
        return again if again.breaches else None
