"""The ledger of a run: for each law, how often it was asked and how often it bit."""

from collections import Counter
from collections.abc import Callable

from attrs import define, field

from kvspec.kernel.law import Breach, Law
from kvspec.kernel.step import Step

_ENOUGH = 16
"""After so many bites, one more is looked for in every 32nd relevant step only."""

_SELDOM = 1024
"""After so many relevant steps ever more seldom: a soak has bitten often enough by then."""


@define
class Ledger:
    """Counts evaluations and bites by law.

    An evaluation is a step to which the law is relevant. A bite is found by perturbing the
    outcome, which costs more than judging; so after the first ones only a part of the steps
    is looked at, and the count of bites is a lower bound. `watch` is shown every step, if given.
    """

    steps: int = 0
    evaluations: Counter[str] = field(factory=Counter)
    bites: Counter[str] = field(factory=Counter)
    broken: Counter[str] = field(factory=Counter)
    watch: Callable[[Step], None] | None = None
    _due: Counter[str] = field(init=False, factory=Counter)
    """From which relevant step on another bite is looked for, by law."""

    def note(self, step: Step, breaches: tuple[Breach, ...]) -> None:
        """Count one judged step."""
        self.steps += 1
        for breach in breaches:
            self.broken[breach.law] += 1
        evaluations, due = self.evaluations, self._due
        for law in step.relevant:
            name = law.id
            count = evaluations[name] = evaluations[name] + 1
            if count >= due[name]:
                self._look_for_bite(law, step, count)
        if self.watch is not None:
            self.watch(step)

    def include(self, other: "Ledger") -> None:
        """Count what another has counted as well."""
        self.steps += other.steps
        self.evaluations += other.evaluations
        self.bites += other.bites
        self.broken += other.broken

    def _look_for_bite(self, law: Law, step: Step, count: int) -> None:
        if law.bites(step):
            self.bites[law.id] += 1
        if self.bites[law.id] < _ENOUGH and count < _SELDOM:
            self._due[law.id] = count + 1
        else:
            later = count // 32 if count > _SELDOM else 0
            self._due[law.id] = (count // 32 + 1) * 32 + later
