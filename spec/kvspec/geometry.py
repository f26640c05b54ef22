"""The shape of a pool, and the arithmetic of blocks and slots.

A pool has `num_blocks` blocks of `block_size` tokens. A *slot* is one token's place; slot
`block * block_size + offset` lies in `block`. All sizes here are in tokens or in blocks, as
the names say, and all functions are total on non-negative integers (`block_size >= 1`).

The functions are the arithmetic kernel that CrossHair confirms for symbolic sizes
(`tests/symbolic`); the paper behind the layout is Kwon et al., "Efficient Memory Management
for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from functools import lru_cache
from typing import NamedTuple

from attrs import field, frozen
from attrs.validators import optional

from kvspec.validation import as_tuple, at_least, each, of


def blocks_for(tokens: int, block_size: int) -> int:
    """The fewest blocks that hold `tokens` tokens: the ceiling of `tokens / block_size`.

    >>> [blocks_for(n, 4) for n in (0, 1, 4, 5)]
    [0, 1, 1, 2]
    """
    return -(-tokens // block_size)


def internal_waste(tokens: int, block_size: int) -> int:
    """The slots left unused when `tokens` tokens take whole blocks; always less than `block_size`.

    >>> [internal_waste(n, 4) for n in (0, 1, 4, 5)]
    [0, 3, 0, 3]
    """
    return blocks_for(tokens, block_size) * block_size - tokens


def table_index(position: int, block_size: int) -> int:
    """The index in a sequence's block table of the block that holds `position`."""
    return position // block_size


def slot_of(block: int, position: int, block_size: int) -> int:
    """The slot that holds `position` when its table entry is `block`."""
    return block * block_size + position % block_size


def block_of(slot: int, block_size: int) -> int:
    """The block in which `slot` lies: with `slot % block_size`, the inverse of `slot_of`."""
    return slot // block_size


def growth(length: int, added: int, block_size: int) -> int:
    """The blocks that `added` more tokens need beyond those that `length` tokens fill.

    >>> growth(3, 1, 4), growth(4, 1, 4), growth(4, 9, 4)
    (0, 1, 3)
    """
    return blocks_for(length + added, block_size) - blocks_for(length, block_size)


def whole_blocks(tokens: int, block_size: int) -> int:
    """The blocks that lie wholly before position `tokens`; none before a negative one.

    >>> [whole_blocks(n, 4) for n in (-3, 3, 4, 9)]
    [0, 0, 1, 2]
    """
    return max(0, tokens) // block_size


def first_in_window(length: int, window: int | None) -> int:
    """The first position that the last token of `length` tokens attends to.

    >>> first_in_window(10, 4), first_in_window(3, 4), first_in_window(10, None)
    (6, 0, 0)
    """
    return 0 if window is None else max(0, length - window)


class Place(NamedTuple):
    """Where blocks live: a memory tier and a pool in it; block ids are unique within a place."""

    tier: str = "device"
    pool: int = 0

    def __str__(self) -> str:
        return self.tier if self.pool == 0 else f"{self.tier} pool {self.pool}"


DEVICE = Place()
HOST = Place("host")


@frozen
class Group:
    """One KV group: layers that share a block table, since they attend to the same tokens.

    Its blocks hold `block_size` tokens. With a `window` it attends to so many tokens only. Its
    blocks come from the geometry's pool, which it shares with other groups, or where `num_blocks`
    is given from a pool of its own of so many blocks.

    Source: hybrid models such as Gemma 2, and the groups of vLLM's KVCacheConfig.
    """

    block_size: int = field(validator=at_least(1))
    window: int | None = field(default=None, validator=optional(at_least(1)))
    num_blocks: int | None = field(default=None, validator=optional(at_least(1)))


@lru_cache
def _one_group(block_size: int, window: int | None) -> tuple[Group, ...]:
    return (Group(block_size, window),)


@frozen
class Geometry:
    """What an allocator is built with: the sizes of its pools, in blocks and tokens.

    `groups` are the KV groups of a hybrid model, each with its own table, block size and window;
    the first has `block_size` and shares the pool of `num_blocks`. The block ids of several pools
    are numbered through, pool after pool, so that a block id says which pool it is of. Raises
    `ValueError`, naming the field, for a size that is not a whole number or too small, and for
    groups that do not agree with the rest.

    >>> Geometry(8, 16, max_tokens=64).capacity
    128
    >>> Geometry(8, 16, groups=[Group(16), Group(4, window=8, num_blocks=6)]).pools
    (8, 6)
    """

    num_blocks: int = field(validator=at_least(1))
    block_size: int = field(validator=at_least(1))
    num_host_blocks: int = field(default=0, kw_only=True, validator=at_least(0))
    window: int | None = field(default=None, kw_only=True, validator=optional(at_least(1)))
    max_tokens: int | None = field(default=None, kw_only=True, validator=optional(at_least(1)))
    groups: tuple[Group, ...] | None = field(
        default=None,
        kw_only=True,
        converter=as_tuple,
        validator=optional(each(of(Group), least=1)),
    )

    def __attrs_post_init__(self) -> None:
        """Raise `ValueError` for groups that contradict the other fields."""
        if self.groups is None:
            return
        first = self.groups[0]
        if first.block_size != self.block_size or first.num_blocks is not None:
            raise ValueError(
                "the first group has the block_size of the geometry and shares its pool of "
                f"num_blocks; it is {first}"
            )
        if self.window is not None or self.num_host_blocks:
            raise ValueError("with groups each has its own window, and there are no host blocks")

    @property
    def capacity(self) -> int:
        """How many tokens the device pool holds."""
        return self.num_blocks * self.block_size

    @property
    def layout(self) -> tuple[Group, ...]:
        """The KV groups; where none are given, the one that there is."""
        return self.groups or _one_group(self.block_size, self.window)

    @property
    def pools(self) -> tuple[int, ...]:
        """The sizes of the device pools in blocks: the shared one, then those of single groups."""
        own = (group.num_blocks for group in self.groups or ())
        return (self.num_blocks, *(size for size in own if size is not None))

    def ids_of(self, pool: int, first_block: int = 0) -> range:
        """The block ids of a device pool, where the lowest of all is `first_block`."""
        start = first_block + sum(self.pools[:pool])
        return range(start, start + self.pools[pool])

    def pool_of(self, group: int) -> int:
        """The index in `pools` of the pool from which a group takes its blocks."""
        own = [g for g, one in enumerate(self.layout) if one.num_blocks is not None]
        return own.index(group) + 1 if group in own else 0
