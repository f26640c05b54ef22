"""The facts of the room: what each sequence may publish, and what each block has been published as.

Nobody sees into an allocator's index, so what *must* be found is told from what *may* be found.
Several blocks may have the same contents, of which only one need be findable; when one of them is
lost, the others are doubtful until a lookup has found them.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, field, frozen

from kvspec.geometry import DEVICE
from kvspec.kernel.derived import derived
from kvspec.kernel.room import Names
from kvspec.kernel.state import Holder, State
from kvspec.rooms.prefix.identity import Contents, Tokens, key_name, marks

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
