"""A pool of blocks: which are free, and who has the others.

A block may be in tables, which are counted, and under leases, which pin it. It may have contents
that are cached. Nobody *has* a block that is in no table and under no lease: it is free, and if
its contents are cached it is idle as well: it can be found again until it is needed.
"""

from collections import Counter

from kvimpls.reference.prefix import Cache


class Lease:
    """One transfer in flight: opaque, and equal to itself alone."""


class Pool:
    """The blocks with these ids, at first all free."""

    def __init__(self, ids: range) -> None:
        self.ids = ids
        self.free = list(reversed(ids))
        """The free blocks without cached contents; the next to be handed out is the last."""
        self.idle: list[int] = []
        """The cached blocks that nobody has, in the order in which they were let go."""
        self.references: Counter[int] = Counter()
        """Of each block, how many table entries name it."""
        self.leases: dict[Lease, list[int]] = {}
        """The blocks under each lease that has not ended."""
        self.cache = Cache()
        self.epoch = 0
        """How often the cache has been reset."""

    def num_free(self) -> int:
        """How many blocks nobody has."""
        return len(self.free) + len(self.idle)
