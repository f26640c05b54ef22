"""Faults that show only where something fails half way."""

from kvimpls.reference import Reference


class KeepsWhatItTook(Reference):
    """A failure while blocks are taken leaves those that had been taken without an owner.

    ovg-project/kvcached#364: the test beforehand hides it, unless the pool is another's too.
    """

    def _take_one(self) -> int:
        try:
            return super()._take_one()
        except Exception:
            self._journal.forget()
            raise
