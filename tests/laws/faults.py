"""Faults of laws: real steps of an allocator, whose outcome is changed in the smallest way.

A module of tests lists the faults of a room's laws in a mapping `FAULTS_OF_LAWS`, by law.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import evolve

from kvimpls.reference import Reference
from kvspec.driver.target import target
from kvspec.engines.session import Session
from kvspec.kernel.law import Law
from kvspec.kernel.outcome import Answer
from kvspec.kernel.script import Call
from kvspec.kernel.specification import Specification
from kvspec.kernel.step import Step


def steps_of(make: Callable[..., Any], spec: Specification, *calls: Call) -> Iterator[Step]:
    """The steps that `make` takes, all of which are right."""
    session = Session(make, spec)
    for one in calls:
        before = session.state
        assert session.perform(spec.operation(one), fault=one.fault) == ()
        last = session.trace.steps[-1]
        yield spec.believe(before, last.operation, last.outcome)


def rehearsed(spec: Specification, *calls: Call, make: Callable[..., Any] = Reference) -> Step:
    """The last of the steps that `make` takes, all of which are right."""
    *_, last = steps_of(make, spec, *calls)
    return last


def faulty(step: Step, answer: Answer | None = None, **seen: Any) -> Step:
    """The same step with another answer, or with something else seen."""
    observation = evolve(step.seen, **seen)
    outcome = evolve(step.outcome, answer=answer or step.answer, observation=observation)
    return step.spec.believe(step.before, step.operation, outcome)


def witnessed(law: Law, make: Callable[..., Any]) -> Iterator[Step]:
    """The steps of the law's own script in its plainest geometry, in which nothing breaks."""
    tested = target(make)
    geometry = tested.geometry_of(law)
    assert geometry is not None
    return steps_of(make, tested.specification(geometry), *law.witness(geometry))


def bites_in_its_witness(law: Law, make: Callable[..., Any]) -> bool:
    """Whether the law's own script breaks nothing, and has a step in which the law bites."""
    bites = [law.bites(step) for step in witnessed(law, make)]
    return any(bites)


def first_of_its_own(law: str, step: Step, implied: Sequence[str] = ()) -> None:
    """The law is the first that the faulty step breaks, and besides it break those implied."""
    assert [breach.law for breach in step.spec.judge(step)] == [law, *implied]


def not_idle(law: str, step: Step, implied: Sequence[str] = ()) -> None:
    """Without the law the faulty step is accepted, or broken by those implied alone."""
    fewer = evolve(step.spec, laws=tuple(one for one in step.spec.laws if one.id != law))
    again = fewer.believe(step.before, step.operation, step.outcome)
    assert [breach.law for breach in fewer.judge(again)] == list(implied)
