"""The room of reservations: the caller may bound the final length when it allocates.

The bound is a fact of the sequence's history, so the kernel keeps it; here stand the law
about it and the proposals that give one.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvspec.geometry import Geometry
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.generation import length_near_boundary, longest, new_ids, room_for_another
from kvspec.kernel.law import Law, callers_duty
from kvspec.kernel.names import plural
from kvspec.kernel.operation import Operation, whole
from kvspec.kernel.perturb import other_answer
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


def _excess(step: Step) -> tuple[int, int] | None:
    """The bound that the call exceeds and the length that it asks for, if it does."""
    for seq in step.operation.subjects:
        sequence = step.before.sequences.get(seq)
        if sequence is not None and sequence.limit is not None:
            length = sequence.length + step.operation.added(seq)
            if length > sequence.limit:
                return sequence.limit, length
    tokens = whole(getattr(step.operation, "num_tokens", None))
    limit = whole(getattr(step.operation, "limit", None))
    return (
        (limit, tokens)
        if tokens is not None and limit is not None and 0 <= limit < tokens
        else None
    )


def _beyond(step: Step) -> bool:
    return _excess(step) is not None


def _limit(step: Step) -> str | None:
    excess = _excess(step)
    if excess is None or step.expected.allows(step.answer):
        return None
    limit, length = excess
    return (
        f"the caller bound the final length by {plural(limit, 'token')}, so {length} is an "
        f"InvalidLength, but the answer is: {step.answer.kind}."
    )


def _append_beyond(geometry: Geometry) -> tuple[Call, ...]:
    """A sequence grows to its bound, and then beyond."""
    return (
        call("allocate", seq=0, num_tokens=1, limit=2),
        call("append", seq=0, num_tokens=1),
        call("append", seq=0, num_tokens=1),
    )


LAWS = (
    Law(
        "limit",
        "reservation",
        "No length goes beyond the bound that the caller gave.",
        "vllm-project/vllm#10730",
        _beyond,
        _limit,
        (other_answer,),
        _append_beyond,
        idle=callers_duty,
    ),
)


def _allocate_bounded(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    seq = chooser.pick(new_ids(state))
    most = spec.geometry.max_tokens
    tokens = length_near_boundary(spec, state, chooser, 0, [most])
    size = spec.geometry.block_size
    spare = [tokens + 2 * size + 1, tokens + size, tokens + 1, tokens]
    limit = chooser.pick([n for n in spare if most is None or n <= most] or [most])
    return spec.operation(call("allocate", seq=seq, num_tokens=tokens, limit=limit))


def _bounded(state: State) -> list[int]:
    """The sequences on the device that have a bound."""
    return [seq for seq in state.live if state.sequences[seq].limit is not None]


def _can_exceed(state: State, spec: "Specification") -> bool:
    return spec.contract.misuse == "raises" and bool(_bounded(state))


def _exceed(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """One token beyond the bound: whatever the sequence went through, it still holds."""
    seq = chooser.pick(_bounded(state))
    one = state.sequences[seq]
    beyond = (one.limit or 0) - one.length + 1
    return spec.operation(call("append", seq=seq, num_tokens=beyond))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    most = spec.geometry.max_tokens
    limits = [0, -1, 1.5] + ([most + 1] if most else [])
    seq = new_ids(state)[0]
    return [
        spec.operation(call("allocate", seq=seq, num_tokens=1, limit=limit)) for limit in limits
    ]


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    most = longest(spec)
    for seq in ids:
        for tokens in range(most + 1):
            for limit in range(tokens, most + 1):
                yield spec.operation(call("allocate", seq=seq, num_tokens=tokens, limit=limit))


ROOM = Room(
    capability="reservation",
    methods=(),
    keywords={"allocate": "limit"},
    laws=LAWS,
    proposals=(
        Proposal("allocate_bounded", room_for_another, _allocate_bounded),
        Proposal("exceed", _can_exceed, _exceed),
    ),
    wrong=_wrong,
    every=_every,
)
