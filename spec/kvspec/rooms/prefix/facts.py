"""The facts of the room: what each sequence may publish, and what each block has been published as.

Nobody sees into an allocator's index, so what *must* be found is told from what *may* be found.
Several blocks may have the same contents, of which only one need be findable; when one of them is
lost, the others are doubtful until a lookup has found them.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, field, frozen

from kvspec.geometry import DEVICE
from kvspec.kernel.derived import derived
from kvspec.kernel.events import (
    Cloned,
    Copied,
    Displaced,
    Ended,
    Event,
    Inherited,
    Moved,
    Rewound,
    Settled,
    Started,
)
from kvspec.kernel.room import Names
from kvspec.kernel.state import Entries, Holder, State
from kvspec.rooms.prefix.identity import Contents, Tokens, chain, key_name, marks

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

Stamp = tuple[int, int]
"""A step, and which of the releases in it."""

_NEVER: Stamp = (2**62, 0)

_MOST_LOST = 4
"""So many contents that were lost are remembered, to be asked for again."""


@frozen(cache_hash=True)
class CacheOf(Holder):
    """The prefix cache: it holds the blocks that must be found, and can be displaced."""

    pins: ClassVar[bool] = False


@frozen(cache_hash=True)
class DoubtfulCache(Holder):
    """The part of the prefix cache that may be found, and need not be."""

    pins: ClassVar[bool] = False
    doubtful: ClassVar[bool] = True


@frozen(cache_hash=True)
class EqualCache(Holder):
    """Blocks with equal contents that must be found: one of them is kept, and nobody sees which."""

    pins: ClassVar[bool] = False
    doubtful: ClassVar[bool] = True
    one_of: ClassVar[bool] = True

    contents: Contents


@frozen
class Author:
    """What one live sequence may publish: its leading known tokens, under its key.

    `mark` is the length up to which it has published, and `publishes` is false once the cache was
    reset under it. One that was not `prompted` has no key, so what it publishes is doubtful.
    """

    tokens: Tokens = ()
    key: Any = None
    mark: int = 0
    publishes: bool = True
    prompted: bool = False

    @property
    def name(self) -> str:
        """The key, by type and value."""
        return key_name(self.key)


@frozen(slots=False)
class Facts:
    """Who may publish what, which block was published as what, and since when it has no user.

    `stamps` says by block in which step its last holder let go of it, and in which release of that
    step.
    """

    authors: Mapping[int, Author] = field(factory=dict)
    published: Mapping[int, Contents] = field(factory=dict)
    doubtful: frozenset[Contents] = frozenset()
    stamps: Mapping[int, Stamp] = field(factory=dict)
    lost: tuple[Contents, ...] = ()

    def blocks_of(self, contents: Contents) -> Sequence[int]:
        """The blocks that were published with these contents, oldest first."""
        return self._blocks.get(contents, ())

    @derived
    def _blocks(self) -> Mapping[Contents, Sequence[int]]:
        found: dict[Contents, list[int]] = {}
        for block, contents in self.published.items():
            found.setdefault(contents, []).append(block)
        return found

    def losing(self, block: int) -> "Facts":
        """The facts once the contents of `block` are gone."""
        contents = self.published[block]
        left = {b: c for b, c in self.published.items() if b != block}
        others = contents in left.values()
        return evolve(
            self,
            published=left,
            doubtful=self.doubtful | {contents} if others else self.doubtful - {contents},
            stamps={b: stamp for b, stamp in self.stamps.items() if b != block},
            lost=self.lost if others else self._lost(contents),
        )

    def _lost(self, *contents: Contents) -> tuple[Contents, ...]:
        return tuple(dict.fromkeys((*self.lost, *contents)))[-_MOST_LOST:]

    def forgetting(self, unused: Collection[int] = ()) -> "Facts":
        """The facts after a reset: nothing is cached, and who lives publishes nothing any more.

        Those that are `unused` have computed nothing yet, and may.
        """
        authors = {
            seq: evolve(author, publishes=author.publishes and seq in unused, prompted=False)
            for seq, author in self.authors.items()
        }
        return Facts(authors=authors, lost=self._lost(*dict.fromkeys(self.published.values())))

    def since(self, block: int) -> Stamp:
        """When its last holder let go of it; later than anything where it has holders."""
        return self.stamps.get(block, _NEVER)

    def evicted_first(self, block: int) -> tuple[Stamp, int, int]:
        """Orders cached blocks as they are given up: longest without a user, tail before head."""
        return self.since(block), self.published[block].last_first, block


def facts_of(state: State) -> Facts:
    """The room's slice of the state."""
    facts = state.slices["prefix"]
    assert isinstance(facts, Facts)
    return facts


def surely_kept(contents: Contents, facts: Facts, spec: "Specification") -> bool:
    """Whether contents that are published must be found."""
    return contents not in facts.doubtful and not spec.contract.forgets


def known(state: State, seq: int) -> tuple[int, ...]:
    """What stands for the known tokens of a sequence, position by position."""
    author = facts_of(state).authors.get(seq)
    return () if author is None or not author.tokens else marks(author.tokens, author.name)


def matters(state: State, names: Names) -> Hashable:
    """Who may publish what, what is cached where, and the order in which it was let go."""
    facts = facts_of(state)
    authors = sorted(
        (names.seq(seq), one.tokens, one.name, one.mark, one.publishes, one.prompted)
        for seq, one in facts.authors.items()
    )
    ranks = {step: rank for rank, step in enumerate(sorted({s for s, _ in facts.stamps.values()}))}

    def told(block: int) -> tuple[Stamp, Tokens, str, bool]:
        contents, stamp = facts.published[block], facts.stamps.get(block)
        since = (-1, 0) if stamp is None else (ranks[stamp[0]], stamp[1])
        return since, contents.tokens, contents.name, contents in facts.doubtful

    cached = sorted((told(block), names.known(DEVICE, block), block) for block in facts.published)
    return tuple(authors), tuple((names.block(DEVICE, block), about) for about, _, block in cached)


# ------------------------------------------------------------------------------ the events


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


def _fold(state: State, event: Event, spec: "Specification") -> State:
    facts = facts_of(state)
    after = _folded(facts, state, event, spec)
    return state if after is facts else state.with_slice("prefix", after)


def _folded(facts: Facts, state: State, event: Event, spec: "Specification") -> Facts:
    match event:
        case Started(seq):
            return _with_author(facts, seq, Author())
        case Prompted(seq, tokens, key):
            return _with_author(facts, seq, Author(tokens, key, prompted=True))
        case Told(seq, tokens):
            author = facts.authors[seq]
            if len(author.tokens) < state.sequences[seq].length:
                return facts  # what is before is unknown, and so the contents are
            return _with_author(facts, seq, evolve(author, tokens=author.tokens + tokens))
        case Cloned(parent, child):
            return _with_author(facts, child, facts.authors[parent])
        case Ended(seq):
            left = {s: author for s, author in facts.authors.items() if s != seq}
            return evolve(facts, authors=left)
        case Rewound(seq, length):
            author = facts.authors[seq]
            mark = min(author.mark, length)
            return _with_author(
                facts, seq, evolve(author, tokens=author.tokens[:length], mark=mark)
            )
        case Inherited(seq, num_tokens):
            mark = max(facts.authors[seq].mark, num_tokens)
            return _with_author(facts, seq, evolve(facts.authors[seq], mark=mark))
        case Moved(seq):
            return _with_author(facts, seq, evolve(facts.authors[seq], mark=0))
        case Marked(seq, num_tokens):
            return _published(facts, state, seq, num_tokens, spec)
        case Copied(destination=block, to=place) if place == DEVICE and block in facts.published:
            return facts.losing(block)  # also where what is copied there has the same contents
        case Displaced(block, place) if place == DEVICE and block in facts.published:
            return facts.losing(block)
        case Looked(tokens, key, num_tokens):
            return _decided(facts, tokens, key, num_tokens, spec)
        case Reset():
            # Where it is refused while blocks are in use, who is on the device then has none.
            refused = spec.contract.reset_when_used == "refused"
            return facts.forgetting(unused=state.live if refused else ())
        case _:
            return facts


def _with_author(facts: Facts, seq: int, author: Author) -> Facts:
    return evolve(facts, authors={**facts.authors, seq: author})


def _published(
    facts: Facts, state: State, seq: int, num_tokens: int, spec: "Specification"
) -> Facts:
    """The full blocks up to there are published, if their tokens are known and they are there."""
    author, size, table = facts.authors[seq], spec.geometry.block_size, state.table(seq)
    if num_tokens <= author.mark:
        return facts
    published, doubtful = dict(facts.published), set(facts.doubtful)
    if author.publishes:
        known = chain(author.tokens[:num_tokens], author.key, size)
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
    facts = _with_author(facts, seq, evolve(author, mark=num_tokens))
    return evolve(facts, published=published, doubtful=frozenset(doubtful))


def _decided(
    facts: Facts, tokens: Tokens, key: Any, num_tokens: int, spec: "Specification"
) -> Facts:
    """What was doubtful is known by what a lookup found, if it asks for block after block."""
    if spec.geometry.window is not None:
        return facts
    run = list(chain(tokens, key, spec.geometry.block_size))
    found = num_tokens // spec.geometry.block_size
    if not spec.contract.forgets:
        facts = evolve(facts, doubtful=facts.doubtful - set(run[:found]))
    for contents in run[found : found + 1]:
        if contents in facts.doubtful or spec.contract.forgets:
            for block in facts.blocks_of(contents):
                facts = facts.losing(block)
    return facts


# ------------------------------------------------------------------------------ the whole step


def _settled(state: State, event: Settled, spec: "Specification") -> State:
    """What was handed out, written over or cut off is lost; and who has no user since when."""
    facts, before = facts_of(state), event.before
    same = state.sequences is before.sequences and state.holds is before.holds
    if same and facts is facts_of(before) and state.pools is before.pools:
        return state
    for block in _gone(facts, state, before, spec):
        facts = facts.losing(block)
    facts = evolve(facts, stamps=_stamps(facts, state, before))
    holds = {h: blocks for h, blocks in state.holds.items() if not isinstance(h, EqualCache)}
    kept: dict[Holder, Entries] = {CacheOf(): (), DoubtfulCache(): ()}
    many = Counter(facts.published.values())
    for block in sorted(facts.published, key=facts.evicted_first):
        contents = facts.published[block]
        holder: Holder = CacheOf() if many[contents] == 1 else EqualCache(contents)
        if not surely_kept(contents, facts, spec):
            holder = DoubtfulCache()
        kept[holder] = (*kept.get(holder, ()), block)
    return state.having(holds={**holds, **kept}).with_slice("prefix", facts)


def _stamps(facts: Facts, state: State, before: State) -> dict[int, Stamp]:
    """When each cached block without a user was let go of.

    In one step there may be several releases: the turns of a batch, or what a window lets go of
    and a copy after it. Which of them was first is not seen.
    """
    held, was = state.at().held, before.at()
    stamps: dict[int, Stamp] = {}
    releases: dict[Hashable, int] = {}
    for block in facts.published:
        if block in held:
            continue
        holders: tuple[Holder, ...] = (*was.users.get(block, ()), *was.pins.get(block, ()))
        release: Hashable = block
        if len(holders) == 1:
            [holder] = holders
            at = before.holds[holder].index(block)
            entry = state.holds.get(holder, ())[at : at + 1]
            release = holder, entry == (None,), bool(entry)
        known = facts.stamps.get(block)
        stamps[block] = known or (state.clock, releases.setdefault(release, len(releases)))
    return stamps


def _gone(facts: Facts, state: State, before: State, spec: "Specification") -> list[int]:
    """The blocks whose published contents this step ended."""
    size, blocks, stays = spec.geometry.block_size, state.blocks(), _staying(state, before)
    gone = {block for block in facts.published if block not in blocks}
    for seq, sequence in state.sequences.items():
        if not sequence.resident:
            continue
        table, was = state.table(seq), before.table(seq)
        author = facts.authors[seq]
        own = list(chain(author.tokens[: author.mark], author.key, size))
        for i, block in enumerate(table):
            if block not in facts.published or block is None or block in stays:
                continue
            # Handed out: it is where it was not, and not for the contents that it has.
            if facts.published[block] not in own[i : i + 1]:
                gone.add(block)
        old = before.sequences.get(seq)
        if old is not None and old.resident and sequence.length > old.length:
            # Written over: the sequence goes on in the middle of a block that it has published.
            last = (sequence.length - 1) // size
            for block, same in zip(
                table[old.length // size : last + 1], was[old.length // size :], strict=False
            ):
                if block is not None and block == same and block in facts.published:
                    gone.add(block)
    return sorted(gone)


def _staying(state: State, before: State) -> set[int]:
    """The blocks that some holder had before, and still has at the same entry."""
    return {
        block
        for holder, entries in state.holds.items()
        if holder.pins and holder.place == DEVICE
        for block, was in zip(entries, before.holds.get(holder, ()), strict=False)
        if block is not None and block == was
    }


REACTIONS = {
    **dict.fromkeys(
        (
            Started,
            Prompted,
            Told,
            Cloned,
            Ended,
            Rewound,
            Inherited,
            Moved,
            Marked,
            Copied,
            Displaced,
            Looked,
            Reset,
        ),
        _fold,
    ),
    Settled: _settled,
}
