"""The room's own events, and what it makes of them and of the kernel's.

An event changes who may publish what, and what each block has been published as. What a step as a
whole did to blocks is looked at when it has settled (`rooms/prefix/settled.py`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from kvspec.geometry import DEVICE
from kvspec.kernel.events import (
    Cloned,
    Copied,
    Displaced,
    Ended,
    Event,
    Inherited,
    Moved,
    Rewound,
    Started,
)
from kvspec.kernel.room import Reaction
from kvspec.kernel.state import State
from kvspec.rooms.prefix.facts import Author, Facts, facts_of
from kvspec.rooms.prefix.identity import Tokens, chain

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


@frozen
class Prompted(Event):
    """A sequence that has just started was given all its tokens, and a key."""

    seq: int
    tokens: Tokens
    key: Any


@frozen
class Told(Event):
    """A sequence is about to grow by tokens that are known."""

    seq: int
    tokens: Tokens


@frozen
class Marked(Event):
    """A sequence published its full blocks up to `num_tokens`."""

    seq: int
    num_tokens: int


@frozen
class Looked(Event):
    """A lookup of these tokens found `num_tokens` of them."""

    tokens: Tokens
    key: Any
    num_tokens: int


@frozen
class Reset(Event):
    """All cached contents were forgotten."""


# --------------------------------------------------------------------- who may publish what


def _started(state: State, event: Started, spec: "Specification") -> State:
    return _with_author(state, event.seq, Author())


def _prompted(state: State, event: Prompted, spec: "Specification") -> State:
    return _with_author(state, event.seq, Author(event.tokens, event.key, prompted=True))


def _told(state: State, event: Told, spec: "Specification") -> State:
    author = facts_of(state).authors[event.seq]
    if len(author.tokens) < state.sequences[event.seq].length:
        return state  # what is before is unknown, and so the contents are
    return _with_author(state, event.seq, evolve(author, tokens=author.tokens + event.tokens))


def _cloned(state: State, event: Cloned, spec: "Specification") -> State:
    return _with_author(state, event.child, facts_of(state).authors[event.parent])


def _ended(state: State, event: Ended, spec: "Specification") -> State:
    facts = facts_of(state)
    left = {seq: author for seq, author in facts.authors.items() if seq != event.seq}
    return _with(state, evolve(facts, authors=left))


def _rewound(state: State, event: Rewound, spec: "Specification") -> State:
    author, length = facts_of(state).authors[event.seq], event.length
    mark = min(author.mark, length)
    return _with_author(state, event.seq, evolve(author, tokens=author.tokens[:length], mark=mark))


def _inherited(state: State, event: Inherited, spec: "Specification") -> State:
    author = facts_of(state).authors[event.seq]
    return _with_author(state, event.seq, evolve(author, mark=max(author.mark, event.num_tokens)))


def _moved(state: State, event: Moved, spec: "Specification") -> State:
    return _with_author(state, event.seq, evolve(facts_of(state).authors[event.seq], mark=0))


def _with_author(state: State, seq: int, author: Author) -> State:
    facts = facts_of(state)
    return _with(state, evolve(facts, authors={**facts.authors, seq: author}))


def _with(state: State, facts: Facts) -> State:
    return state.with_slice("prefix", facts)


# ------------------------------------------------------------------------ what is published


def _marked(state: State, event: Marked, spec: "Specification") -> State:
    """The full blocks up to there are published, if their tokens are known and they are there."""
    facts, size, table = facts_of(state), spec.geometry.block_size, state.table(event.seq)
    author = facts.authors[event.seq]
    if event.num_tokens <= author.mark:
        return state
    published, doubtful = dict(facts.published), set(facts.doubtful)
    if author.publishes:
        known = chain(author.tokens[: event.num_tokens], author.key, size)
        for i, contents in enumerate(known):
            block = table[i] if i < len(table) else None
            if block is None:
                continue
            new = contents not in published.values()
            published[block] = contents
            # What lies before the last mark was published then: the allocator may do so again.
            if author.prompted and i >= author.mark // size:
                doubtful.discard(contents)
            elif new:
                doubtful.add(contents)
    facts = evolve(facts, published=published, doubtful=frozenset(doubtful))
    marked = evolve(author, mark=event.num_tokens)
    return _with_author(_with(state, facts), event.seq, marked)


def _copied(state: State, event: Copied, spec: "Specification") -> State:
    # Also where what is copied there has the same contents.
    return _losing(state, event.destination) if event.to == DEVICE else state


def _displaced(state: State, event: Displaced, spec: "Specification") -> State:
    return _losing(state, event.block) if event.place == DEVICE else state


def _losing(state: State, block: int) -> State:
    facts = facts_of(state)
    return _with(state, facts.losing(block)) if block in facts.published else state


def _looked(state: State, event: Looked, spec: "Specification") -> State:
    """What was doubtful is known by what a lookup found, if it asks for block after block."""
    if spec.geometry.window is not None:
        return state
    facts = facts_of(state)
    run = list(chain(event.tokens, event.key, spec.geometry.block_size))
    found = event.num_tokens // spec.geometry.block_size
    if not spec.contract.forgets:
        facts = evolve(facts, doubtful=facts.doubtful - set(run[:found]))
    for contents in run[found : found + 1]:
        if contents in facts.doubtful or spec.contract.forgets:
            for block in facts.blocks_of(contents):
                facts = facts.losing(block)
    return _with(state, facts)


def _reset(state: State, event: Reset, spec: "Specification") -> State:
    # Where it is refused while blocks are in use, who is on the device then has none.
    refused = spec.contract.reset_when_used == "refused"
    return _with(state, facts_of(state).forgetting(unused=state.live if refused else ()))


REACTIONS: Mapping[type[Event], Reaction] = {
    Started: _started,
    Prompted: _prompted,
    Told: _told,
    Cloned: _cloned,
    Ended: _ended,
    Rewound: _rewound,
    Inherited: _inherited,
    Moved: _moved,
    Marked: _marked,
    Copied: _copied,
    Displaced: _displaced,
    Looked: _looked,
    Reset: _reset,
}
