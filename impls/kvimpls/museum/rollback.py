"""Faults of rollback: what is left of a sequence that gives up its last tokens."""

from kvimpls.reference import Reference, SequenceState
from kvspec import Copy


class KeepsBeyondTheCut(Reference):
    """Truncating sets the length, and leaves the table as it was.

    waybarrios/vllm-mlx#385, where a shallow copy was cut, and the rows beyond could be read.
    """

    def _entries_kept(self, sequence: SequenceState, length: int) -> int:
        return len(sequence.blocks)


class NegativeTruncationGrows(Reference):
    """Truncating to less than nothing adds as many tokens.

    ml-explore/mlx-lm#1868: the smaller of the two was subtracted, and it was negative.
    """

    def truncate(self, seq: int, num_tokens: int) -> list[Copy]:
        """Keep the first tokens of `seq`, or have more."""
        if isinstance(num_tokens, int) and num_tokens < 0:
            return self.append(seq, -num_tokens)
        return super().truncate(seq, num_tokens)


class DraftsNeverReleased(Reference):
    """Truncating takes blocks out of the table without letting go of them.

    sgl-project/sglang#13826: what is released is decided by a length that the slots of drafts
    had never been added to.
    """

    def _cut(self, seq: int, length: int) -> None:
        sequence = self._sequences[seq]
        self._journal.set(sequence, "blocks", sequence.blocks[: self._need(length)])
        super()._cut(seq, length)


class OneSlotTooMany(Reference):
    """Growing reserves one slot more than there are new tokens.

    sgl-project/sglang#20872, where a step of drafting was counted that writes nothing.
    """

    def _growth(self, sequence: SequenceState, length: int) -> int:
        return super()._growth(sequence, length + (length > sequence.length))
