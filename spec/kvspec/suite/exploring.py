"""The exploration of one allocator, or of the specification alone, and the report of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from attrs import evolve, frozen

from kvspec.contract import Contract
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, Driver
from kvspec.driver.target import Target, TargetError, target
from kvspec.engines.copies import Prints, Uncompared, Uncopied, copies, prints
from kvspec.engines.exploration import Exploration, Progress, untold
from kvspec.engines.explore import explore, explore_alone
from kvspec.engines.scope import Scope
from kvspec.geometry import Geometry
from kvspec.kernel.specification import Specification
from kvspec.rooms import CAPABILITIES, ROOMS, specification
from kvspec.suite.check import REPLAYS, explain
from kvspec.suite.report import ExitCode
from kvspec.traces.trace import CONVERTER, Trace

Way = Literal["auto", "product", "driven"]

USUAL = ("core", "sharing")
"""What is explored, where nothing else is asked for: more soon does not come to an end."""

MOST_STATES = 20_000

SPECIFICATION = "specification"
"""The name of what is explored where there is no allocator."""


@frozen
class ExploreReport:
    """What was found: one search, or two where the first was cut off.

    `trace` is the violation, reduced where it came again in all replays. `remarks` say why
    something was not done.
    """

    allocator: str
    spec: Specification
    searches: tuple[Exploration, ...]
    remarks: tuple[str, ...] = ()
    trace: Trace | None = None
    reproduced: int = 0
    replays: int = 0

    @property
    def exit_code(self) -> ExitCode:
        """1 for a broken law, else 0, also for a search that was cut off."""
        return ExitCode.HELD if self.trace is None else ExitCode.BROKEN

    @property
    def lines(self) -> tuple[str, ...]:
        """What was done and found, one line each."""
        said = [_line(search) for search in self.searches]
        said += [f"scope: {self.searches[0].scope.bounds}", *self.remarks]
        if self.trace is None and (silent := self.silent):
            said.append(f"never bit in this scope: {', '.join(silent)}")
        return tuple(said)

    @property
    def silent(self) -> list[str]:
        """The laws of the claim that bit in none of the searches."""
        contract = self.spec.contract
        return [
            law.id
            for law in self.spec.laws
            if not law.idle(contract) and not any(s.ledger.bites[law.id] for s in self.searches)
        ]

    def as_data(self) -> dict[str, Any]:
        """The report as plain data, for `--json`."""
        geometry = self.spec.geometry
        return {
            "format": 1,
            "allocator": self.allocator,
            "exit_code": int(self.exit_code),
            "capabilities": [room.capability for room in self.spec.rooms],
            "contract": CONVERTER.unstructure(self.spec.contract),
            "geometry": CONVERTER.unstructure(geometry),
            "sequences": self.searches[0].scope.sequences,
            "scope": self.searches[0].scope.bounds,
            "searches": [_search_data(search) for search in self.searches],
            "remarks": list(self.remarks),
            "laws": {law.id: _law_data(law.id, self.searches) for law in self.spec.laws},
            "trace": None if self.trace is None else CONVERTER.unstructure(self.trace),
            "reproduced": self.reproduced,
            "replays": self.replays,
        }


def _line(search: Exploration) -> str:
    counted = f"{search.states:,} states, {search.transitions:,} transitions"
    parts = [f"{search.refusals:,} refused", f"{search.wrong:,} wrong calls"]
    text = f"{search.title}: {counted} ({', '.join(parts)}), depth {search.depth}"
    text += f", {search.seconds:.1f} s, {search.rate:,.0f} a second"
    if search.told_apart:
        text += f"; told apart by {search.told_apart}"
    if search.cut:
        text += f"; cut off at {search.cut}, with {search.waiting:,} states not looked at"
    return text


def _search_data(search: Exploration) -> Mapping[str, Any]:
    return {
        "mode": search.mode,
        "exhausted": search.exhausted,
        "cut_off_at": search.cut or None,
        "states": search.states,
        "states_with_answers": search.answered,
        "transitions": search.transitions,
        "refused": search.refusals,
        "wrong_calls": search.wrong,
        "depth": search.depth,
        "not_looked_at": search.waiting,
        "seconds": round(search.seconds, 2),
        "told_apart_by": search.told_apart,
        "shortest_story": None if search.trace is None else len(search.trace.steps),
    }


def _law_data(law: str, searches: Sequence[Exploration]) -> Mapping[str, int]:
    return {
        "evaluations": max(search.ledger.evaluations[law] for search in searches),
        "bites": max(search.ledger.bites[law] for search in searches),
    }


def scope_geometry(geometry: Geometry, contract: Contract, capabilities: Sequence[str]) -> Geometry:
    """The geometry, with host blocks or a window where a capability that was asked for needs some.

    Raises `TargetError` for one that the contract excludes.
    """
    for room in ROOMS:
        if room.capability in capabilities and not room.applies(geometry):
            geometry = room.shaped(geometry, contract.geometries, None)
    if not contract.geometries.admits(geometry):
        raise TargetError(f"the contract excludes {geometry}: see its field geometries")
    return geometry


def chosen(asked: Sequence[str] | None, claimed: Sequence[str]) -> tuple[str, ...]:
    """The capabilities to be explored: those asked for, which must be claimed, or the usual ones.

    Raises `TargetError` for one that is not among the claimed.
    """
    if asked is None:
        return tuple(c for c in USUAL if c in claimed)
    for capability in asked:
        if capability not in CAPABILITIES:
            raise TargetError(
                f"there is no capability {capability}; there are {', '.join(CAPABILITIES)}"
            )
        if capability not in claimed:
            raise TargetError(f"{capability} is not claimed, so there is nothing to explore")
    return tuple(c for c in CAPABILITIES if c == "core" or c in asked)


def explore_specification(
    geometry: Geometry,
    sequences: int,
    *,
    contract: Contract | None = None,
    capabilities: Sequence[str] | None = None,
    max_states: int = MOST_STATES,
    progress: Progress = untold,
) -> ExploreReport:
    """The report of the specification explored alone, with no allocator.

    Raises `TargetError` for what no specification covers.

    >>> explore_specification(Geometry(2, 2), 1).searches[0].states
    6
    """
    promise = contract or Contract()
    claimed = chosen(capabilities, promise.capabilities or CAPABILITIES)
    spec = _specification(geometry, promise, claimed)
    try:
        found = explore_alone(Scope(spec, sequences, symmetric=True), max_states, progress)
    except ValueError as error:
        raise TargetError(str(error)) from None
    return ExploreReport(SPECIFICATION, spec, (found,), trace=found.trace)


def explore_allocator(
    make: Callable[..., Any] | Target,
    geometry: Geometry,
    sequences: int,
    *,
    contract: Contract | None = None,
    capabilities: Sequence[str] | None = None,
    max_states: int = MOST_STATES,
    way: Way = "auto",
    name: str | None = None,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    progress: Progress = untold,
) -> ExploreReport:
    """The report of all that the allocator does in a small scope, its violation explained.

    Over the product where its internals can be compared, and if that has no end within
    `max_states` every model transition is driven once as well. Raises `TargetError` where there
    is nothing to explore, and `NotBuilt` where the factory makes no allocator.

    >>> from kvimpls.museum import LeakOnRefusal
    >>> explore_allocator(LeakOnRefusal, Geometry(2, 2), 2).trace.law
    'conservation'
    """
    tested = make if isinstance(make, Target) else target(make, name, contract, timeout)
    claimed = chosen(capabilities, tested.capabilities)
    tested = evolve(tested, capabilities=claimed)
    spec = _specification(geometry, tested.contract, claimed)
    driver = Driver(tested.make, spec, timeout)
    copied = copies(driver)
    try:
        printed = None if way == "driven" else prints(driver)
    except Uncompared as error:
        raise _incomparable(tested, error) from None
    remarks = []
    if copied is None:
        remarks.append("it cannot be copied: every transition tells its story to a fresh one")
    if printed is None and way != "driven":
        remarks.append("its internals cannot be compared (no fingerprint(), no pickle)")
    if way == "auto" and spec.claims("store"):
        remarks.append("the data of a store are new with every write, so the product has no end")
        printed = None
    if printed is None and way == "product":
        raise TargetError(f"{tested.name}: {remarks[-1]}, so there is no product to explore")
    plans: list[Prints | None] = []
    if way != "driven" and printed is not None:
        plans.append(printed)
    if way != "product":
        plans.append(None)
    searches: list[Exploration] = []
    while plans:
        scope = Scope(spec, sequences, symmetric=plans[0] is None)
        try:
            found = explore(tested, scope, max_states, copied, plans[0], progress, timeout)
        except Uncompared as error:
            raise _incomparable(tested, error) from None
        except Uncopied as error:
            # A lock that was made at the first append, say. So all begins again, without copies.
            copied = None
            remarks.append(
                f"after some calls it cannot be copied ({error}): every transition tells its story "
                "to a fresh one"
            )
            if plans[0] is not None and plans[0].pickles:
                remarks.append("so its internals cannot be compared (no fingerprint())")
                del plans[0]
            continue
        del plans[0]
        searches.append(found)
        if found.exhausted or found.trace is not None:
            break
    if not searches:
        raise TargetError(f"{tested.name}: {'; '.join(remarks)}, so there is no product to explore")
    violation = searches[-1].trace
    if violation is None:
        return ExploreReport(tested.name, spec, tuple(searches), tuple(remarks))
    trace, reproduced = explain(tested, violation, timeout)
    if reproduced < REPLAYS:
        remarks.append(
            f"a fresh allocator breaks the law in {reproduced} of {REPLAYS} runs of that story: it "
            "goes by more than the calls, or a copy of it is not whole"
        )
    return ExploreReport(
        tested.name, spec, tuple(searches), tuple(remarks), trace, reproduced, REPLAYS
    )


def _incomparable(tested: Target, error: Uncompared) -> TargetError:
    return TargetError(
        f"{tested.name}: its fingerprint() fails: {error}; what is driven once (--mode driven) "
        "needs none"
    )


def _specification(
    geometry: Geometry, contract: Contract, capabilities: tuple[str, ...]
) -> Specification:
    geometry = scope_geometry(geometry, contract, capabilities)
    try:
        return specification(geometry, contract, capabilities)
    except ValueError as error:
        raise TargetError(str(error)) from None
