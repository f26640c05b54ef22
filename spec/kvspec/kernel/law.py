"""Laws: named predicates over a step, each with an explanation, a source and a witness.

A law *bites* in a step where it is relevant and some perturbation of the outcome would be
rejected by it. A law that never bit in a run has not been tested by it, however green the run
is; so bites are found by really perturbing the outcome, believing it, and asking the law.
"""

from collections.abc import Callable, Iterator

from attrs import field, frozen

from kvspec.contract import Contract
from kvspec.geometry import Geometry
from kvspec.kernel.outcome import Outcome
from kvspec.kernel.script import Call
from kvspec.kernel.step import Step

Perturbation = Callable[[Step], Iterator[Outcome]]
"""Gives outcomes that differ from the step's own in one respect."""

Witness = Callable[[Geometry], tuple[Call, ...]]
"""A short script, for any small geometry, in which the law bites."""


class LawBroken(AssertionError):
    """An allocator broke a law. Each law raises a subclass of its own."""


def _never(contract: Contract) -> bool:
    return False


def callers_duty(contract: Contract) -> bool:
    """Wrong calls are not made, so a law about them claims nothing."""
    return contract.misuse == "callers_duty"


def _exception(law: "Law") -> type[LawBroken]:
    camel = "".join(word.capitalize() for word in law.id.split("-"))
    return type(f"{camel}Broken", (LawBroken,), {"__doc__": law.statement, "__module__": __name__})


@frozen(eq=False)
class Law:
    """One law: what must hold of every step, and how to say that it did not.

    `relevant` says whether the step is one that the law is about. `broken` gives the reason
    in full sentences, or `None` where the law holds; it is asked only of relevant steps.
    `idle` names the contracts under which no step can be relevant: there the law claims nothing.
    """

    id: str
    capability: str
    statement: str
    source: str
    relevant: Callable[[Step], bool]
    broken: Callable[[Step], str | None]
    shaken_by: tuple[Perturbation, ...]
    witness: Witness
    idle: Callable[[Contract], bool] = _never
    exception: type[LawBroken] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Give the law its own exception class."""
        object.__setattr__(self, "exception", _exception(self))

    def judge(self, step: Step) -> str | None:
        """Why `step` breaks this law, or `None`."""
        return self.broken(step) if self.relevant(step) else None

    def bites(self, step: Step) -> bool:
        """Whether this law is relevant to `step` and would reject some perturbation of it."""
        if not self.relevant(step):
            return False
        return any(
            self.judge(step.spec.believe(step.before, step.operation, outcome)) is not None
            for perturbation in self.shaken_by
            for outcome in perturbation(step)
        )


@frozen
class Breach:
    """A law that a step broke, and why."""

    law: str
    because: str
