"""Preallocation: every sequence has room for the longest length from its first token on.

What Hugging Face's static cache and FasterTransformer do, and *Orca (Max)* of Kwon et al.,
SOSP 2023: no search and no growth, and most of what is reserved is never filled.
"""

from kvimpls.traditional.extents import AnnouncedExtents, Extent
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks, ToMax, UnsupportedGeometry


class Preallocation(AnnouncedExtents):
    """One slot of `max_tokens` tokens a sequence, in whole blocks; the lowest that is free."""

    contract = Contract(
        reservation=ToMax(),
        placement="slots",
        geometries=Geometries(block_sizes=(1,), max_tokens="required"),
    )

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        if geometry.max_tokens is None:
            raise UnsupportedGeometry("preallocation needs max_tokens")
        self._room = geometry.max_tokens
        self._free = list(range(geometry.num_blocks // self._room - 1, -1, -1))
        self._used = 0

    def _size(self, allocated: int, length: int, limit: int | None) -> int:
        return self._room

    def _place(self, size: int) -> int | None:
        if not self._free:
            return None
        self._used += size
        return self._free.pop() * self._room

    def _grow(self, extent: Extent, length: int) -> list[Copy]:
        raise OutOfBlocks("a slot holds the longest length")  # no length goes beyond it

    def _release(self, extent: Extent) -> None:
        if extent.reserved:
            self._used -= extent.reserved
            self._free.append(extent.start // self._room)
            self._free.sort(reverse=True)

    def num_free_blocks(self) -> int:
        """How many slots of one token are in no sequence's room."""
        return self._geometry.num_blocks - self._used

    def largest_hole(self) -> int:
        """The size of the largest run of rooms that are free, 0 if there is none."""
        return max((size for _, size in self.holes()), default=0)

    def holes(self) -> list[tuple[int, int]]:
        """Start and size of every room that is free."""
        return [(room * self._room, self._room) for room in reversed(self._free)]
