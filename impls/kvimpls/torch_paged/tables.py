"""Which blocks a sequence has: the tables of one KV group as a tensor, and a sequence's numbers."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from kvimpls.torch_paged.blocks import BlockPool, resized
from kvimpls.torch_paged.journal import Journal
from kvimpls.torch_paged.prefix import Content
from kvspec import Group

NONE = -1  # in a table: no block
_FIRST_ROWS = 8  # the sequences, and
_FIRST_COLUMNS = 16  # the blocks a sequence, that fit before the tables are first doubled


@dataclass(slots=True)
class Sequence:
    """What the host knows of one sequence; its blocks are in a row of the tables.

    The row's entries from `gone` (one number a group) on are blocks: those before were released
    since they lie before the window. While it is `swapped` out they are host blocks.
    """

    row: int
    length: int
    limit: int | None
    gone: tuple[int, ...]
    written: int = 0  # positions below it have contents
    marked: int = 0  # full blocks below it are published
    swapped: bool = False
    epoch: int = 0
    tokens: list[int] = field(default_factory=list)  # known ones, from the first on
    chain: list[Content] = field(default_factory=list)  # the root, and the contents of full blocks

    def forked(self, row: int) -> "Sequence":
        """A sequence in another row of which all the same is true."""
        return replace(self, row=row, tokens=[*self.tokens], chain=[*self.chain])

    def cut(self, length: int, block_size: int) -> None:
        """Forget what lies beyond `length`."""
        self.length = length
        self.written = min(self.written, length)
        self.marked = min(self.marked, length)
        del self.tokens[length:]
        del self.chain[length // block_size + 1 :]


class Tables:
    """The block tables of one KV group, a row a sequence, and their arithmetic.

    Blocks are numbered from 0 in their own `pool`, and from `start` where the caller sees them.
    Where a row has no block, its entry is `NONE`.
    """

    def __init__(
        self, group: Group, pool: BlockPool, start: int, columns: int, journal: Journal
    ) -> None:
        self.block_size = group.block_size
        self.window = group.window
        self.pool = pool
        self.start = start
        shape = (_FIRST_ROWS, min(columns, _FIRST_COLUMNS))
        self.entries = torch.full(shape, NONE, device=pool.stack.device)
        self._journal = journal

    def blocks_for(self, tokens: int) -> int:
        """The fewest blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def gone_before(self, position: int, gone: int) -> int:
        """How many entries lie wholly before the window of `position`, or were released earlier."""
        if self.window is None:
            return 0
        return max(gone, (position + 1 - self.window) // self.block_size)

    def needed_from(self, length: int) -> int:
        """The first entry that the window of a sequence of `length` tokens needs."""
        return 0 if self.window is None else max(0, length - self.window) // self.block_size

    def live(self, row: int, gone: int, length: int) -> Tensor:
        """The blocks of a row, a view of shape `(blocks,)`."""
        return self.entries[row, gone : self.blocks_for(length)]

    def shown(self, row: int, gone: int, length: int) -> list[int | None]:
        """A row as the caller sees it."""
        blocks: list[int | None] = self.live(row, gone, length).tolist()
        if self.start:
            blocks = [block + self.start for block in blocks if block is not None]
        released: list[int | None] = [None] * gone
        return released + blocks if gone else blocks

    def put(self, row: int, column: int, blocks: Tensor) -> None:
        """Set the entries of a row from `column` on, which there may not be yet."""
        stop = column + len(blocks)
        self._reach(stop)
        self._journal.keep(self.entries, (row, slice(column, stop)))
        self.entries[row, column:stop] = blocks

    def at(self, rows: list[int], columns: list[int]) -> Tensor:
        """The entries in these places, a copy."""
        places = torch.tensor((rows, columns), dtype=torch.int64, device=self.entries.device)
        return self.entries[places[0], places[1]]

    def put_each(
        self, rows: list[int], columns: list[int], counts: list[int], blocks: Tensor
    ) -> None:
        """Set so many entries of each of `rows`, from its column on, to the next of `blocks`."""
        self._reach(max(column + count for column, count in zip(columns, counts, strict=True)))
        before = np.cumsum(counts) - counts
        at = np.arange(len(blocks)) + np.repeat(columns - before, counts)
        places = torch.from_numpy(np.stack((np.repeat(rows, counts), at))).to(blocks.device)
        where = (places[0], places[1])
        self._journal.keep(self.entries, where)
        self.entries[where] = blocks

    def clear(self, row: int, column: int, stop: int) -> None:
        """Have no blocks in the columns `[column, stop)` of a row any more."""
        self._journal.keep(self.entries, (row, slice(column, stop)))
        self.entries[row, column:stop] = NONE

    def double_rows(self) -> None:
        """Have as many spare rows as there are rows."""
        self._journal.keep_fields(self, "entries")
        self.entries = resized(self.entries, 2 * len(self.entries), NONE)

    def _reach(self, columns: int) -> None:
        """Have at least so many columns, twice as many as before where they lack."""
        before = self.entries.shape[1]
        if columns > before:
            self._journal.keep_fields(self, "entries")
            columns = max(columns, 2 * before)
            self.entries = resized(self.entries.T, columns, NONE).T.contiguous()
