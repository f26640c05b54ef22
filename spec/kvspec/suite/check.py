"""The check of one allocator: witnesses first, then the machine, then the shortest story."""

from collections.abc import Callable
from typing import Any

from kvspec.contract import Contract
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target, TargetError, target
from kvspec.engines.ledger import Ledger
from kvspec.engines.machine import DEFAULT_BACKEND, PROFILES, missing, run_machine
from kvspec.engines.replay import run
from kvspec.rooms import LAWS
from kvspec.suite.coverage import Coverage
from kvspec.suite.report import LawResult, Report, Verdict
from kvspec.traces.reduce import Reducer
from kvspec.traces.trace import Trace, TraceStep

REPLAYS = 5
"""How often a violation must come again to be reduced."""

HANG_AGAIN = 1.0
"""Seconds after which a call counts as hanging in the replays of a trace that hung."""


def _unwatched(done: int, of: int) -> None:
    pass


def check_allocator(
    make: Callable[..., Any] | Target,
    *,
    contract: Contract | None = None,
    name: str | None = None,
    profile: str = "ci",
    seed: int = 0,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    coverage: bool = False,
    backend: str = DEFAULT_BACKEND,
    progress: Callable[[int, int], None] = _unwatched,
) -> Report:
    """The report of the whole suite on the allocator that `make` makes.

    `contract` defaults to the factory's own attribute, then to the strict paged one; `timeout`
    is in seconds a call; `backend` is what Hypothesis draws from; `coverage` asks for the counts
    of situations; `progress` is told the episodes done and planned. The same seed gives the same
    report, for an allocator that is deterministic. Raises `TargetError` where there is nothing to
    check.

    >>> from kvimpls.reference import Reference
    >>> check_allocator(Reference, profile="quick").exit_code
    <ExitCode.HELD: 0>
    """
    if profile not in PROFILES:
        raise TargetError(f"there is no profile {profile}; there are {', '.join(PROFILES)}")
    if (lacks := missing(backend)) is not None:
        raise TargetError(lacks)
    tested = make if isinstance(make, Target) else target(make, name, contract, timeout)
    covered = Coverage() if coverage else None
    ledger = Ledger(watch=covered.note if covered else None)
    plan = PROFILES[profile]
    violation = run_witnesses(tested, ledger, timeout)
    if violation is None:
        episodes = 0

        def tell() -> None:
            nonlocal episodes
            episodes += 1
            progress(episodes, plan.episodes)

        violation = run_machine(tested, plan, ledger, seed, timeout, tell, backend).trace
    return reported(tested, ledger, violation, profile, seed, timeout, covered)


def reported(
    tested: Target,
    ledger: Ledger,
    violation: Trace | None,
    profile: str,
    seed: int,
    timeout: float,
    coverage: Coverage | None = None,
) -> Report:
    """The report of a run that has ended; its violation, if there was one, is explained first."""
    trace, reproduced = violation, 0
    if violation is not None:
        trace, reproduced = explain(tested, violation, timeout)
    return Report(
        allocator=tested.name,
        contract=tested.contract,
        capabilities=tested.capabilities,
        laws=_results(tested, ledger, trace),
        steps=ledger.steps,
        profile=profile,
        seed=seed,
        trace=trace,
        reproduced=reproduced,
        replays=REPLAYS if violation is not None else 0,
        coverage=coverage.table(tested.rooms) if coverage else None,
    )


def run_witnesses(tested: Target, ledger: Ledger, timeout: float) -> Trace | None:
    """Run each claimed law's script in the plainest geometry; the first violation, if any."""
    told = set()
    for law in tested.laws:
        geometry = tested.geometry_of(law)
        if geometry is None or law.witness in told:
            continue
        told.add(law.witness)
        spec = tested.specification(geometry)
        steps = [
            TraceStep(spec.operation(call), fault=call.fault) for call in law.witness(geometry)
        ]
        # Calls that the caller must not make are left out of the scripts.
        duty = tested.contract.misuse == "callers_duty"
        trace = run(tested.make, spec, steps, tested.name, timeout, ledger, sensible=duty)
        if trace.breaches:
            return trace
    return None


def explain(tested: Target, violation: Trace, timeout: float) -> tuple[Trace, int]:
    """The violation as it is reported, and how many of `REPLAYS` replays broke a law again.

    It is run again with a full look after every step, where that breaks a law as well, since
    that fails earlier and explains better; and without whatever it does not need. Then it is
    reduced, if it comes again every time.
    """
    if any(step.outcome is not None and step.outcome.hangs for step in violation.steps):
        # What hung once is told from what is slow by now: candidates need not wait as long.
        timeout = min(timeout, HANG_AGAIN)
    reducer = Reducer(tested.make, timeout)
    count, full = reducer.reproduce(violation, 1, full=True)
    seen = reducer.plainer(full if count else violation)
    count, again = reducer.reproduce(seen, REPLAYS)
    if count < REPLAYS:
        return seen, count
    return reducer.reduce(again), count


def _results(tested: Target, ledger: Ledger, trace: Trace | None) -> dict[str, LawResult]:
    broken = {breach.law for breach in trace.breaches} if trace else set()
    judged = {law.id for law in tested.laws}
    results = {}
    for law in LAWS:
        evaluations, bites = ledger.evaluations[law.id], ledger.bites[law.id]
        if law.id not in judged:
            verdict = Verdict.NOT_CLAIMED
        elif law.id in broken:
            verdict = Verdict.BROKEN
        elif trace is not None:
            verdict = Verdict.NOT_JUDGED
        elif bites == 0:
            idle = law.idle(tested.contract)
            verdict = Verdict.NOT_CLAIMED if idle else Verdict.VACUOUS
        else:
            verdict = Verdict.HELD
        results[law.id] = LawResult(verdict, evaluations, bites)
    return results
