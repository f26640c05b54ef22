"""The contract: what an allocator promises, as data.

A contract is a frozen value that travels in traces as JSON and never names code. Its
defaults are the strict paged contract; every field that differs is a *relaxation*, which is
legitimate and always counted in the report. A factory carries its contract as the attribute
`contract`, or the command line gives one.
"""

from typing import Literal, get_args

from attrs import field, fields, frozen
from attrs.validators import optional

from kvspec.geometry import Geometry, blocks_for
from kvspec.validation import as_tuple, at_least, each, of, one_of


@frozen(slots=False)
class History:
    """What a reservation may depend on: one sequence's past, in tokens.

    `allocated` is the length at allocation, `limit` the caller's bound on the final length,
    `length` the tokens to hold now, `reserved` the slots held before the operation, and
    `max_tokens` the geometry's limit.
    """

    allocated: int
    limit: int | None
    length: int
    reserved: int
    max_tokens: int | None


def pow2ceil(tokens: int) -> int:
    """The smallest power of two that is at least `tokens`; 0 for 0.

    >>> [pow2ceil(n) for n in (0, 1, 2, 3, 9)]
    [0, 1, 2, 4, 16]
    """
    return 1 << (tokens - 1).bit_length() if tokens else 0


@frozen
class Paged:
    """Blocks on demand: as many as the length fills, so less than one block is wasted."""

    def need(self, past: History, block_size: int) -> int:
        """The fewest blocks that must be held."""
        return blocks_for(past.length, block_size)

    def waste_bound(self, past: History, block_size: int) -> int | None:
        """The most reserved tokens beyond the length."""
        return block_size - 1


@frozen
class Granular:
    """Memory comes in granules of `tokens` tokens, rounded up to whole blocks."""

    tokens: int

    def __attrs_post_init__(self) -> None:
        """Raise `ValueError` for a granule that is no whole number of tokens."""
        if type(self.tokens) is not int or self.tokens < 1:
            raise ValueError(f"a granule has at least 1 token, not {self.tokens!r}")

    def need(self, past: History, block_size: int) -> int:
        """The fewest blocks that must be held."""
        return blocks_for(past.length, self.tokens) * blocks_for(self.tokens, block_size)

    def waste_bound(self, past: History, block_size: int) -> int | None:
        """The most reserved tokens beyond the length."""
        per_granule = blocks_for(self.tokens, block_size)
        granules = blocks_for(past.length, self.tokens)
        return granules * per_granule * block_size - past.length


@frozen
class ToMax:
    """Preallocation: from the first token on, room for the geometry's `max_tokens`."""

    def need(self, past: History, block_size: int) -> int:
        """The fewest blocks that must be held."""
        return blocks_for(past.max_tokens or past.length, block_size) if past.length else 0

    def waste_bound(self, past: History, block_size: int) -> int | None:
        """The most reserved tokens beyond the length."""
        return blocks_for(past.max_tokens or past.length, block_size) * block_size - past.length


@frozen
class Exact:
    """The final length is known (`limit`): room for exactly that; else for the length."""

    def need(self, past: History, block_size: int) -> int:
        """The fewest blocks that must be held."""
        final = past.limit if past.limit is not None else past.length
        return blocks_for(final, block_size) if past.length else 0

    def waste_bound(self, past: History, block_size: int) -> int | None:
        """The most reserved tokens beyond the length."""
        final = past.limit if past.limit is not None else past.length
        return blocks_for(final, block_size) * block_size - past.length


@frozen
class Pow2:
    """The prompt, and a power of two for the output that `limit` announces; else for the length.

    Orca's "Pow2" policy as Kwon et al. (SOSP 2023) describe it for their comparison.
    """

    def need(self, past: History, block_size: int) -> int:
        """The fewest blocks that must be held."""
        return blocks_for(self._reserved(past), block_size) if past.length else 0

    def waste_bound(self, past: History, block_size: int) -> int | None:
        """The most reserved tokens beyond the length."""
        return blocks_for(self._reserved(past), block_size) * block_size - past.length

    @staticmethod
    def _reserved(past: History) -> int:
        if past.limit is None:
            return pow2ceil(past.length)
        return past.allocated + pow2ceil(past.limit - past.allocated)


Start = Literal["length", "pow2"]


@frozen
class Doubling:
    """Grown by doubling when full, or by less where less is to be had; never shrunk.

    It starts at the length, or at the power of two that holds it.
    """

    start: Start = field(default="length", validator=one_of(Start))

    def need(self, past: History, block_size: int) -> int:
        """The fewest blocks that must be held."""
        if past.reserved == 0 and self.start == "pow2":
            return blocks_for(pow2ceil(past.length), block_size)
        return blocks_for(max(past.length, past.reserved), block_size)

    def target(self, past: History, block_size: int) -> int:
        """The blocks that it wants when it is full: what must fit where an extent moves."""
        return blocks_for(max(past.length, 2 * past.reserved), block_size)

    def waste_bound(self, past: History, block_size: int) -> int | None:
        """The most reserved tokens beyond the length."""
        most = max(past.reserved, 2 * past.length)
        return blocks_for(most, block_size) * block_size - past.length


@frozen
class Unspecified:
    """No promise: any number of blocks that holds the length, and any refusal."""

    def need(self, past: History, block_size: int) -> int:
        """The fewest blocks that must be held."""
        return blocks_for(past.length, block_size)

    def waste_bound(self, past: History, block_size: int) -> int | None:
        """No bound."""
        return None


Reservation = Paged | Granular | ToMax | Pow2 | Exact | Doubling | Unspecified


Placement = Literal["anywhere", "contiguous", "aligned", "slots"]
EagerFork = Literal["none", "tail", "all"]
Misuse = Literal["raises", "callers_duty"]
MaxTokens = Literal["optional", "required", "none"]
WindowRelease = Literal["exact", "early", "late"]
Eviction = Literal["uncached_first", "any", "explicit"]
EvictionOrder = Literal["any", "lru"]
ResetWhenUsed = Literal["epoch", "refused"]


@frozen
class Geometries:
    """The geometries that an allocator can be built with; the suite stays inside.

    Without `own_pools` all KV groups take their blocks from one pool.
    """

    min_blocks: int = field(default=1, validator=at_least(1))
    max_blocks: int | None = field(default=None, validator=optional(at_least(1)))
    block_sizes: tuple[int, ...] | None = field(
        default=None, converter=as_tuple, validator=optional(each(at_least(1), least=1))
    )
    max_tokens: MaxTokens = field(default="optional", validator=one_of(MaxTokens))
    own_pools: bool = field(default=True, validator=of(bool))

    def __attrs_post_init__(self) -> None:
        """Raise `ValueError` for a set of geometries that is empty."""
        if self.max_blocks is not None and self.max_blocks < self.min_blocks:
            raise ValueError(
                f"no geometry has between {self.min_blocks} and {self.max_blocks} blocks"
            )

    def admits(self, geometry: Geometry) -> bool:
        """Whether an allocator with this contract can be built with `geometry`."""
        return (
            self.min_blocks <= geometry.num_blocks
            and (self.max_blocks is None or geometry.num_blocks <= self.max_blocks)
            and (self.block_sizes is None or geometry.block_size in self.block_sizes)
            and not (self.max_tokens == "required" and geometry.max_tokens is None)
            and not (self.max_tokens == "none" and geometry.max_tokens is not None)
            and (self.own_pools or len(geometry.pools) == 1)
        )


@frozen
class Contract:
    """What an allocator promises; the defaults are the strict paged contract.

    - `capabilities`: the claim; `None` claims what the type's methods show.
    - `reservation`: how many blocks a length takes, and how much it may waste.
    - `placement`: where the blocks of one sequence must lie: `anywhere`, `contiguous` (at
      consecutive ids), `aligned` (a power of two of them, at a multiple of their number, as in
      a buddy system), or in `slots` (rooms of one size, side by side). A refusal is allowed
      exactly when there is no hole of that kind.
    - `relocates`: blocks may move, the copies being reported, in any operation that succeeds. What
      that means for a prefix cache and for swaps is not specified.
    - `eager_fork`: what `fork` copies at once: nothing, a partly filled tail, or all blocks.
    - `window_release`: by which token an append judges what lies before the window: `exact` by
      its first new one, `early` by its last new one, `late` by the last one before it.
    - `window_before_refusal`: a refused append may have released what lies before the window.
    - `deduplicates`: publishing may change a table entry to a block of equal cached contents.
    - `eviction`: which cached blocks are given up when blocks are taken: only as many as lack in
      other free blocks (`uncached_first`); `any`, such as those to which one queue of all free
      blocks has come; or none (`explicit`), so that what takes blocks is refused until the caller
      has evicted some, or has reset the cache.
    - `order`: the order in which they are given up: `any`, or `lru`, which is that of release,
      and within one release the last block of a sequence first.
    - `forgets`: cached contents may be lost at any time.
    - `leave_one`: a hit leaves the last token of a prompt to be computed.
    - `free_counts_cached`: free counts include cached blocks that nobody uses.
    - `reset_when_used`: what `reset_prefix_cache` does while sequences live: it succeeds and they
      publish nothing any more (`epoch`), or it is `refused`.
    - `misuse`: whether a wrong call raises, or not making one is the caller's duty.
    - `first_block`: the lowest block id that is handed out.
    - `geometries`: what the allocator can be built with.

    >>> Contract(relocates=True, first_block=1).relaxations()
    ('relocates', 'first_block')
    """

    capabilities: tuple[str, ...] | None = field(
        default=None, kw_only=True, converter=as_tuple, validator=optional(each(of(str)))
    )
    reservation: Reservation = field(
        factory=Paged, kw_only=True, validator=of(*get_args(Reservation))
    )
    placement: Placement = field(default="anywhere", kw_only=True, validator=one_of(Placement))
    relocates: bool = field(default=False, kw_only=True, validator=of(bool))
    eager_fork: EagerFork = field(default="none", kw_only=True, validator=one_of(EagerFork))
    window_release: WindowRelease = field(
        default="exact", kw_only=True, validator=one_of(WindowRelease)
    )
    window_before_refusal: bool = field(default=False, kw_only=True, validator=of(bool))
    deduplicates: bool = field(default=False, kw_only=True, validator=of(bool))
    eviction: Eviction = field(default="uncached_first", kw_only=True, validator=one_of(Eviction))
    order: EvictionOrder = field(default="any", kw_only=True, validator=one_of(EvictionOrder))
    forgets: bool = field(default=False, kw_only=True, validator=of(bool))
    leave_one: bool = field(default=True, kw_only=True, validator=of(bool))
    free_counts_cached: bool = field(default=True, kw_only=True, validator=of(bool))
    reset_when_used: ResetWhenUsed = field(
        default="epoch", kw_only=True, validator=one_of(ResetWhenUsed)
    )
    misuse: Misuse = field(default="raises", kw_only=True, validator=one_of(Misuse))
    first_block: int = field(default=0, kw_only=True, validator=at_least(0))
    geometries: Geometries = field(factory=Geometries, kw_only=True, validator=of(Geometries))

    def __attrs_post_init__(self) -> None:
        """Raise `ValueError` for a contract that no allocator can keep."""
        if self.placement == "slots" and not isinstance(self.reservation, ToMax):
            raise ValueError("slots are rooms of one size: their reservation is ToMax")
        if isinstance(self.reservation, ToMax) and self.geometries.max_tokens != "required":
            raise ValueError(
                "a reservation to max_tokens needs geometries that have one: "
                "set geometries.max_tokens to 'required'"
            )

    def relaxations(self) -> tuple[str, ...]:
        """The fields in which this contract is not the strict paged one.

        Not the claim; nor the order of eviction, of which the default promises nothing.
        """
        strict = Contract()
        return tuple(
            f.name
            for f in fields(Contract)
            if f.name not in ("capabilities", "order")
            and getattr(self, f.name) != getattr(strict, f.name)
        )
