"""Faults of accounting: counts of users, of free blocks, and of what was released."""

from kvimpls.reference import Reference
from kvimpls.reference.paging import present
from kvspec import Copy


class CountsFromZero(Reference):
    """A block that is taken for a table has a count of zero, which its release takes below zero.

    Wenyueh/MinivLLM#84: it never comes back, since it never comes to zero.
    """

    def _take_one(self) -> int:
        block = super()._take_one()
        self._count(block, -1)
        return block


class LosesTheLastBlock(Reference):
    """The end of a sequence puts its full blocks back, and forgets one that is partly filled.

    kekzl/imp#1115, where one block was lost for each request, and no short test saw it.
    """

    def _end(self, seq: int) -> None:
        sequence = self._sequences[seq]
        self._journal.delete(self._sequences, seq)
        for block in sequence.held():
            self._count(block, -1)
        full = sequence.length // self._block_size
        self._give_back(present(sequence.blocks[:full]))


class SizeReadAfterTheRelease(Reference):
    """What the end of a sequence adds to the free count is the size of the next sequence.

    pytorch/pytorch#159567: it was read through an iterator that the release had moved on.
    """

    _error: int = 0

    def free(self, seq: int) -> list[Copy]:
        """End `seq`."""
        before = self._supply.num_free()
        answer = super().free(seq)
        following = next((state.held() for state in self._sequences.values()), [])
        self._error += len(following) - (self._supply.num_free() - before)
        return answer

    def num_free_blocks(self, pool: int = 0) -> int:
        """How many blocks were released and not taken, as it was added up."""
        return super().num_free_blocks(pool) + (self._error if pool == 0 else 0)


class NamesTheLowest(Reference):
    """`free_blocks` names as many blocks as are free, and always those with the lowest ids.

    No public report of this is known to us.
    """

    def free_blocks(self) -> list[int]:
        """As many ids as `num_free_blocks` counts."""
        return list(self._supply.ids[: self._supply.num_free()])
