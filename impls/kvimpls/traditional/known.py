"""Contiguous extents that never move: for the length, or for a final length known in advance.

The *Oracle* and *Pow2* baselines of Kwon et al., SOSP 2023, section 6.1, for Orca's memory:
the extent grows only into the hole behind it, where no limit was given.
"""

from typing import ClassVar

from kvimpls.traditional.extents import SLOTS, AnnouncedExtents, Extent, Extents, power_of_two
from kvimpls.traditional.holes import Holes
from kvspec import Contract, Copy, Geometry, OutOfBlocks, Pow2


class ContiguousFirstFit(Extents):
    """Exactly the length, in the first hole that fits; grows into the hole behind it, or not."""

    best: ClassVar[bool] = False

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self._holes = Holes(geometry.num_blocks)

    def _size(self, allocated: int, length: int, limit: int | None) -> int:
        """The final length, as far as it is known."""
        return length if limit is None else limit

    def _place(self, size: int) -> int | None:
        start = self._holes.find(size, self.best)
        if start is not None:
            self._holes.take(start, size)
        return start

    def _grow(self, extent: Extent, length: int) -> list[Copy]:
        end = extent.start + extent.reserved
        more = self._size(0, length, None) - extent.reserved
        if self._holes.after(end) < more:
            raise OutOfBlocks(f"no hole of {more} slots behind slot {end - 1}")
        self._holes.take(end, more)
        extent.reserved += more
        return []

    def _release(self, extent: Extent) -> None:
        self._holes.give(extent.start, extent.reserved)

    def num_free_blocks(self) -> int:
        """How many slots are in no extent."""
        return self._holes.free

    def holes(self) -> list[tuple[int, int]]:
        """Start and size of every hole."""
        return self._holes.all()

    def largest_hole(self) -> int:
        """The size of the largest hole."""
        return self._holes.largest


class ContiguousBestFit(ContiguousFirstFit):
    """Exactly the length, in the smallest hole that fits; grows into the hole behind it, or not."""

    best = True


class OracleFirstFit(AnnouncedExtents, ContiguousFirstFit):
    """Exactly the final length, in the first hole that fits."""


class OracleBestFit(OracleFirstFit):
    """Exactly the final length, in the smallest hole that fits."""

    best = True


class Pow2FirstFit(OracleFirstFit):
    """The prompt and a power of two for the output, in the first hole that fits."""

    contract = Contract(reservation=Pow2(), placement="contiguous", geometries=SLOTS)

    def _size(self, allocated: int, length: int, limit: int | None) -> int:
        if limit is None:
            return power_of_two(length)
        return allocated + power_of_two(limit - allocated)


class Pow2BestFit(Pow2FirstFit):
    """The prompt and a power of two for the output, in the smallest hole that fits."""

    best = True
