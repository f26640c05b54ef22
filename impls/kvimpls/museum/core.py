"""Faults of core: taking blocks, growing, the table, and what a refusal leaves behind."""

from kvimpls.reference import Reference, SequenceState
from kvspec import Copy, OutOfBlocks


class LeakOnRefusal(Reference):
    """A refused allocation keeps the blocks that it had already taken off the free list.

    ovg-project/kvcached#364.
    """

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> list[Copy]:
        """Start `seq`, or drain the free list and refuse."""
        try:
            return super().allocate(seq, num_tokens, limit=limit)
        except OutOfBlocks:
            self._free.clear()
            raise


class OffByOneAtBoundary(Reference):
    """The last block of a table counts as having one slot more, so the next is taken too late.

    Wenyueh/MinivLLM#85, where the length that is tested already counts the new token, so that
    the first token of a next block is let through when there is none for it.
    """

    def _growth(self, sequence: SequenceState, length: int) -> int:
        return super()._growth(sequence, length - bool(sequence.blocks))


class AliasedTable(Reference):
    """The table handed out is the one that the allocator works on, and changes with it.

    NVIDIA/TensorRT-LLM#15546, where the buffer of a table was reused before it had been read.
    """

    def block_table(self, seq: int, group: int = 0) -> list[int | None]:
        """The blocks of `seq`, now and later."""
        return self._groups[group]._sequence(seq).blocks


class HalfDoneAppend(Reference):
    """A refused append leaves the blocks that there were in the table.

    The same shape as ovg-project/kvcached#364, with a table as the owner of what was taken.
    """

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Reserve slots, or as many whole blocks as there are, and refuse."""
        try:
            return super().append(seq, num_tokens)
        except OutOfBlocks:
            self._sequence(seq).blocks += self._take(len(self._free))
            raise


class SpuriousRefusalAtExactFit(Reference):
    """What needs exactly the free blocks is refused, although `can_allocate` says OK.

    microsoft/onnxruntime-genai#2333, where a comparison was strict.
    """

    def _take(self, count: int) -> list[int]:
        if count >= len(self._free):
            raise OutOfBlocks(f"{count} blocks are needed, {len(self._free)} are free")
        return super()._take(count)
