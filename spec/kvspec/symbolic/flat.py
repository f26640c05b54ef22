"""The laws in a flat encoding: at most three table entries a sequence, and integers only.

A symbolic state object has more paths than CrossHair can walk. Here the shape is fixed: a
sequence has at most three blocks, and only its length and their ids are symbolic. Reference
counts are derived from the entries, so they are exact by construction; the allocator's own
count of free blocks is an integer beside them, which must agree. The pool, the block size and
the lengths in tokens have no upper bound but for that shape.

Nothing branches on a symbolic value: `&`, `|` and `^` on booleans make one term, where `and`
would make two paths. Entries beyond a table's length say nothing, whatever their integers are.
"""

from typing import NamedTuple, cast

from kvspec.geometry import blocks_for, table_index

ENTRIES = 3
"""The most blocks that a sequence has here."""

Blocks = tuple[int, int, int]
"""Block ids: of a table's entries, or those that an operation is about to hand out, in order."""


class Table(NamedTuple):
    """A sequence: its length in tokens, and the block ids of its entries, as many as it needs."""

    length: int
    blocks: Blocks

    @classmethod
    def of(cls, length: int, *blocks: int) -> "Table":
        """The table with the first of `blocks`, which are enough for the shape."""
        return cls(length, cast("Blocks", blocks[:ENTRIES]))

    def last(self, size: int) -> int:
        """The block of the last entry; the table is not empty."""
        return self.blocks[table_index(self.length - 1, size)]

    def padded(self, size: int) -> "Table":
        """The table as if the last block were full: it has the same entries."""
        return self._replace(length=blocks_for(self.length, size) * size)


class Pool(NamedTuple):
    """`blocks` blocks of `size` tokens; `free` is the allocator's own count of free ones."""

    blocks: int
    size: int
    free: int

    def taking(self, count: int) -> "Pool":
        """The pool after `count` blocks were handed out."""
        return self._replace(free=self.free - count)

    def given(self, count: int) -> "Pool":
        """The pool after `count` blocks came back."""
        return self._replace(free=self.free + count)


def implies(condition: bool, claim: bool) -> bool:
    """Whether `claim` holds where `condition` does."""
    return (condition ^ True) | claim


Entries = list[tuple[bool, int]]


def entries(size: int, *tables: Table) -> Entries:
    """For each place in a table whether there is an entry, and its block."""
    found = []
    for table in tables:
        held = blocks_for(table.length, size)
        found += [(held > i, block) for i, block in enumerate(table.blocks)]
    return found


def among(found: Entries, block: int) -> int:
    """How many of the entries have `block`."""
    count = 0
    for present, other in found:
        count += present & (other == block)
    return count


def references(size: int, block: int, *tables: Table) -> int:
    """How many entries of the tables have `block`."""
    return among(entries(size, *tables), block)


def lawful(pool: Pool, *tables: Table) -> bool:
    """Whether all laws hold of a pool in which these are the tables, of this shape.

    Well-formed: the entries of a table are different blocks of the pool. Conservation: free and
    referenced blocks are all there are. Bounded waste: a table has the entries of `blocks_for`
    and no others, which the arithmetic obligations confirm to be enough and not one too many.
    The block size must be at least 1.
    """
    right = True
    found = entries(pool.size, *tables)
    for start, table in zip(range(0, len(found), ENTRIES), tables, strict=True):
        right &= (table.length >= 0) & (table.length <= ENTRIES * pool.size)
        held = found[start : start + ENTRIES]
        for n, (present, block) in enumerate(held):
            for _, earlier in held[:n]:
                right &= implies(present, block != earlier)
    used = 0
    for n, (present, block) in enumerate(found):
        right &= implies(present, (block >= 0) & (block < pool.blocks))
        new = present
        for earlier, other in found[:n]:
            new &= implies(earlier, other != block)
        used += new
    return right & (used + pool.free == pool.blocks)


def may_take(pool: Pool, count: int, fresh: Blocks, *tables: Table) -> bool:
    """Whether the first `count` of `fresh` are different blocks of the pool, in no table."""
    right = (count >= 0) & (count <= len(fresh))
    found = entries(pool.size, *tables)
    for n, block in enumerate(fresh):
        free = (block >= 0) & (block < pool.blocks) & (among(found, block) == 0)
        for other in fresh[:n]:
            free &= other != block
        right &= implies(count > n, free)
    return right


def let_go(size: int, kept: int, table: Table, *others: Table) -> int:
    """How many blocks become free where `table` keeps only its first `kept` entries."""
    count, found = 0, entries(size, table, *others)
    for i, (present, block) in enumerate(found[:ENTRIES]):
        count += present & (i >= kept) & (among(found, block) == 1)
    return count


def written_alone(size: int, start: int, table: Table, *others: Table) -> bool:
    """Whether no other entry has a block in which `table` has a position from `start` on."""
    right, found = True, entries(size, table, *others)
    for i, (present, block) in enumerate(found[:ENTRIES]):
        written = present & ((i + 1) * size > start) & (table.length > start)
        right &= implies(written, among(found, block) == 1)
    return right
