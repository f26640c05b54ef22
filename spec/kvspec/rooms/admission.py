"""The room of admission: the allocator can tell what `allocate` would do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from kvspec.contract import History
from kvspec.geometry import Geometry
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.generation import HUGE, ODD_LENGTHS, length_near_boundary, longest
from kvspec.kernel.growth import reservation
from kvspec.kernel.law import Law
from kvspec.kernel.names import plural
from kvspec.kernel.operation import AnswerShape, Need, Operation, length_errors
from kvspec.kernel.outcome import Answer, Outcome
from kvspec.kernel.perturb import other_value
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


ANSWERS = ("OK", "LATER", "NEVER")
"""The answers, the most hopeful first."""


@frozen
class CanAllocate(Operation):
    """`can_allocate(num_tokens)`: OK, LATER (it would fit an empty pool) or NEVER."""

    capability: ClassVar[str] = "admission"
    method: ClassVar[str] = "can_allocate"
    answers: ClassVar[AnswerShape] = "admission"
    queries: ClassVar[bool] = True

    num_tokens: Any

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The length."""
        return (self.num_tokens,), {}

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The length is not one; too great a length is an answer here."""
        return length_errors(self.num_tokens)

    def _needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """What `allocate` would need: one account for the question and the deed."""
        past = History(
            allocated=self.num_tokens,
            limit=None,
            length=self.num_tokens,
            reserved=0,
            max_tokens=spec.geometry.max_tokens,
        )
        return reservation(state, spec, past)

    def fresh(self, state: State, spec: "Specification") -> int:
        """The blocks that `allocate` would need, in all pools together."""
        return sum(need.fresh for need in self._needs(state, spec))

    def value(self, state: State, spec: "Specification") -> str:
        """In agreement with the deed."""
        most, needs = spec.geometry.max_tokens, self._needs(state, spec)
        if most is not None and self.num_tokens > most:
            return "NEVER"
        empty = spec.initial().having(pools=state.pools)
        if not all(spec.fits(empty, need, need.fresh) for need in needs):
            return "NEVER"
        return "OK" if all(spec.fits(state, need, need.fresh) for need in needs) else "LATER"

    def right(self, state: State, spec: "Specification") -> tuple[str, ...]:
        """The right answers: one, or more fearful ones too where the deed may be refused anyway."""
        value = self.value(state, spec)
        if spec.any_refusal:
            return ANSWERS[ANSWERS.index(value) :]
        doubtful = not all(spec.surely_fits(state, need) for need in self._needs(state, spec))
        return ("OK", "LATER") if value == "OK" and doubtful else (value,)

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Each right answer."""
        for value in self.right(state, spec):
            yield spec.result(state, self, Outcome(Answer("done", value=value)))


def _answered(step: Step) -> bool:
    return isinstance(step.operation, CanAllocate) and step.done


def _agrees(step: Step) -> str | None:
    operation = step.operation
    assert isinstance(operation, CanAllocate)  # `_answered` has seen to it
    right = operation.right(step.before, step.spec)
    if step.answer.value in right:
        return None
    needs = plural(operation.fresh(step.before, step.spec), "block")
    total = sum(len(step.before.blocks(place)) for place in dict.fromkeys(step.before.places))
    free = sum(
        step.spec.available(step.before, place) for place in dict.fromkeys(step.before.places)
    )
    kept = step.spec.kept_text(step.before)
    return (
        f"for {plural(operation.num_tokens, 'token')} it takes {needs}, {free} of "
        f"{total} are free{kept}, and max_tokens is "
        f"{step.spec.geometry.max_tokens}: the answer is {' or '.join(right)}, not "
        f"{step.answer.value}."
    )


def _ask(geometry: Geometry) -> tuple[Call, ...]:
    """Asked of an empty pool, a full one, and for more than there is."""
    return (
        call("can_allocate", num_tokens=1),
        call("allocate", seq=0, num_tokens=geometry.capacity),
        call("can_allocate", num_tokens=1),
        call("can_allocate", num_tokens=geometry.capacity + 1),
    )


LAWS = (
    Law(
        "can-allocate",
        "admission",
        "can_allocate says OK, LATER or NEVER in agreement with what allocate then does.",
        "vllm-project/vllm#17834",
        _answered,
        _agrees,
        (other_value,),
        _ask,
    ),
)


def _worth_asking(state: State, spec: "Specification") -> bool:
    return bool(state.sequences) or state.clock == 0


def _draw(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    if chooser.integer(0, 3) == 0:
        most, capacity = spec.geometry.max_tokens, spec.geometry.capacity
        edges = [capacity, capacity + 1, HUGE]
        return CanAllocate(chooser.pick(edges + ([most, most + 1] if most else [])))
    return CanAllocate(length_near_boundary(spec, state, chooser, 0, []))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    return [CanAllocate(odd) for odd in ODD_LENGTHS]


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    yield from (CanAllocate(tokens) for tokens in range(longest(spec) + 2))


ROOM = Room(
    capability="admission",
    methods=("can_allocate",),
    laws=LAWS,
    operations=(CanAllocate,),
    proposals=(Proposal("can_allocate", _worth_asking, _draw),),
    wrong=_wrong,
    every=_every,
)
