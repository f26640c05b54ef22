"""A room: everything that one capability adds to the specification.

Rooms never know each other. They meet only in the kernel's facts (who holds what), in its
events, and in the guards that the kernel collects.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from kvspec.contract import Geometries
from kvspec.geometry import Geometry, Place
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Event
from kvspec.kernel.law import Law
from kvspec.kernel.operation import Operation
from kvspec.kernel.state import State

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


Reaction = Callable[[State, Any, "Specification"], State]
"""What a room makes of an event, which comes between the state and the specification."""


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


class Names(Protocol):
    """Other names for sequences and blocks, under which states that are alike are equal."""

    def seq(self, seq: int) -> int:
        """The name of a sequence."""
        ...

    def block(self, place: Place, block: int) -> int:
        """The name of a block: a new one, where it has none yet."""
        ...

    def known(self, place: Place, block: int) -> int:
        """The name of a block; a number above all names, where it has none yet."""
        ...


def _no_calls(state: State, spec: "Specification") -> Sequence[Operation]:
    return ()


def _none_at_all(state: State, spec: "Specification", ids: Sequence[int]) -> Iterable[Operation]:
    return ()


def _nothing_matters(state: State, names: Names) -> Hashable:
    return ()


def _any(geometry: Geometry) -> bool:
    return True


def _none(geometry: Geometry) -> bool:
    return False


def _as_it_is(geometry: Geometry, allowed: Geometries, chooser: Chooser | None) -> Geometry:
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
    no sense without this capability, and `shaped` makes one of any other, among those allowed: the
    plainest, or one that the chooser draws. `views` names by tier of memory the methods
    that give a block table there and the count of free blocks.

    `facts` is the room's initial slice of the state, if it has any. `reactions` are to events, by
    their kind: each changes the slice and what the room's holders hold. `guard` gives the errors
    that the room adds to operations of any room. `known` gives what stands for the leading tokens
    of a sequence, as far as they are known (`Cell.token`). `queries` are asked in every full look.
    `wrong` gives some wrong calls. `weight` says how often an episode should be about the room.

    `every` gives every call of the room that makes a difference in a small scope, among them
    perhaps wrong ones; new sequences have one of the ids given. `matters` gives what of the slice
    bears on what comes, but for what is held, in other names.
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
    shaped: Callable[[Geometry, Geometries, Chooser | None], Geometry] = _as_it_is
    views: Mapping[str, tuple[str, str]] = field(factory=dict)
    operations: tuple[type[Operation], ...] = ()
    facts: object = None
    reactions: Mapping[type[Event], Reaction] = field(factory=dict)
    guard: Callable[[State, Operation], frozenset[str]] | None = None
    known: Callable[[State, int], tuple[int, ...]] | None = None
    queries: Callable[[State, "Specification"], Sequence[Operation]] | None = None
    proposals: tuple[Proposal, ...] = ()
    weight: int = 1
    wrong: Callable[[State, "Specification"], Sequence[Operation]] = _no_calls
    every: Callable[[State, "Specification", Sequence[int]], Iterable[Operation]] = _none_at_all
    matters: Callable[[State, Names], Hashable] = _nothing_matters
