"""The words in which facts change. Rooms react to events, whoever caused them.

The kernel folds each event into the histories, tables and contents; then every room folds it
into its own slice. A room that needs to know of something for which there is no word here is
a sign that a word is missing, not that rooms should know each other.
"""

from attrs import field, frozen

from kvspec.geometry import DEVICE, Place
from kvspec.kernel.state import Cell, Entries, State, TableOf


@frozen
class Event:
    """Something that happened. A room may add events of its own for its own facts."""


@frozen
class Started(Event):
    """A sequence began with `num_tokens` reserved slots."""

    seq: int
    num_tokens: int
    limit: int | None


@frozen
class Grew(Event):
    """A sequence reserved `num_tokens` more slots."""

    seq: int
    num_tokens: int


@frozen
class Cloned(Event):
    """`child` began with the history of `parent`."""

    parent: int
    child: int


@frozen
class Ended(Event):
    """A sequence ended; its tables hold nothing any more."""

    seq: int


@frozen
class Rewound(Event):
    """A sequence gave up its tokens from position `length` on."""

    seq: int
    length: int


@frozen
class Moved(Event):
    """A sequence went to another tier of memory; its tables in the old one hold nothing."""

    seq: int
    tier: str


@frozen
class Resized(Event):
    """A place has other blocks than before."""

    place: Place
    blocks: range


@frozen
class TableSeen(Event):
    """The allocator showed this table, and it is not as it was believed to be."""

    table: TableOf
    entries: Entries


@frozen
class Copied(Event):
    """The allocator reported a copy of one block's contents to another."""

    source: int
    destination: int
    place: Place = DEVICE
    to: Place = DEVICE


@frozen
class Displaced(Event):
    """The allocator gave up what was kept in a block that nobody uses."""

    block: int
    place: Place = DEVICE


@frozen
class Written(Event):
    """The caller wrote `cells` into the slots of `seq` from position `start` on."""

    seq: int
    start: int
    cells: tuple[Cell, ...]


@frozen
class Inherited(Event):
    """The first `num_tokens` positions of `seq` are written already: its blocks have them."""

    seq: int
    num_tokens: int


@frozen
class Settled(Event):
    """All that a step showed has been folded, and `before` is what was believed before it.

    The last event of every step: what depends on the whole of it, such as which blocks were let
    go of and which were handed out, is found here.
    """

    before: State = field(repr=False)
