"""The Hypothesis machine: a thin chooser over the rooms' proposals.

Sequences are addressed by an index into the believed live set, not by Bundles, which leave
needless steps. The first violation ends the run as a trace; reducing it is our own business,
so Hypothesis neither shrinks nor explains.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from attrs import define, frozen
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, GeometryRefused
from kvspec.driver.target import Target
from kvspec.engines.ledger import Ledger
from kvspec.engines.session import Session
from kvspec.kernel import generation
from kvspec.kernel.law import LawBroken
from kvspec.kernel.outcome import FULL, TOUCHED
from kvspec.kernel.room import Proposal
from kvspec.rooms import LAWS, specification
from kvspec.traces.trace import Trace

T = TypeVar("T")

_EVERY = 4
"""In an episode that looks sparsely, every so manieth step is looked at in full."""


@frozen
class HypothesisChooser:
    """A chooser that draws from Hypothesis."""

    draw: Callable[[st.SearchStrategy[int]], int]

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        """One of `near` in about half of the cases, where there are as many as in the range."""
        index = self.draw(_below(len(near) + high - low + 1))
        return near[index] if index < len(near) else low + index - len(near)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, each as likely."""
        return items[self.draw(_below(len(items)))] if len(items) > 1 else items[0]


_RANGES: dict[int, st.SearchStrategy[int]] = {}


def _below(count: int) -> st.SearchStrategy[int]:
    strategy = _RANGES.get(count)
    if strategy is None:
        strategy = _RANGES[count] = st.integers(0, count - 1)
    return strategy


@st.composite
def choosers(draw: Callable[[st.SearchStrategy[int]], int]) -> HypothesisChooser:
    """Choosers that draw as the rule runs.

    Handing `draw` out of its composite does what `st.data()` does, without its notes on
    every draw, which would take longer than the step.
    """
    return HypothesisChooser(draw)


@frozen
class Profile:
    """How much the machine does: episodes of at most so many steps."""

    episodes: int
    steps: int


PROFILES = {
    "quick": Profile(episodes=60, steps=30),
    "ci": Profile(episodes=300, steps=40),
    "thorough": Profile(episodes=3000, steps=60),
}


@define
class Run:
    """What one run of a machine leaves: the ledger, the violation, and what stood in its way."""

    ledger: Ledger
    trace: Trace | None = None
    refused_geometries: int = 0


class AllocatorMachine(RuleBasedStateMachine):
    """Drives one allocator. `machine_for` makes the subclass that knows which, and its rules."""

    target: ClassVar[Target]
    run: ClassVar[Run]
    timeout: ClassVar[float]
    progress: ClassVar[Callable[[], None]]

    session: Session | None

    def __init__(self) -> None:
        super().__init__()
        self.session = None

    @initialize(chooser=choosers())
    def build(self, chooser: HypothesisChooser) -> None:
        """A fresh allocator with a small geometry, and a schedule of looks."""
        target = self.target
        self.sparse = chooser.pick((False, False, True))
        for _ in range(20):
            geometry = generation.geometry(chooser, target.contract)
            spec = specification(geometry, target.contract, target.capabilities)
            try:
                self.session = Session(
                    target.make, spec, target.name, self.timeout, self.run.ledger
                )
            except GeometryRefused:
                self.run.refused_geometries += 1
            else:
                break

    def try_one(self, proposal: Proposal, chooser: HypothesisChooser) -> None:
        """One step of one proposal; a broken law ends the episode and the run."""
        session = self.session
        assert session is not None  # the precondition has seen to it
        operation = proposal.draw(session.state, session.spec, chooser)
        sparse = self.sparse and session.state.clock % _EVERY
        if session.perform(operation, TOUCHED if sparse else FULL):
            self.run.trace = session.trace
            law = next(law for law in LAWS if law.id == session.breaches[0].law)
            raise law.exception(session.breaches[0].because)

    def teardown(self) -> None:
        """Tell whoever watches that an episode has ended."""
        type(self).progress()


def _nothing() -> None:
    pass


def machine_for(
    target: Target,
    run: Run,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    progress: Callable[[], None] = _nothing,
) -> type[AllocatorMachine]:
    """The machine of one allocator, named after it, with a rule for each proposal."""
    members: dict[str, Any] = {
        "target": target,
        "run": run,
        "timeout": timeout,
        "progress": staticmethod(progress),
    }
    for proposal in target.specification().proposals():
        for copy in range(proposal.weight):
            name = proposal.name + ("" if copy == 0 else f"_{copy + 1}")
            members[name] = _rule(proposal, name)
    camel = "".join(word.capitalize() for word in _words(target.name))
    return type(f"{camel}Machine", (AllocatorMachine,), members)


def _words(name: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in name).split()


def _rule(proposal: Proposal, name: str) -> Any:
    def body(self: AllocatorMachine, chooser: HypothesisChooser) -> None:
        self.try_one(proposal, chooser)

    def possible(self: AllocatorMachine) -> bool:
        session = self.session
        return session is not None and proposal.possible(session.state, session.spec)

    body.__name__ = name
    return precondition(possible)(rule(chooser=choosers())(body))


def run_machine(
    target: Target,
    profile: Profile,
    ledger: Ledger,
    seed_number: int = 0,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    progress: Callable[[], None] = _nothing,
) -> Run:
    """Run the machine of `target` to the end of the profile or the first violation.

    The same seed gives the same run, for an allocator that is deterministic.
    """
    run = Run(ledger)
    machine = seed(seed_number)(machine_for(target, run, timeout, progress))
    limits = settings(
        max_examples=profile.episodes,
        stateful_step_count=profile.steps,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=limits)
    except LawBroken:
        pass
    except Exception:
        # Hypothesis says that an allocator is flaky when the violation does not come again.
        # The trace says as much; without one the error is ours, and must be seen.
        if run.trace is None:
            raise
    return run
