"""Allocators that each break one law which no exhibit of the museum breaks first.

They are the reference but for a few lines, and `docs/generate.py` shows on the page of laws
how they fail.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvimpls.museum.batch import DecidesForAllAtOnce
from kvimpls.reference import Reference, SequenceState, StoredReference
from kvspec import Admission, Contract, Copy, Geometry, InvalidLength, OutOfBlocks, Unspecified


class ForgetsTheLimit(Reference):
    """Checks the caller's bound when it allocates, and never again."""

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> list[Copy]:
        """Start `seq`, with no bound but the geometry's."""
        copies = super().allocate(seq, num_tokens, limit=limit)
        self._sequences[seq].limit = self._geometry.max_tokens
        return copies


class WritesUnreservedSlots(StoredReference):
    """A store that writes wherever a block of the sequence has a slot, reserved or not."""

    def _require_reserved(self, stop: int, length: int) -> None:
        pass


class AttendsToWholeBlocks(StoredReference):
    """A store whose attention forgets the length, and sees each block of the table to its end."""

    def attend(self, seq: int, query: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The attention of the last position, over too many."""
        sequence = self._sequence(seq)
        if not sequence.length:
            raise InvalidLength("there is nothing to attend to")
        rows = self._rows(seq, len(sequence.blocks) * self._block_size)
        return self._attention(np.asarray(query, np.float64), rows)


class FreesTheUnknown(Reference):
    """Freeing a sequence that is not there is taken for freeing nothing."""

    def free(self, seq: int) -> list[Copy]:
        """End `seq`, if there is one."""
        return super().free(seq) if seq in self._sequences else []


class SaysYesOrNo(Reference):
    """`can_allocate` answers a bool, which cannot tell LATER from NEVER."""

    def can_allocate(self, num_tokens: int) -> Any:
        """Whether `num_tokens` fit now."""
        return super().can_allocate(num_tokens) is Admission.OK


class AdmitsByPoolSize(Reference):
    """`can_allocate` looks at the size of the pool, and not at what is free."""

    def can_allocate(self, num_tokens: int) -> Admission:
        """OK for whatever an empty pool could hold."""
        answer = super().can_allocate(num_tokens)
        return Admission.OK if answer is Admission.LATER else answer


class ForksFullBlocksOnly(Reference):
    """A fork's child is given the full blocks, and not the partly filled tail."""

    def fork(self, parent: int, child: int) -> list[Copy]:
        """Start `child` without the tail of `parent`."""
        copies = super().fork(parent, child)
        sequence = self._sequences[child]
        if sequence.length % self._geometry.block_size:
            self._references[sequence.blocks.pop()] -= 1
        return copies


class CopiesForTheLastToo(DecidesForAllAtOnce):
    """A batch copies what is shared for the last writer too, unless it lacks the blocks."""

    def append_batch(self, seqs: Sequence[int], num_tokens: int | Sequence[int]) -> list[Copy]:
        """Append to each of `seqs`, and if that is refused as the reference does."""
        try:
            return super().append_batch(seqs, num_tokens)
        except OutOfBlocks:
            return Reference.append_batch(self, seqs, num_tokens)


class FreesTwice(Reference):
    """Each block that goes back is put on the free list twice, and the count does not show it."""

    def _give_back(self, blocks: list[int]) -> None:
        super()._give_back(blocks)
        super()._give_back(blocks)

    def _fits(self, count: int) -> bool:
        return count <= self.num_free_blocks()

    def num_free_blocks(self, pool: int = 0) -> int:
        """How many blocks are in no table and under no lease."""
        blocks = range(self._geometry.num_blocks)
        return sum(not self._references[b] and not self._leased(b) for b in blocks)


class CopiesBeforeEveryWrite(Reference):
    """A block that is written into is replaced by a copy, though no other table has it."""

    def _to_copy(self, sequence: SequenceState, length: int) -> list[int]:
        written = list(self._written(sequence, length))
        fits = self._fits(len(written) + self._growth(sequence, length))
        return written if fits else super()._to_copy(sequence, length)


class TakesFromTheTop(Reference):
    """Hands out the highest blocks first, so that a table runs downwards.

    Its contract promises consecutive ids, in the order of the table.
    """

    contract: ClassVar[Contract] = Contract(capabilities=("core",), placement="contiguous")

    def _pick(self) -> int:
        return self._free.pop(self._free.index(max(self._free)))


class FreesForAll(Reference):
    """Freeing a sequence takes its blocks out of every table, also of those that share them."""

    def free(self, seq: int) -> list[Copy]:
        """End `seq`, and the use of its blocks by others."""
        ended = self._sequence(seq)
        for other in self._sequences.values():
            if other is not ended:
                other.blocks = [block for block in other.blocks if block not in ended.blocks]
        return super().free(seq)


class RefusesAtFirst(Reference):
    """Each first request for blocks is refused, and only then are they looked for.

    Its contract allows any refusal, but no answer that is different a moment later.
    """

    contract: ClassVar[Contract] = Contract(reservation=Unspecified())

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self._collected = False

    def _take(self, count: int) -> list[int]:
        self._collected = not self._collected
        if count and self._collected:
            raise OutOfBlocks("the garbage has not been collected yet")
        return super()._take(count)


class ForgetsToReport(Reference):
    """A block is replaced before a write, but the caller is not told to copy its contents."""

    def _answer(self, copies: list[Copy]) -> list[Copy]:
        return []
