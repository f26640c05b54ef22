"""Faults of sharing: counts of users, and copy-on-write."""

from kvimpls.reference import Reference, SequenceState
from kvspec import Copy


class DoubleHandOut(Reference):
    """The first of a block's users to be freed puts it on the free list, whoever else has it.

    apache/tvm#16666, where a fork did not raise the count that freeing its child lowered.
    """

    def free(self, seq: int) -> list[Copy]:
        """End `seq`, as though no other sequence had its blocks."""
        for block in self._sequence(seq).blocks:
            self._references[block] = min(self._references[block], 1)
        return super().free(seq)


class ForgottenCopyOnWrite(Reference):
    """An append writes into the tail that it shares with a fork.

    Avarok-Cybersecurity/atlas#1193: nothing shows while both write the same tokens.
    """

    def _to_copy(self, sequence: SequenceState, length: int) -> list[int]:
        return []


class CountNotDecremented(Reference):
    """Copy-on-write forgets to lower the count of the old block, which is then never freed.

    The same loss as jjang-ai/vmlx#68, where finished requests kept their references.
    """

    def _copy_on_write(self, sequence: SequenceState, index: int, fresh: int) -> Copy:
        copy = super()._copy_on_write(sequence, index, fresh)
        self._references[copy.source] += 1
        return copy
