"""Faults of batches: several sequences grow in one call, and not as they would one by one."""

from collections.abc import Sequence

from kvimpls.reference import Reference, SequenceState
from kvspec import Copy


class DecidesForAllAtOnce(Reference):
    """A batch copies for each writer what was shared when it began, also for the last of them.

    No public report of this is known to us.
    """

    _shared: frozenset[int] = frozenset()

    def append_batch(self, seqs: Sequence[int], num_tokens: int | Sequence[int]) -> list[Copy]:
        """Append to each of `seqs`, every one of which leaves what it shared."""
        self._shared = frozenset(block for block, n in self._references.items() if n > 1)
        try:
            return super().append_batch(seqs, num_tokens)
        finally:
            self._shared = frozenset()

    def _to_copy(self, sequence: SequenceState, length: int) -> list[int]:
        written = self._written(sequence, length)
        return [i for i in written if self._is_shared(sequence.blocks[i])]

    def _is_shared(self, block: int | None) -> bool:
        return block is not None and (self._references[block] > 1 or block in self._shared)
