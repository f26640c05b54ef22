"""The Hypothesis machine: a thin chooser over the rooms' proposals.

Sequences are addressed by an index into the believed live set, not by Bundles, which leave
needless steps. The first violation ends the run as a trace; reducing it is our own business,
so Hypothesis neither shrinks nor explains.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import ClassVar, TypeVar

from attrs import define, frozen
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target
from kvspec.driver.watchdog import watching
from kvspec.engines.episode import Episode, begin
from kvspec.engines.ledger import Ledger
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.law import LawBroken
from kvspec.rooms import LAWS
from kvspec.traces.trace import Trace

T = TypeVar("T")

Draw = Callable[[st.SearchStrategy[int]], int]

_TOGETHER = 2
"""So many episodes are one run of Hypothesis: it varies what it has drawn, so that later episodes
of one run are about much the same."""


@frozen
class HypothesisChooser:
    """A chooser that draws from Hypothesis.

    What is drawn is turned on by a number from a generator of the episode's own. Hypothesis begins
    with the simplest example, all zeros, and that would be one and the same story in every run.
    """

    draw: Callable[[st.SearchStrategy[int]], int]
    turns: Random

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        """One of `near` in about half of the cases, where there are as many as in the range."""
        index = self._index(len(near) + high - low + 1)
        return near[index] if index < len(near) else low + index - len(near)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, each as likely."""
        return items[self._index(len(items))] if len(items) > 1 else items[0]

    def _index(self, count: int) -> int:
        return (self.draw(_below(count)) + self.turns.randrange(count)) % count


@frozen
class DecidingChooser:
    """A chooser for a backend whose integers are symbolic: only numbers from a range stay so.

    Each item that is picked is a case of its own. Symbolic sizes and ids would be everywhere in
    the state, and there they reach code that is not Python's, which cannot work with them.
    """

    draw: Callable[[st.SearchStrategy[int]], int]

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        """One of `near`, or any of the range, which is then a number that is not decided yet."""
        if bool(near) and self.pick((False, True)):
            return self.pick(near)
        return low + self.draw(_below(high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, which is decided at once."""
        index = self.draw(_below(len(items))) if len(items) > 1 else 0
        for number, item in enumerate(items):
            if index == number:
                return item
        return items[-1]


_RANGES: dict[int, st.SearchStrategy[int]] = {}


def _below(count: int) -> st.SearchStrategy[int]:
    strategy = _RANGES.get(count)
    if strategy is None:
        strategy = _RANGES[count] = st.integers(0, count - 1)
    return strategy


@st.composite
def draws(draw: Callable[[st.SearchStrategy[int]], int]) -> Draw:
    """The function that draws as the rule runs.

    Handing `draw` out of its composite does what `st.data()` does, without its notes on
    every draw, which would take longer than the step.
    """
    return draw


@frozen
class Profile:
    """How much the machine does: episodes of at most so many steps."""

    episodes: int
    steps: int


PROFILES = {
    "quick": Profile(episodes=60, steps=30),
    "ci": Profile(episodes=400, steps=40),
    "thorough": Profile(episodes=3000, steps=60),
}


def _nothing() -> None:
    pass


@define
class Run:
    """One run of a machine: what it tells as it goes, and what it leaves."""

    ledger: Ledger
    progress: Callable[[], None] = _nothing
    trace: Trace | None = None
    refused_geometries: int = 0


DEFAULT_BACKEND = "hypothesis"

_SOLVED = 4
"""So many steps at most has an episode whose numbers are solved for."""

BACKENDS = (DEFAULT_BACKEND, "crosshair")
"""What Hypothesis may draw from; others than its own come in packages of their own."""


def missing(backend: str) -> str | None:
    """What to install for a backend of Hypothesis that is not there, in one line."""
    if backend in AVAILABLE_PROVIDERS or backend == DEFAULT_BACKEND:
        return None
    return f"hypothesis-{backend} is not installed: pip install 'kvspec[{backend}]'"


class AllocatorMachine(RuleBasedStateMachine):
    """Drives one allocator. `machine_for` makes the subclass that knows which.

    It has one rule: which operation comes next is drawn from the proposals as everything else
    is, so that the other engines draw it in the same way.
    """

    target: ClassVar[Target]
    run: ClassVar[Run]
    timeout: ClassVar[float]
    deciding: ClassVar[bool]
    number: ClassVar[int]

    episode: Episode
    turns: Random

    @initialize(draw=draws())
    def build(self, draw: Draw) -> None:
        """A fresh allocator, and what the episode is about."""
        if self.deciding:
            # What was found with symbolic numbers counts only once it comes again with real ones.
            self.run.trace = None
        self.turns = Random(self.number)
        drawn = self._chooser(draw)
        self.episode = begin(drawn, self.target, self.run.ledger, self.timeout, self._refused)

    def _chooser(self, draw: Draw) -> Chooser:
        return DecidingChooser(draw) if self.deciding else HypothesisChooser(draw, self.turns)

    def _refused(self) -> None:
        self.run.refused_geometries += 1

    @rule(draw=draws())
    def step(self, draw: Draw) -> None:
        """One operation; a broken law ends the episode and the run."""
        breaches = self.episode.step(self._chooser(draw))
        if breaches:
            self.run.trace = self.episode.session.trace
            law = next(law for law in LAWS if law.id == breaches[0].law)
            raise law.exception(breaches[0].because)

    def teardown(self) -> None:
        """Tell whoever watches that an episode has ended."""
        self.run.progress()


def machine_for(
    target: Target,
    run: Run,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    backend: str = DEFAULT_BACKEND,
    number: int = 0,
) -> type[AllocatorMachine]:
    """The machine of one allocator, named after it; `number` is what its episodes are turned by."""
    words = "".join(c if c.isalnum() else " " for c in target.name).split()
    camel = "".join(word[0].upper() + word[1:] for word in words)
    members = {"target": target, "run": run, "timeout": timeout, "number": number}
    members["deciding"] = backend != DEFAULT_BACKEND
    return type(f"{camel}Machine", (AllocatorMachine,), members)


def _mixed(number: int, episodes: int) -> int:
    """A seed for the next episodes of the run, that no other run has among its own."""
    return number * 1_000_003 + episodes


def run_machine(
    target: Target,
    profile: Profile,
    ledger: Ledger,
    seed_number: int = 0,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    progress: Callable[[], None] = _nothing,
    backend: str = DEFAULT_BACKEND,
) -> Run:
    """Run the machine of `target` to the end of the profile or the first violation.

    The same seed gives the same run, for an allocator that is deterministic. `backend` is what
    Hypothesis draws from: its own generator, or another that is installed, such as crosshair.
    """
    run, episodes = Run(ledger), 0

    def ended() -> None:
        nonlocal episodes
        episodes += 1
        progress()

    run.progress = ended
    together, steps = _TOGETHER, profile.steps
    if backend != DEFAULT_BACKEND:
        # A solver remembers which ways have been gone only as long as the run lasts, and gives up
        # on a way after a few seconds.
        together, steps = profile.episodes, min(steps, _SOLVED)
    while run.trace is None and episodes < profile.episodes:
        limits = settings(
            max_examples=min(together, profile.episodes - episodes),
            stateful_step_count=steps,
            backend=backend,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
                HealthCheck.large_base_example,
            ],
        )
        number = _mixed(seed_number, episodes)
        machine = seed(number)(machine_for(target, run, timeout, backend, number))
        try:
            with watching():
                run_state_machine_as_test(machine, settings=limits)
        except (LawBroken, Flaky):
            # Flaky means that the same draws led elsewhere: an allocator may be as random as it
            # likes, so without a violation we go on afresh. With one, its replays will tell.
            continue
    return run
