"""Faults of swapping: what goes to the host and comes back, and how it is counted."""

from kvimpls.museum.core import Overdrawing
from kvimpls.reference import Reference, SequenceState
from kvimpls.reference.paging import Entry, present
from kvspec import Copy, OutOfBlocks


class ApprovedTooEarly(Overdrawing):
    """Swapping in tests for one block less than the sequence has, and fails on the last.

    vllm-project/vllm#8824: the test left out tokens that were in no block yet.
    """

    def swap_in(self, seq: int) -> list[Copy]:
        """Move `seq` back, or fail in the middle."""
        self._unseen = 1
        try:
            return super().swap_in(seq)
        finally:
            self._unseen = 0


class CountedInTheOtherTier(Reference):
    """What swapping out frees on the device is added to the count of the host.

    NVIDIA/TensorRT-LLM#12834: the counter was looked up by the tier of the block, after that had
    been changed.
    """

    _astray: int = 0

    def swap_out(self, seq: int) -> list[Copy]:
        """Move `seq` to host blocks."""
        before = self._supply.num_free()
        copies = super().swap_out(seq)
        self._astray += self._supply.num_free() - before
        return copies

    def num_free_blocks(self, pool: int = 0) -> int:
        """How many device blocks were free, had nothing been swapped out."""
        return super().num_free_blocks(pool) - self._astray

    def num_free_host_blocks(self) -> int:
        """How many host blocks are free, and some of the device."""
        return super().num_free_host_blocks() + self._astray


class DroppedWithoutACopy(Reference):
    """A sequence for which the host has no room is swapped out all the same, to nowhere.

    sgl-project/sglang#27108: nobody looked at how much of it had been written back.
    """

    def swap_out(self, seq: int) -> list[Copy]:
        """Move `seq` to host blocks, or drop it."""
        try:
            return super().swap_out(seq)
        except OutOfBlocks:
            sequence = self._sequence(seq)
            device = sequence.held()
            self._set_tables(sequence, [], [])
            sequence.mark = 0
            self._let_go(device)
            return []


class ShiftedByOne(Reference):
    """What ends at a block's edge comes back shifted: each block into the place of the one before.

    vllm-project/vllm#44151, between two engines: the sender's table had one block in reserve, and
    the receiver counted from the end. Here the two are the host and the device.
    """

    _shifted: bool = False

    def swap_in(self, seq: int) -> list[Copy]:
        """Move `seq` back, with the copies for other entries where its length is whole blocks."""
        sequence = self._sequence(seq)
        self._shifted = sequence.length % self._block_size == 0
        try:
            return super().swap_in(seq)
        finally:
            self._shifted = False

    def _copies(self, sources: list[Entry], destinations: list[Entry]) -> list[Copy]:
        if not self._shifted:
            return super()._copies(sources, destinations)
        return super()._copies([*present(sources)[1:]], [*present(destinations)[:-1]])


class FreeLeavesTheHost(Reference):
    """Freeing a sequence that is swapped out keeps its host blocks.

    No public report of this is known to us.
    """

    def _end_on_host(self, sequence: SequenceState) -> None:
        pass
