"""Faults of sharing: counts of users, and copy-on-write."""

from kvimpls.reference import Reference, SequenceState
from kvspec import Copy


class DoubleHandOut(Reference):
    """Freeing puts all blocks of a sequence on the free list, also those that another still has.

    apache/tvm#16666, where a fork did not raise the count that freeing its child lowered.
    Here this is the quick way of freeing, gone only while nothing is in flight.
    """

    def free(self, seq: int) -> list[Copy]:
        """End `seq`, and hand back what is its own and what is not."""
        blocks = self._sequence(seq).held()
        answer = super().free(seq)
        if not self._leases:
            self._free += [block for block in blocks if self._references[block]]
        return answer


class ForkNotCounted(Reference):
    """A fork does not raise the counts of the blocks that it shares.

    apache/tvm#16666, where the child's end then took the parent's blocks away.
    """

    def _share(self, parent: int, child: int) -> list[Copy]:
        copies = super()._share(parent, child)
        for block in self._sequences[child].held():
            self._count(block, -1)
        return copies


class CountsTheReleased(Reference):
    """A fork counts a block once more for each entry of the table that the window has released.

    vllm-project/vllm#3347, where the entries before the window were one ring with those in it,
    so that a block stood in a table several times, and was counted for each.
    """

    def _share(self, parent: int, child: int) -> list[Copy]:
        copies = super()._share(parent, child)
        sequence = self._sequences[child]
        for block in sequence.held()[-1:]:
            self._count(block, sequence.blocks.count(None))
        return copies


class ForgottenCopyOnWrite(Reference):
    """An append writes into the tail that it shares with a fork.

    Avarok-Cybersecurity/atlas#1193: nothing shows while both write the same tokens.
    """

    def _to_copy(self, sequence: SequenceState, length: int) -> list[int]:
        return []


class CountNotDecremented(Reference):
    """Freeing one of several users of a full block does not lower its count.

    So it is not free when the last of them has gone. jjang-ai/vmlx#68, where finished requests
    kept their references. Only full blocks, as in a prefix cache: nobody writes into them, so
    that a count too high does not show as a needless copy before it shows as a leak.
    """

    def free(self, seq: int) -> list[Copy]:
        """End `seq`; its full blocks that others have keep their count."""
        sequence = self._sequence(seq)
        full = sequence.blocks[: sequence.length // self._geometry.block_size]
        self._references.update(b for b in full if b is not None and self._references[b] > 1)
        return super().free(seq)


class ForkLosesTheTail(Reference):
    """A fork's child has its parent's length and only those of its blocks that are full.

    No public report of this is known to us.
    """

    def _share(self, parent: int, child: int) -> list[Copy]:
        copies = super()._share(parent, child)
        sequence = self._sequences[child]
        full = sequence.length // self._block_size
        tail = [block for block in sequence.blocks[full:] if block is not None]
        self._journal.set(sequence, "blocks", sequence.blocks[:full])
        self._let_go(tail)
        return copies
