"""A room: everything that one capability adds to the specification.

Rooms never know each other. They meet only in the kernel's facts (who holds what), in its
events, and in the guards that the kernel collects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from kvspec.geometry import Geometry
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
    urgent: bool = False
    """Whether it comes as often as all others together, whenever it can."""


def _no_calls(state: State, spec: "Specification") -> Sequence[Operation]:
    return ()


def _nothing(state: State, seq: int) -> tuple[int, ...]:
    return ()


def _any(geometry: Geometry) -> bool:
    return True


def _none(geometry: Geometry) -> bool:
    return False


def _as_it_is(geometry: Geometry, chooser: Chooser | None) -> Geometry:
    return geometry


def ungrouped(geometry: Geometry) -> bool:
    """Whether there is one KV group: in others, capabilities beyond it are not specified."""
    return geometry.groups is None


@frozen(eq=False)
class Room:
    """The operations, facts, guard, laws and proposals of one capability.

    `methods` are the names that a complete implementation has, `keywords` the keyword arguments
    by method (that of the factory under the empty name), and `flags` the attributes that must be
    true. `needs` are the capabilities without which this one cannot be claimed.

    `applies` says in which geometries there is something to judge, `needed_by` which of them make
    no sense without this capability, and `shaped` makes one of any
    other: the plainest, or one that the chooser draws. `views` names by tier of memory the methods
    that give a block table there and the count of free blocks.

    `facts` is the room's initial slice of the state, if it has any, `fold` reacts to events by
    changing the slice and what its holders hold, and `guard` gives the errors that the room adds
    to operations of any room. `known` gives what stands for the leading tokens of a sequence, as
    far as they are known (`Cell.token`). `queries` are asked in every full look. `wrong` gives
    some wrong calls. `weight` says how often an episode should be about the room.
    """

    capability: str
    methods: tuple[str, ...]
    laws: tuple[Law, ...]
    keywords: Mapping[str, str] = field(factory=dict)
    attributes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    applies: Callable[[Geometry], bool] = _any
    needed_by: Callable[[Geometry], bool] = _none
    shaped: Callable[[Geometry, Chooser | None], Geometry] = _as_it_is
    views: Mapping[str, tuple[str, str]] = field(factory=dict)
    operations: tuple[type[Operation], ...] = ()
    facts: object = None
    fold: Callable[[State, Event, "Specification"], State] | None = None
    guard: Callable[[State, Operation], frozenset[str]] | None = None
    known: Callable[[State, int], tuple[int, ...]] = _nothing
    queries: Callable[[State, "Specification"], Sequence[Operation]] = _no_calls
    proposals: tuple[Proposal, ...] = ()
    weight: int = 1
    wrong: Callable[[State, "Specification"], Sequence[Operation]] = _no_calls
