"""Contiguous extents that grow on demand: doubled when full, moved when there is no room behind.

The list of a dynamic array, for a cache: the final length is not known, so an extent starts
at the prompt, and most of what it reserves is for a future that may not come.
"""

from attrs import evolve

from kvimpls.traditional.extents import SLOTS, Extent, power_of_two
from kvimpls.traditional.known import OracleFirstFit
from kvspec import Contract, Copy, Doubling, OutOfBlocks


class DoublingFirstFit(OracleFirstFit):
    """Starts at the prompt, doubles when full, in the first hole that fits."""

    contract = Contract(
        reservation=Doubling(), placement="contiguous", relocates=True, geometries=SLOTS
    )

    def _size(self, allocated: int, length: int, limit: int | None) -> int:
        return length

    def _grow(self, extent: Extent, length: int) -> list[Copy]:
        """In place; else elsewhere, both copies being held; else into all of the hole behind."""
        end, target = extent.start + extent.reserved, max(2 * extent.reserved, length)
        behind = self._holes.after(end)
        if behind >= target - extent.reserved:
            self._holes.take(end, target - extent.reserved)
            extent.reserved = target
            return []
        start = self._place(target)
        if start is not None:
            copies = [Copy(extent.start + i, start + i) for i in range(extent.length)]
            self._holes.give(extent.start, extent.reserved)
            extent.start, extent.reserved = start, target
            return copies
        if extent.reserved + behind < length:
            raise OutOfBlocks(f"no hole for {target} slots, and {behind} behind slot {end - 1}")
        self._holes.take(end, behind)
        extent.reserved += behind
        return []


class DoublingBestFit(DoublingFirstFit):
    """Starts at the prompt, doubles when full, in the smallest hole that fits."""

    best = True


class GrowingPow2FirstFit(DoublingFirstFit):
    """Starts at a power of two, doubles when full, in the first hole that fits."""

    contract = evolve(DoublingFirstFit.contract, reservation=Doubling(start="pow2"))

    def _size(self, allocated: int, length: int, limit: int | None) -> int:
        return power_of_two(length)


class GrowingPow2BestFit(GrowingPow2FirstFit):
    """Starts at a power of two, doubles when full, in the smallest hole that fits."""

    best = True
