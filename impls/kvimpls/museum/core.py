"""Faults of core: taking blocks, growing, the table, and what a refusal leaves behind."""

from collections.abc import Callable

from kvimpls.reference import Reference, SequenceState
from kvspec import Copy, Geometry, OutOfBlocks


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


class OffByOneAtBoundary(Reference):
    """The last block of a table counts as having one slot more, so the next is taken too late.

    Wenyueh/MinivLLM#85, where the length that is tested already counts the new token, so that
    the first token of a next block is let through when there is none for it.
    """

    def _growth(self, sequence: SequenceState, length: int) -> int:
        return super()._growth(sequence, length - bool(sequence.blocks))


class RefusesWhatStillFits(Reference):
    """An append that ends at a block's edge wants a free block, which it has no use for.

    Wenyueh/MinivLLM#85: the other half of testing the remainder of a length that already counts
    the new token.
    """

    def _grow(self, seq: int, length: int) -> list[Copy]:
        fills = length % self._block_size == 0 and length > self._sequences[seq].length
        if fills and not self._fits(1):
            raise OutOfBlocks("none is free for the block after this one")
        return super()._grow(seq, length)


class Overdrawing(Reference):
    """What calls that test for too few blocks have in common: `_unseen` is by how many."""

    _unseen: int = 0

    def _fits(self, count: int) -> bool:
        return super()._fits(count - self._unseen)


class CrashesForWantOfABlock(Overdrawing):
    """An append tests for one block less than it takes, and the last is popped off an empty list.

    Wenyueh/MinivLLM#85: what becomes of the token that its test lets through.
    """

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Reserve slots, or fail in the middle."""
        self._unseen = 1
        try:
            return super().append(seq, num_tokens)
        finally:
            self._unseen = 0


class SpuriousRefusalAtExactFit(Reference):
    """What needs exactly the free blocks is refused, although `can_allocate` says OK.

    microsoft/onnxruntime-genai#2333, where a comparison was strict.
    """

    def _take(self, count: int) -> list[int]:
        if count and count >= self._supply.num_free():
            raise OutOfBlocks(f"{count} blocks are needed, {self._supply.num_free()} are free")
        return super()._take(count)


class ChargedTwice(Reference):
    """A new sequence gets the blocks of its prompt twice.

    microsoft/onnxruntime-genai#2333: admission had marked the slots of the prompt as used, and
    the first step, which did not see that, took others for the same tokens.
    """

    def _start(self, seq: int, sequence: SequenceState, length: int) -> None:
        super()._start(seq, sequence, length)
        sequence.blocks += self._take(self._need(length))


class PreallocatesPastTheEnd(Reference):
    """A new sequence gets a block ahead of its tokens where one is free, however near its end.

    vllm-project/vllm#10730, where the blocks taken in advance were not cut to the width of the
    row that has to hold them.
    """

    def _start(self, seq: int, sequence: SequenceState, length: int) -> None:
        super()._start(seq, sequence, length)
        if length and self._fits(1):
            sequence.blocks += self._take(1)


class TakesWhatThereIs(Reference):
    """A prompt that the free blocks do not hold is given those that there are.

    jemalloc/jemalloc#241, where the size of what was found was compared only if an address had
    been asked for as well.
    """

    def _start(self, seq: int, sequence: SequenceState, length: int) -> None:
        lacking = self._need(length) - len(sequence.blocks)
        sequence.blocks += self._take(min(lacking, self._supply.num_free()))
        sequence.length = length
        self._journal.put(self._sequences, seq, sequence)


class ZeroTakesABlock(Reference):
    """An allocation of no tokens takes a block, as one of a token does.

    jemalloc/jemalloc#2991, where a size of zero was rounded up on the way in and not on the way
    out.
    """

    def _start(self, seq: int, sequence: SequenceState, length: int) -> None:
        super()._start(seq, sequence, length or 1)
        sequence.length = length


class NeedsARun(Reference):
    """Blocks are refused that do not lie side by side, in a pool where they may lie anywhere.

    ggml-org/llama.cpp#13194, where a window left its cells in the middle of the buffer.
    """

    def _take(self, count: int) -> list[int]:
        free = {*self._free, *self._supply.idle}
        if count and not any(free.issuperset(range(start, start + count)) for start in free):
            raise OutOfBlocks(f"no {count} of {len(free)} free blocks lie side by side")
        return super()._take(count)


class AliasedTable(Reference):
    """The table handed out is the one that the allocator works on, and changes with it.

    NVIDIA/TensorRT-LLM#15546, where the buffer of a table was reused before it had been read.
    """

    def block_table(self, seq: int, group: int = 0) -> list[int | None]:
        """The blocks of `seq`, now and later."""
        return self._groups[group]._sequence(seq).blocks


class SecondFreeAccepted(Reference):
    """A sequence that has ended can be freed again, and its blocks are put back once more.

    LMCache/LMCache#5005, where a count below zero was set to zero, and went on to the branch
    for those that had come to zero.
    """

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry, checkpoint=checkpoint)
        self._ended: dict[int, list[int]] = {}

    def free(self, seq: int) -> list[Copy]:
        """End `seq`, as often as one likes."""
        if seq in self._ended and seq not in self._sequences:
            self._free += self._ended[seq]
            return []
        blocks = self._sequence(seq).held()
        answer = super().free(seq)
        self._ended[seq] = blocks
        return answer


class OverwritesATable(Reference):
    """Allocating under an id that is in use replaces its table, whose blocks are lost.

    turboderp-org/exllamav3#320, where a handle was set anew for each sequence of a job.
    """

    def _require_unused(self, seq: int) -> None:
        pass


class ForgetsTheBound(Reference):
    """The caller's bound on the length is looked at by `allocate`, and never again.

    No public report of this is known to us.
    """

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> list[Copy]:
        """Start `seq`, with no bound but the geometry's."""
        answer = super().allocate(seq, num_tokens, limit=limit)
        for group in self._groups:
            group._sequence(seq).limit = self._max_tokens
        return answer


class FillsGapsUnasked(Reference):
    """When a sequence ends, the last block of another is moved to a free one, with its copy.

    No public report of this is known to us. Nothing is lost by it; but whoever holds the table
    of the other one, in a step that runs, does not hear of it.
    """

    def free(self, seq: int) -> list[Copy]:
        """End `seq`, and tidy up."""
        answer = super().free(seq)
        for other in self._sequences.values():
            old = other.blocks[-1] if other.blocks else None
            alone = self._references[old] == 1 if old is not None else False
            if old is not None and alone and self._free:
                if self._leased(old) or self._cached(old):
                    continue
                other.blocks[-1] = new = self._pick()
                self._count(new, +1)
                self._let_go([old])
                return [*answer, Copy(old, new)]
        return answer


class CopiesItsOwnTail(Reference):
    """An append copies the partly filled block that it writes into, also if nobody else has it.

    No public report of this is known to us.
    """

    def _to_copy(self, sequence: SequenceState, length: int) -> list[int]:
        return list(self._written(sequence, length))
