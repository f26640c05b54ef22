"""A room: everything that one capability adds to the specification.

Rooms never know each other. They meet only in the kernel's facts (who holds what), in its
events, and in the guards that the kernel collects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Event
from kvspec.kernel.law import Law
from kvspec.kernel.operation import Operation
from kvspec.kernel.state import State

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


@frozen(eq=False)
class Proposal:
    """One kind of operation that an engine may try: whether it can now, and how to draw it."""

    name: str
    possible: Callable[[State, "Specification"], bool]
    draw: Callable[[State, "Specification", Chooser], Operation]
    weight: int = 1
    """How often an engine should try it, beside the others."""


def _no_calls(state: State, spec: "Specification") -> Sequence[Operation]:
    return ()


@frozen(eq=False)
class Room:
    """The operations, facts, guard, laws and proposals of one capability.

    `methods` are the names that a complete implementation has, and `keywords` the keyword
    arguments by method. `facts` is the room's initial slice of the state, if it has any,
    `fold` reacts to events by changing the slice and what its holders hold, and `guard` gives
    the errors that the room adds to operations of any room. `wrong` gives some wrong calls.
    `needs` are the capabilities without which this one cannot be claimed.
    """

    capability: str
    methods: tuple[str, ...]
    laws: tuple[Law, ...]
    keywords: Mapping[str, str] = field(factory=dict)
    attributes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    operations: tuple[type[Operation], ...] = ()
    facts: object = None
    fold: Callable[[State, Event], State] | None = None
    guard: Callable[[State, Operation], frozenset[str]] | None = None
    proposals: tuple[Proposal, ...] = ()
    wrong: Callable[[State, "Specification"], Sequence[Operation]] = _no_calls
