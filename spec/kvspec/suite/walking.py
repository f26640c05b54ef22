"""The walk of one allocator, and the report of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import frozen

from kvspec.contract import Contract
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target, target
from kvspec.engines.ledger import Ledger
from kvspec.engines.walk import Walk, walk
from kvspec.engines.walks import shares, together, walks
from kvspec.suite.check import reported
from kvspec.suite.contracts import resolve
from kvspec.suite.coverage import Coverage
from kvspec.suite.matrix import report_data
from kvspec.suite.report import Report


@frozen
class WalkReport:
    """What a walk found: the report, and how far it came.

    `states` is an estimate, within about 1 %, of how many different states were seen, and
    `processes` how many walks there were at once. Where one of them broke a law, all else is of
    that one alone: what the others did by then depends on the clock.
    """

    report: Report
    seconds: float
    episodes: int
    states: int
    processes: int = 1

    def as_data(self) -> dict[str, Any]:
        """The report as plain data, for `--json`."""
        return {
            "format": 1,
            "exit_code": int(self.report.exit_code),
            "walk": {
                "seconds": round(self.seconds, 3),
                "episodes": self.episodes,
                "operations": self.report.steps,
                "states": self.states,
                "processes": self.processes,
            },
            "allocators": [report_data(self.report)],
        }


def _untold(walk: Walk) -> None:
    pass


def walk_allocator(
    make: Callable[..., Any] | Target,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    contract: Contract | None = None,
    name: str | None = None,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    coverage: bool = False,
    progress: Callable[[Walk], None] = _untold,
) -> WalkReport:
    """The report of a walk on the allocator that `make` makes, its violation reduced.

    It ends after so many `seconds` or `steps`. The witnesses of the laws are not run, so in a
    short walk laws may stay vacuous. Raises `TargetError` where there is nothing to walk on, and
    `NotBuilt` where the factory makes no allocator.

    >>> from kvimpls.museum import LeakOnRefusal
    >>> walk_allocator(LeakOnRefusal, steps=10_000).report.trace.law
    'conservation'
    """
    tested = make if isinstance(make, Target) else target(make, name, contract, timeout)
    covered = Coverage() if coverage else None
    ledger = Ledger(watch=covered.note if covered else None)
    done = walk(
        tested,
        seed,
        seconds=seconds,
        steps=steps,
        ledger=ledger,
        timeout=timeout,
        progress=progress,
    )
    report = reported(tested, ledger, done.trace, "walk", seed, timeout, covered)
    return WalkReport(report, done.seconds, done.episodes, done.states.count)


def walk_named(
    text: str,
    *,
    processes: int = 1,
    contract: str | None = None,
    seconds: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    coverage: bool = False,
    progress: Callable[[Walk], None] = _untold,
) -> WalkReport:
    """The report of so many walks at once on the allocator that `text` names, as commands name it.

    It is named, as is its `contract`, since each process makes its own. So many `seconds` are for
    each walk, so many `steps` for all; the first walk has the `seed`, for the others see
    `kvspec.engines.walks.seeds`. One process is this one. Raises `TargetError` as `walk_allocator`
    does, and where a process dies.
    """
    tested = resolve(text, contract, timeout)
    if processes == 1:
        return walk_allocator(
            tested,
            seconds=seconds,
            steps=steps,
            seed=seed,
            timeout=timeout,
            coverage=coverage,
            progress=progress,
        )
    ended = walks(
        text,
        partial(resolve, text, contract, timeout),
        seed,
        processes=processes,
        seconds=seconds,
        steps=steps,
        timeout=timeout,
        watcher=Coverage if coverage else None,
        progress=progress,
    )
    done, covered = together(one.walk for one in ended), Coverage() if coverage else None
    for one in ended:
        if covered is not None and one.watcher is not None:
            covered.include(one.watcher)
    # The first of those that ended is the one that broke a law, or the first of all.
    found = reported(tested, done.ledger, done.trace, "walk", ended[0].seed, timeout, covered)
    # Not as many as have ended: of those only the one is told that broke a law.
    at_once = processes if steps is None else len(shares(steps, processes))
    return WalkReport(found, done.seconds, done.episodes, done.states.count, at_once)
