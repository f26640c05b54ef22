"""Swapping: a sequence moves to the host as a whole, and back.

The host is a pool like another. On the way out every block that is there gets one of the host,
and on the way in a fresh one of the device, for which there are no contents cached.
"""

from kvimpls.reference.grouping import Grouping
from kvimpls.reference.journal import all_or_nothing
from kvimpls.reference.paging import Entry, SequenceState, present
from kvimpls.reference.taking import Taking
from kvspec import AllocatorError, Copy


class Swapping(Grouping):
    """Capability `swap`, for what has one group.

    >>> from kvimpls.reference import Reference
    >>> from kvspec import Geometry
    >>> pool = Reference(Geometry(4, 2, num_host_blocks=8))
    >>> pool.allocate(0, 4), pool.swap_out(0)
    ([], [Copy(source=0, destination=0), Copy(source=1, destination=1)])
    >>> pool.block_table(0), pool.host_block_table(0), pool.num_free_blocks()
    ([], [0, 1], 4)
    """

    _host: Taking

    @all_or_nothing
    def swap_out(self, seq: int) -> list[Copy]:
        """Move `seq` to host blocks; the copies name (device, host)."""
        self._require_one_group("swapping")
        sequence = self._resident(seq)
        device = sequence.blocks
        host = _mapped(device, self._host._take(len(present(device))))
        self._set_tables(sequence, [], host)
        # What was published stays cached on the device, and is no longer of this sequence.
        self._journal.set(sequence, "mark", 0)
        self._let_go(present(device))
        return self._answer(self._copies(device, host))

    @all_or_nothing
    def swap_in(self, seq: int) -> list[Copy]:
        """Move `seq` back to device blocks; the copies name (host, device)."""
        self._require_one_group("swapping")
        sequence = self._sequence(seq)
        host = sequence.host
        if host is None:
            raise AllocatorError(f"sequence {seq} is not swapped out")
        device = _mapped(host, self._take(len(present(host))))
        self._set_tables(sequence, device, None)
        self._leave_host(sequence, host)
        return self._answer(self._copies(host, device))

    def host_block_table(self, seq: int) -> list[Entry]:
        """A snapshot of the host blocks of `seq`; empty while it is on the device."""
        return list(self._sequence(seq).host or [])

    def num_free_host_blocks(self) -> int:
        """How many host blocks are in no table."""
        return self._host._supply.num_free()

    def _set_tables(
        self, sequence: SequenceState, device: list[Entry], host: list[Entry] | None
    ) -> None:
        """Give `sequence` these tables."""
        self._journal.set(sequence, "blocks", device)
        self._journal.set(sequence, "host", host)

    def _copies(self, sources: list[Entry], destinations: list[Entry]) -> list[Copy]:
        """From table to table, entry by entry."""
        copies = []
        for source, destination in zip(present(sources), present(destinations), strict=True):
            self._checkpoint("copy a block")
            copies.append(Copy(source, destination))
        return copies

    def _leave_host(self, sequence: SequenceState, host: list[Entry]) -> None:
        """Let go of the host blocks that `sequence` had, which is on the device again."""
        self._host._let_go(present(host))

    def _end_on_host(self, sequence: SequenceState) -> None:
        """Let go of the host blocks that `sequence` has, which has ended."""
        self._host._let_go(present(sequence.host or []))


def _mapped(table: list[Entry], blocks: list[int]) -> list[Entry]:
    """The same table over other blocks, which are given in order."""
    rest = iter(blocks)
    return [None if entry is None else next(rest) for entry in table]
