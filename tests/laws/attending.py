"""A store that computes attention, in numpy and position by position, and its faults.

Each fault is in `attend` alone: tables, copies and what is read are right.
"""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvimpls.reference import Reference
from kvspec import Contract, Copy, Geometry, InvalidLength

Values = npt.NDArray[np.floating[Any]]


class Attending(Reference):
    """A right store of four query heads, of which two share a key-value head."""

    contract: ClassVar[Contract] = Contract(
        capabilities=(
            *("core", "reservation", "admission", "sharing", "lease"),
            *("store", "attention"),
        )
    )
    n_heads: ClassVar[int] = 4
    n_kv_heads: ClassVar[int] = 2
    d_k: ClassVar[int] = 8
    d_v: ClassVar[int] = 4
    width: ClassVar[int] = 24
    dtype: ClassVar[str] = "float16"

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self._data = np.zeros((geometry.num_blocks, geometry.block_size, self.width), self.dtype)

    def _answer(self, copies: list[Copy]) -> list[Copy]:
        for copy in copies:
            self._data[copy.destination] = self._data[copy.source]
        return copies

    def _row(self, blocks: list[int], position: int) -> Values:
        size = self._geometry.block_size
        return self._data[blocks[position // size], position % size]

    def write(self, seq: int, start: int, values: Values) -> None:
        sequence = self._sequence(seq)
        if start < 0 or start + len(values) > sequence.length:
            raise InvalidLength("beyond the length")
        for position, row in enumerate(values, start=start):
            self._row(sequence.blocks, position)[:] = row

    def read(self, seq: int) -> Values:
        sequence = self._sequence(seq)
        rows = [self._row(sequence.blocks, p) for p in range(sequence.length)]
        return np.array(rows, self.dtype).reshape(-1, self.width)

    def attend(self, seq: int, query: Values) -> Values:
        if not self._sequence(seq).length:
            raise InvalidLength("nothing is written")
        rows = np.array(self._seen(seq), np.float32)
        part = self.n_kv_heads * self.d_k
        keys = rows[:, :part].reshape(-1, self.n_kv_heads, self.d_k)
        values = rows[:, part:].reshape(-1, self.n_kv_heads, self.d_v)
        outputs = []
        for head, q in enumerate(query.astype(np.float32)):
            shared = self._shared(head)
            scores = keys[:, shared] @ q / self._divisor()
            weights = np.exp(scores - scores.max())
            outputs.append(weights @ values[:, shared] / weights.sum())
        return np.array(outputs).astype(self.dtype)

    # What the faults change.

    def _seen(self, seq: int) -> list[Values]:
        sequence = self._sequence(seq)
        return [self._row(sequence.blocks, p) for p in range(sequence.length)]

    def _shared(self, head: int) -> int:
        return head // (self.n_heads // self.n_kv_heads)

    def _divisor(self) -> float:
        return float(np.sqrt(self.d_k))


class OneTooMany(Attending):
    """Sees the slot after the last position, where its block has one."""

    def _seen(self, seq: int) -> list[Values]:
        sequence = self._sequence(seq)
        room = len(sequence.blocks) * self._geometry.block_size
        reach = min(sequence.length + 1, room)
        return [self._row(sequence.blocks, p) for p in range(reach)]


class OneTooFew(Attending):
    """Does not see the last position, unless it is the only one."""

    def _seen(self, seq: int) -> list[Values]:
        return super()._seen(seq)[: max(1, self._sequence(seq).length - 1)]


class Interleaved(Attending):
    """Query heads take turns in reading key-value heads, where neighbours should share one."""

    def _shared(self, head: int) -> int:
        return head % self.n_kv_heads


class Unscaled(Attending):
    """The scores are not divided by the root of `d_k`."""

    def _divisor(self) -> float:
        return 1.0


class StaleBlock(Attending):
    """After a copy-on-write, attention goes on reading the block that was copied."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self._tables: dict[int, list[int]] = {}

    def _seen(self, seq: int) -> list[Values]:
        sequence = self._sequence(seq)
        table = self._tables.get(seq, [])
        table += sequence.blocks[len(table) :]  # only what is new is sent to the device
        return [self._row(table, p) for p in range(sequence.length)]

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> list[Copy]:
        copies = super().allocate(seq, num_tokens, limit=limit)
        self._tables[seq] = list(self._sequence(seq).blocks)
        return copies

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        copies = super().append(seq, num_tokens)
        table = self._tables[seq]
        table += self._sequence(seq).blocks[len(table) :]
        return copies

    def fork(self, parent: int, child: int) -> list[Copy]:
        copies = super().fork(parent, child)
        self._tables[child] = list(self._sequence(child).blocks)
        return copies


class NotANumber(Attending):
    """A row that is masked has weight 0, and 0 times what nobody wrote is NaN."""

    def attend(self, seq: int, query: Values) -> Values:
        outputs = super().attend(seq, query)
        if self._sequence(seq).length % self._geometry.block_size:
            outputs[-1] *= np.nan
        return outputs
