"""The data: a store over the reference, in numpy, and the attention over what it holds.

A row holds the key of the one key-value head and then its value. Slots are numbered through:
block `b` has the slots `[b * block_size, (b + 1) * block_size)`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvimpls.reference.allocator import Reference
from kvimpls.reference.paging import Entry, tokens_of
from kvspec import Copy, Geometry, InvalidLength

Rows = npt.NDArray[np.float32]
Slots = npt.NDArray[np.int64]


class StoredReference(Reference):
    """The reference with capabilities store and attention; right in all that it does.

    With KV groups there are tables only, and no data.

    >>> pool = StoredReference(Geometry(4, 2))
    >>> pool.allocate(0, 1), pool.write(0, 0, np.ones((1, pool.width))), pool.fork(0, 1)
    ([], None, [])
    >>> pool.append(1, 1), pool.read(1)[0, 0].item()
    ([Copy(source=0, destination=1)], 1.0)
    """

    n_heads: ClassVar[int] = 2
    n_kv_heads: ClassVar[int] = 1
    d_k: ClassVar[int] = 8
    d_v: ClassVar[int] = 8
    width: ClassVar[int] = 16
    dtype: ClassVar[str] = "float32"

    _ends: tuple[Rows, Rows] | None = None
    """From where to where copies go, while that is not within the device."""

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry, checkpoint=checkpoint)
        self._slots: Rows = self._zeros(geometry.num_blocks * geometry.block_size)
        self._host_slots: Rows = self._zeros(geometry.num_host_blocks * geometry.block_size)
        self._known: dict[int, int] = {}
        """By sequence, up to where it is written."""

    def write(self, seq: int, start: int, values: Any) -> None:
        """Fill reserved slots from position `start` on; what the window has left is dropped."""
        sequence, rows = self._resident(seq), np.asarray(values, self.dtype)
        first = tokens_of(start)
        self._require_reserved(first + len(rows), sequence.length)
        slots, there = self._places(sequence.blocks, first, first + len(rows))
        self._put(slots, rows[there])
        if first <= self._known[seq] < first + len(rows):
            self._known[seq] = first + len(rows)

    def read(self, seq: int) -> Rows:
        """The values at all positions, zero where the window has left."""
        return self._rows(seq, self._resident(seq).length)

    def attend(self, seq: int, query: Any) -> Rows:
        """The attention of the last written position of `seq`, as far as its blocks are there."""
        sequence, written = self._resident(seq), self._known[seq]
        if not written:
            raise InvalidLength(f"sequence {seq} has nothing written to attend to")
        gone = sum(entry is None for entry in sequence.blocks) * self._block_size
        first = max(gone, written - self._window) if self._window is not None else 0
        return self._attention(np.asarray(query, np.float64), self._rows(seq, written)[first:])

    # The rows.

    def _zeros(self, count: int) -> Rows:
        return np.zeros((count, self.width), np.float32)

    def _require_reserved(self, stop: int, length: int) -> None:
        if stop > length:
            raise InvalidLength(f"writing up to {stop} of {length} tokens")

    def _places(
        self, table: Sequence[Entry], start: int, stop: int
    ) -> tuple[Slots, npt.NDArray[np.bool_]]:
        """The slots of the positions from `start` to `stop`, and which of these have one."""
        positions = np.arange(start, stop)
        there = positions // self._block_size < len(table)
        blocks = np.array([-1 if entry is None else entry for entry in table], np.int64)
        found = np.full(len(positions), -1)
        found[there] = blocks[positions[there] // self._block_size]
        there = found >= 0
        return self._slots_of(found[there], positions[there] % self._block_size), there

    def _slots_of(self, blocks: Slots, offsets: Slots) -> Slots:
        return blocks * self._block_size + offsets

    def _put(self, slots: Slots, rows: Rows) -> None:
        self._slots[slots] = rows

    def _table(self, seq: int) -> list[Entry]:
        """The blocks in which the rows of `seq` are looked for."""
        return self._sequence(seq).blocks

    def _rows(self, seq: int, length: int) -> Rows:
        rows = self._zeros(length)
        slots, there = self._places(self._table(seq), 0, length)
        rows[there] = self._slots[slots]
        return rows

    def _attention(self, query: npt.NDArray[np.float64], rows: Rows, hidden: int = 0) -> Rows:
        """What a query gets from rows of which the last `hidden` are only there to fill up."""
        if len(rows) == hidden:
            return np.zeros((self.n_heads, self.d_v), np.float32)
        keys, values = np.split(rows.astype(np.float64), [self.d_k], axis=1)
        scores = query @ keys.T / np.sqrt(self.d_k)
        scores[:, len(rows) - hidden :] = -np.inf
        weights = np.exp(scores - scores[:, : len(rows) - hidden].max(axis=1, keepdims=True))
        outputs: Rows = (weights @ values / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        return outputs

    # The copies, which are done when everything else has succeeded.

    def _answer(self, copies: list[Copy]) -> list[Copy]:
        copies = super()._answer(copies)
        if len(self._groups) == 1:
            self._copy(copies, *(self._ends or (self._slots, self._slots)))
        return copies

    def _copy(self, copies: list[Copy], source: Rows, destination: Rows) -> None:
        size = self._block_size
        for copy in copies:
            rows = source[copy.source * size : (copy.source + 1) * size]
            destination[copy.destination * size : (copy.destination + 1) * size] = rows

    @contextmanager
    def _between(self, source: Rows, destination: Rows) -> Iterator[None]:
        """Copies go from one to the other meanwhile."""
        self._ends = source, destination
        try:
            yield
        finally:
            self._ends = None

    def swap_out(self, seq: int) -> list[Copy]:
        """Move `seq`, and what it has written, to host blocks."""
        with self._between(self._slots, self._host_slots):
            return super().swap_out(seq)

    def swap_in(self, seq: int) -> list[Copy]:
        """Move `seq`, and what it has written, back to device blocks."""
        with self._between(self._host_slots, self._slots):
            return super().swap_in(seq)

    def resize(self, num_blocks: int) -> list[Copy]:
        """Have `num_blocks` blocks; those that stay keep their contents."""
        answer = super().resize(num_blocks)
        kept = self._slots[: num_blocks * self._block_size]
        more = self._zeros(num_blocks * self._block_size - len(kept))
        self._slots = np.concatenate((kept, more))
        return answer

    # How far a sequence is written.

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> list[Copy]:
        """Start `seq`, of which nothing is written."""
        answer = super().allocate(seq, num_tokens, limit=limit)
        self._known[seq] = 0
        return answer

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq`, of which is written what was cached."""
        self._known[seq] = cached = super().allocate_prompt(seq, tokens, key)
        return cached

    def fork(self, parent: int, child: int) -> list[Copy]:
        """Start `child`, of which as much is written as of `parent`."""
        answer = super().fork(parent, child)
        self._known[child] = self._known[parent]
        return answer

    def truncate(self, seq: int, num_tokens: int) -> list[Copy]:
        """Keep the first tokens of `seq`, as far as they are written."""
        answer = super().truncate(seq, num_tokens)
        self._known[seq] = min(self._known[seq], num_tokens)
        return answer
