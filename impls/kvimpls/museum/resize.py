"""Faults of resizing: the pool has other blocks, and somebody was not told."""

from kvimpls.reference import Reference


class ShrinksUnderTheTables(Reference):
    """A pool shrinks although blocks beyond its new end are in use.

    No public report of this is known to us.
    """

    def _remove(self, block: int) -> None:
        if block in self._rest(block):
            super()._remove(block)
        elif self._cached(block):
            self._unpublish(block)
