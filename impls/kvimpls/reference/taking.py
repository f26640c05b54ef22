"""Taking blocks from a pool, and letting go of them.

A block that nobody has is put where it can be found: on the free list, or if its contents are
cached, last in the queue of those that may be given up. They are, the first in the queue first,
only when there is no other block left.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kvimpls.reference.journal import Journal
from kvimpls.reference.pool import Lease, Pool
from kvspec import OutOfBlocks

Checkpoint = Callable[[str], object]
"""Called, with a word for it, where a real allocator could fail half way; it may raise."""


class Taking:
    """One user of a pool, who may share it with others."""

    def __init__(self, pool: Pool, journal: Journal, checkpoint: Checkpoint) -> None:
        self._supply = pool
        self._journal = journal
        self._checkpoint = checkpoint

    # The pool, by the names of its parts.

    @property
    def _free(self) -> list[int]:
        return self._supply.free

    @_free.setter
    def _free(self, blocks: list[int]) -> None:
        self._supply.free = blocks

    @property
    def _references(self) -> Counter[int]:
        return self._supply.references

    @property
    def _leases(self) -> dict[Lease, list[int]]:
        return self._supply.leases

    @_leases.setter
    def _leases(self, leases: dict[Lease, list[int]]) -> None:
        self._supply.leases = leases

    # Taking blocks.

    def _to_be_had(self) -> int:
        """How many blocks can be taken."""
        return self._supply.num_free()

    def _fits(self, count: int) -> bool:
        """Whether `count` blocks can be taken."""
        return count <= self._to_be_had()

    def _take(self, count: int) -> list[int]:
        """Take `count` free blocks for one table, or refuse and take none."""
        if not self._fits(count):
            raise OutOfBlocks(f"{count} blocks are needed, {self._to_be_had()} can be had")
        return [self._take_one() for _ in range(count)] if count else []

    def _take_one(self) -> int:
        """Take a free block for a table, at the cost of cached contents if there is no other."""
        self._checkpoint("take a block")
        if self._free:
            block = self._pick()
            self._journal.note(self._free.append, block)
        else:
            block = self._evict()
        self._count(block, +1)
        return block

    def _pick(self) -> int:
        """Take the next block off the free list."""
        return self._free.pop()

    def _evict(self) -> int:
        """Give up cached contents that nobody uses, and take their block."""
        block = self._victim()
        self._journal.remove(self._supply.idle, block)
        self._unpublish(block)
        return block

    def _victim(self) -> int:
        """Which of the idle blocks is given up: the one that has been idle for longest."""
        return self._supply.idle[0]

    def _pin(self, blocks: Iterable[int]) -> None:
        """Have these blocks, which others may have or have had, in one more table."""
        for block in blocks:
            self._checkpoint("share a block")
            if block in self._supply.idle:
                self._journal.remove(self._supply.idle, block)
            self._count(block, +1)

    # Letting go of blocks.

    def _let_go(self, blocks: Sequence[int]) -> None:
        """Have these blocks in one table less."""
        for block in blocks:
            self._count(block, -1)
        self._give_back(blocks)

    def _give_back(self, blocks: Sequence[int]) -> None:
        """Put those of `blocks` that are in no table and under no lease where the free ones are."""
        # The first entry of a table goes last: it is the next to be handed out, and of what is
        # cached the last to be given up, as the others cannot be found without it.
        for block in reversed(blocks):
            if not self._references[block] and not self._leased(block):
                self._journal.append(self._rest(block), block)

    def _rest(self, block: int) -> list[int]:
        """Where a block goes that nobody has any more."""
        return self._supply.idle if self._cached(block) else self._free

    def _count(self, block: int, change: int) -> None:
        """Change the number of table entries that name `block`."""
        self._journal.put(self._references, block, self._references[block] + change)

    def _leased(self, block: int | None) -> bool:
        """Whether a lease that has not ended has `block`."""
        return any(block in blocks for blocks in self._leases.values())

    # Cached contents, as far as paging meets them.

    def _cached(self, block: int) -> bool:
        """Whether the contents of `block` can be found."""
        return block in self._supply.cache.contents

    def _unpublish(self, block: int) -> None:
        """Let the contents of `block` not be found any more."""
        cache = self._supply.cache
        self._journal.delete(cache.blocks, cache.contents[block])
        self._journal.delete(cache.contents, block)
