"""Faults of placement: extents that are not where they should be, or in two places."""

from typing import ClassVar

from kvimpls.reference import Reference
from kvimpls.traditional import BuddyOracle
from kvimpls.traditional.extents import Extent
from kvspec import Contract


class ScatteredExtents(Reference):
    """Promises that the blocks of a sequence lie side by side, and hands out whichever are free.

    No public report of this is known to us.
    """

    contract: ClassVar[Contract] = Contract(capabilities=("core",), placement="contiguous")


class MergedAndKept(BuddyOracle):
    """Two free buddies become one extent, and the one that was there remains in the list as well.

    vulkano-rs/vulkano#2832: the neighbours of what was merged still pointed to it.
    """

    def _release(self, extent: Extent) -> None:
        before = {size: set(starts) for size, starts in self._free.items()}
        super()._release(extent)
        for size, starts in before.items():
            self._free[size] |= starts
