"""Faults of the data plane: the tables are right, and what is read through them is not."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvimpls.reference.paging import Entry
from kvimpls.reference.store import Rows, Slots, StoredReference
from kvimpls.unusual import WITHOUT_MORE, Relocating
from kvspec import Contract, Copy, Geometry

LANES = 4
"""So many rows are written or read at once; what is missing of them is padding."""


class CopiesBeforeTheWriteLands(StoredReference):
    """What is swapped out right after a write is what had been there before it.

    vllm-project/vllm#46278: the copy to the host was not ordered after the kernel that writes.
    """

    _slots_before: tuple[Slots, Rows] | None = None

    def _put(self, slots: Slots, rows: Rows) -> None:
        self._slots_before = slots, self._slots[slots]
        super()._put(slots, rows)

    def _answer(self, copies: list[Copy]) -> list[Copy]:
        self._slots_before = None
        return super()._answer(copies)

    def swap_out(self, seq: int) -> list[Copy]:
        """Move `seq` to host blocks, but for what is still on its way into the device's."""
        late = self._slots_before
        if late is None:
            return super().swap_out(seq)
        slots, before = late
        landed = self._slots[slots]
        self._slots[slots] = before
        try:
            return super().swap_out(seq)
        finally:
            self._slots[slots] = landed


class LastCopyOnly(StoredReference):
    """Of several copies that one call needs the last takes the place of the others.

    ggml-org/llama.cpp#3825, of shifts of positions, which the interface does not have: a second
    one that came before the first was carried out replaced it.
    """

    def _copy(self, copies: list[Copy], source: Rows, destination: Rows) -> None:
        super()._copy(copies[-1:], source, destination)


class DefragmentsBackwards(StoredReference, Relocating):
    """Compaction moves blocks in the wrong order, over others that have yet to be read.

    ggml-org/llama.cpp#12253.
    """

    contract: ClassVar[Contract] = Contract(
        capabilities=(*WITHOUT_MORE, "store", "attention"), relocates=True
    )

    def _copy(self, copies: list[Copy], source: Rows, destination: Rows) -> None:
        super()._copy(copies[::-1], source, destination)


class NarrowOffsets(StoredReference):
    """The offset of a slot is computed in a type that is too narrow for the end of the pool.

    vllm-project/vllm#1486: 32 bits, and a pool of gigabytes. Here it is 8 bits, and a pool of
    some hundred numbers.
    """

    def _slots_of(self, blocks: Slots, offsets: Slots) -> Slots:
        numbers = super()._slots_of(blocks, offsets) * self.width
        return ((numbers + 128) % 256 - 128) // self.width


class PaddingWraps(StoredReference):
    """The padding of a write goes to slot -1, which is the last slot of the last block.

    vllm-project/vllm#43810.
    """

    def _put(self, slots: Slots, rows: Rows) -> None:
        super()._put(slots, rows)
        padding = -len(rows) % LANES
        super()._put(np.full(padding, -1), self._zeros(padding))


class PoisonedPadding(StoredReference):
    """Padding is written into a reserved row and read from it, where no weight makes up for a NaN.

    sgl-project/sglang#32477: zero times what was never defined is not zero.
    """

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry, checkpoint=checkpoint)
        self._reserved: Rows = self._zeros(1)

    def _put(self, slots: Slots, rows: Rows) -> None:
        super()._put(slots, rows)
        if len(rows) % LANES:
            self._reserved[:] = np.nan

    def _attention(self, query: npt.NDArray[np.float64], rows: Rows, hidden: int = 0) -> Rows:
        padding = -len(rows) % LANES
        filled = np.concatenate((rows, np.repeat(self._reserved, padding, axis=0)))
        return super()._attention(query, filled, hidden + padding)


class RowsOnlyForHits(StoredReference):
    """While a sequence that began with a hit lives, the others are read in block 0.

    vllm-project/vllm#7018: the tables of a batch were built for those with a hit, and those of
    the others were rows of zeros.
    """

    _hits: frozenset[int] = frozenset()

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq`; how many leading tokens were cached."""
        cached = super().allocate_prompt(seq, tokens, key)
        self._hits = self._hits.difference({seq}).union({seq} if cached else ())
        return cached

    def _table(self, seq: int) -> list[Entry]:
        table = super()._table(seq)
        mixed = self._hits.intersection(self._sequences) and seq not in self._hits
        return [None if entry is None else 0 for entry in table] if mixed else table


class WritesWhatWasNeverReserved(StoredReference):
    """A write goes as far as the blocks of the table do, beyond the length.

    No public report of this is known to us.
    """

    def _require_reserved(self, stop: int, length: int) -> None:
        pass
