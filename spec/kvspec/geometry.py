"""The shape of a pool, and the arithmetic of blocks and slots.

A pool has `num_blocks` blocks of `block_size` tokens. A *slot* is one token's place; slot
`block * block_size + offset` lies in `block`. All sizes here are in tokens or in blocks, as
the names say, and all functions are total on non-negative integers (`block_size >= 1`).

The functions are the arithmetic kernel that CrossHair confirms for symbolic sizes
(`tests/symbolic`); the paper behind the layout is Kwon et al., "Efficient Memory Management
for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from typing import NamedTuple

from attrs import field, frozen
from attrs.validators import optional

from kvspec.validation import at_least


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


class Place(NamedTuple):
    """Where blocks live: a memory tier and a KV group; block ids are unique within a place."""

    tier: str = "device"
    group: int = 0


DEVICE = Place()


@frozen
class Geometry:
    """What an allocator is built with: the sizes of its pools, in blocks and tokens.

    Raises `ValueError`, naming the field, for a size that is not a whole number or too small.

    >>> Geometry(8, 16, max_tokens=64).capacity
    128
    """

    num_blocks: int = field(validator=at_least(1))
    block_size: int = field(validator=at_least(1))
    num_host_blocks: int = field(default=0, kw_only=True, validator=at_least(0))
    window: int | None = field(default=None, kw_only=True, validator=optional(at_least(1)))
    max_tokens: int | None = field(default=None, kw_only=True, validator=optional(at_least(1)))
    groups: None = field(default=None, kw_only=True)

    @property
    def capacity(self) -> int:
        """How many tokens the device pool holds."""
        return self.num_blocks * self.block_size
