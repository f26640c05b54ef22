"""What the tests of single rooms share: steps by choice, all reachable states, all outcomes."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import product

from attrs import evolve
from scopes import alike, canonical, reached

from kvspec.geometry import Place
from kvspec.interface import Copy
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE, REFUSED, Answer, Observation, Outcome
from kvspec.kernel.script import Call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Entries, State, TableOf
from kvspec.kernel.step import Step


def chosen(spec: Specification, *calls: Call) -> Step:
    """The last of the steps, each of which is answered by the first outcome that is allowed."""
    state, operation = reached(spec, *calls[:-1]), spec.operation(calls[-1])
    step = spec.believe(state, operation, next(spec.choices(state, operation)))
    assert spec.judge(step) == ()
    return step


def shown(
    step: Step,
    answer: Answer | None = None,
    tables: Mapping[TableOf, Entries] | None = None,
    free: Mapping[Place, int] | None = None,
) -> Step:
    """The same step with another answer, and with some of what was seen replaced."""
    seen = evolve(
        step.seen,
        tables={**step.seen.tables, **(tables or {})},
        free={**step.seen.free, **(free or {})},
    )
    outcome = evolve(step.outcome, answer=answer or step.answer, observation=seen)
    return step.spec.believe(step.before, step.operation, outcome)


def undone(step: Step, answer: Answer = REFUSED) -> Step:
    """The same call, which does nothing and answers otherwise."""
    outcome = Outcome(answer, step.spec.observed(step.before))
    return step.spec.believe(step.before, step.operation, outcome)


def copies(*pairs: tuple[int, int]) -> Answer:
    """A success that reports these copies."""
    return Answer("done", copies=tuple(Copy(*pair) for pair in pairs))


def broken(step: Step) -> list[str]:
    """The laws that a step breaks, in the published order."""
    return [breach.law for breach in step.spec.judge(step)]


def accepted_choices(spec: Specification, state: State, operation: Operation) -> list[Step]:
    """The steps that the choices make, each of which is accepted, shows itself, and differs."""
    outcomes = list(spec.choices(state, operation))
    steps = [spec.believe(state, operation, outcome) for outcome in outcomes]
    for step in steps:
        assert spec.judge(step) == ()
        assert step.seen.tables == spec.observed(step.after).tables
    assert steps, "something is always allowed"
    names = {canonical(spec, state, outcome, operation.tiers) for outcome in outcomes}
    assert len(names) == len(outcomes)
    return steps


def explored(
    spec: Specification,
    calls: Callable[[Specification, State], Iterable[Operation]],
    name: Callable[[State], Hashable] = alike,
) -> dict[Hashable, State]:
    """All states that choices lead to, up to names, breadth first; every choice is accepted."""
    states = {name(spec.initial()): spec.initial()}
    new = deque(states.values())
    while new:
        state = new.popleft()
        for operation in calls(spec, state):
            for step in accepted_choices(spec, state, operation):
                if name(step.after) not in states:
                    states[name(step.after)] = step.after
                    new.append(step.after)
    return states


def only_choices_are_accepted(
    spec: Specification, *calls: Call, entries: int = 2, copied: int = 2, none: bool = False
) -> int:
    """How many outcomes of the last call are accepted: just its choices, up to names.

    The universe: no more than so many copies, for each table of each sequence that lives then so
    many entries at most (with `none`, released ones too) of the blocks of all pools of its tier,
    and every count of every place.
    """
    state, operation = reached(spec, *calls[:-1]), spec.operation(calls[-1])
    outcomes = list(spec.choices(state, operation))
    choices = {canonical(spec, state, outcome, operation.tiers) for outcome in outcomes}
    found = set()
    for outcome in _uncounted(spec, state, operation, entries, copied, none):
        if broken(spec.believe(state, operation, outcome)):
            continue
        places = [place for place, _, _ in spec.counts]
        for count in product(*(range(len(state.blocks(place)) + 1) for place in places)):
            seen = evolve(outcome.observation, free=dict(zip(places, count, strict=True)))
            full = evolve(outcome, observation=seen)
            if not broken(spec.believe(state, operation, full)):
                found.add(canonical(spec, state, full, operation.tiers))
    assert found == choices
    return len(found)


def _uncounted(
    spec: Specification,
    state: State,
    operation: Operation,
    entries: int,
    copied: int,
    none: bool,
) -> Iterator[Outcome]:
    for answer in _answers(state, operation, copied):
        after = spec.foreseen(state, operation, answer)
        tables = [table for seq in after.sequences for table, _, _ in spec.tables(seq, after)]
        ways = []
        for table in tables:
            ids = [*_tier(state, table.place.tier), *([None] if none else [])]
            ways.append([t for n in range(entries + 1) for t in product(ids, repeat=n)])
        for way in product(*ways):
            yield Outcome(answer, Observation(tables=dict(zip(tables, way, strict=True))))


def _answers(state: State, operation: Operation, copied: int) -> Iterator[Answer]:
    source, to = operation.tiers
    pairs = [Copy(*pair) for pair in product(_tier(state, source), _tier(state, to))]
    for count in range(copied + 1):
        for some in product(pairs, repeat=count):
            yield Answer("done", copies=some) if some else DONE
    yield REFUSED
    for error in ("UnknownSequence", "SequenceExists", "InvalidLength", "NotResident"):
        yield Answer("error", error)
    yield Answer("raised", "KeyError(0)")


def _tier(state: State, tier: str) -> list[int]:
    """All blocks of a tier: those of its pools are numbered through."""
    return [b for place in state.pools if place.tier == tier for b in state.blocks(place)]
