"""The binary buddy system: extents of a power of two, at a multiple of their size.

Knowlton, "A fast storage allocator", CACM 1965. The pool is the largest power of two that
fits into the geometry; the slots beyond it are free, and never of use.
"""

from kvimpls.traditional.extents import SLOTS, AnnouncedExtents, Extent, power_of_two
from kvspec import Contract, Copy, Exact, Geometry, OutOfBlocks, Pow2


class BuddyOracle(AnnouncedExtents):
    """The final length, rounded up to a power of two, at the lowest address that fits."""

    contract = Contract(reservation=Exact(), placement="aligned", geometries=SLOTS)

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self._pool = 2 ** (geometry.num_blocks.bit_length() - 1)
        self._free = {self._pool: {0}}
        """The starts of the free extents, by size; two free buddies are always one extent."""
        self._used = 0

    def _size(self, allocated: int, length: int, limit: int | None) -> int:
        return power_of_two(length if limit is None else limit)

    def _place(self, size: int) -> int | None:
        fits = [(min(starts), s) for s, starts in self._free.items() if starts and s >= size]
        if not fits:
            return None
        start, larger = min(fits)
        self._free[larger].remove(start)
        while larger > size:
            larger //= 2
            self._free.setdefault(larger, set()).add(start + larger)
        self._used += size
        return start

    def _grow(self, extent: Extent, length: int) -> list[Copy]:
        """Into the upper buddies, if they are free and the extent is the lower one each time."""
        target, size = self._size(0, length, None), extent.reserved
        buddies = []
        while size < target:
            if extent.start % (2 * size) or not self._is_free(extent.start + size, size):
                raise OutOfBlocks(f"the buddy of slot {extent.start} is not free")
            buddies.append(size)
            size *= 2
        for buddy in buddies:
            self._free[buddy].remove(extent.start + buddy)
        self._used += target - extent.reserved
        extent.reserved = target
        return []

    def _is_free(self, start: int, size: int) -> bool:
        return start in self._free.get(size, ())

    def _release(self, extent: Extent) -> None:
        start, size = extent.start, extent.reserved
        self._used -= size
        while size and size < self._pool and self._is_free(start ^ size, size):
            self._free[size].remove(start ^ size)
            start, size = start & ~size, size * 2
        if size:
            self._free.setdefault(size, set()).add(start)

    def num_free_blocks(self) -> int:
        """How many slots are in no extent."""
        return self._geometry.num_blocks - self._used

    def holes(self) -> list[tuple[int, int]]:
        """Start and size of every free extent of the buddy system."""
        return sorted((start, size) for size, starts in self._free.items() for start in starts)

    def largest_hole(self) -> int:
        """The size of the largest free extent."""
        return max((size for size, starts in self._free.items() if starts), default=0)


class BuddyPow2(BuddyOracle):
    """The prompt and a power of two for the output, rounded up to a power of two."""

    contract = Contract(reservation=Pow2(), placement="aligned", geometries=SLOTS)

    def _size(self, allocated: int, length: int, limit: int | None) -> int:
        known = length if limit is None else allocated + power_of_two(limit - allocated)
        return power_of_two(known)
