"""The ledger of a run: for each law, how often it was asked and how often it bit."""

from collections import Counter

from attrs import define, field

from kvspec.kernel.law import Breach, Law
from kvspec.kernel.step import Step

_ENOUGH = 16
"""After so many bites, one more is looked for in every 32nd relevant step only."""


@define
class Ledger:
    """Counts evaluations and bites by law.

    An evaluation is a step to which the law is relevant. A bite is found by perturbing the
    outcome, which costs more than judging; so after the first ones only a part of the steps
    is looked at, and the count of bites is a lower bound.
    """

    steps: int = 0
    evaluations: Counter[str] = field(factory=Counter)
    bites: Counter[str] = field(factory=Counter)
    broken: Counter[str] = field(factory=Counter)

    def note(self, step: Step, breaches: tuple[Breach, ...]) -> None:
        """Count one judged step."""
        self.steps += 1
        for breach in breaches:
            self.broken[breach.law] += 1
        for law in step.relevant:
            self._note(law, step)

    def _note(self, law: Law, step: Step) -> None:
        self.evaluations[law.id] += 1
        count = self.evaluations[law.id]
        wanted = self.bites[law.id] < _ENOUGH or count % 32 == 0
        if wanted and law.bites(step):
            self.bites[law.id] += 1
