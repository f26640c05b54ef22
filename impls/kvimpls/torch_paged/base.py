"""What all operations have: the state, the checks before a change, and the steps of one.

Everything that can be refused is found before the first change; the order within an operation
is then: let go, take, copy, note. An allocator with a `checkpoint` runs each operation under the
journal, since then it may fail at any of the checkpoints between.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from kvimpls.torch_paged.blocks import BlockPool
from kvimpls.torch_paged.journal import Journal
from kvimpls.torch_paged.prefix import PrefixIndex
from kvimpls.torch_paged.store import Store
from kvimpls.torch_paged.tables import Sequence, Tables
from kvspec import (
    AllocatorError,
    Geometry,
    InvalidLength,
    NotResident,
    OutOfBlocks,
    SequenceExists,
    UnknownSequence,
)

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="Base")

Checkpoint = Callable[[str], None]


def atomic(
    operation: Callable[Concatenate[Self, P], R],
) -> Callable[Concatenate[Self, P], R]:
    """The operation, which a failing checkpoint leaves undone."""

    @wraps(operation)
    def whole_or_nothing(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._checkpoint is None:
            return operation(self, *args, **kwargs)
        return self._undoable(partial(operation, self, *args, **kwargs))

    return whole_or_nothing


class Base:
    """The pools, the tables of each group, the sequences, and the data where there are any."""

    def __init__(
        self,
        geometry: Geometry,
        device: torch.device,
        checkpoint: Checkpoint | None,
        store: Store | None,
        journal: Journal,
    ) -> None:
        self._checkpoint = checkpoint
        self._store = store
        self._journal = journal
        self._max_tokens = geometry.max_tokens
        self._index = PrefixIndex(geometry.block_size, self._journal)
        self._pools = [
            BlockPool(size, device, self._journal, self._index.remove) for size in geometry.pools
        ]
        self._groups: list[Tables] = []
        for g, group in enumerate(geometry.layout):
            pool = geometry.pool_of(g)
            columns = geometry.pools[pool]
            start = geometry.ids_of(pool).start
            self._groups.append(Tables(group, self._pools[pool], start, columns, self._journal))
        host_blocks = geometry.num_host_blocks
        self._host = BlockPool(host_blocks, device, self._journal, self._index.remove)
        self._windowed = any(tables.window is not None for tables in self._groups)
        self._sequences: dict[int, Sequence] = {}
        self._spare = list(range(len(self._groups[0].entries)))  # rows without a sequence

    def fingerprint(self) -> tuple[object, ...]:
        """All that decides what comes next: two with the same go on alike, whatever is called.

        So it has the order of the free blocks, and not the clock; and the rows of the tables in
        the order of the sequences that have them, then of those that will get them, and not their
        numbers. Leases are the caller's: of them it has the counts.
        """
        live = sorted(self._sequences.items())
        rows = [*[state.row for _, state in live], *self._spare]
        known = [
            (
                seq,
                (state.length, state.limit, state.gone, state.written, state.marked),
                (state.swapped, state.epoch == self._index.epoch, state.tokens),
            )
            for seq, state in live
        ]
        return (
            known,
            self._index.fingerprint([state.chain for _, state in live]),
            [pool.fingerprint() for pool in (*self._pools, self._host)],
            [tables.entries[rows].tolist() for tables in self._groups],
            None if self._store is None else self._store.fingerprint(),
        )

    # Checks: everything that can be refused comes before the first change.

    def _find(self, seq: int) -> Sequence:
        """What is known of `seq`."""
        state = self._sequences.get(seq)
        if state is None:
            raise UnknownSequence(f"no sequence {seq}")
        return state

    def _resident(self, seq: int) -> Sequence:
        """What is known of `seq`, which is on the device."""
        state = self._find(seq)
        if state.swapped:
            raise NotResident(f"sequence {seq} is swapped out")
        return state

    def _check_new(self, seq: int) -> None:
        if seq in self._sequences:
            raise SequenceExists(f"sequence {seq} is in use")

    def _check_length(self, tokens: int, limit: int | None) -> None:
        if limit is not None and tokens > limit:
            raise InvalidLength(f"{tokens} tokens are beyond the limit of {limit}")

    def _check_free(self, needs: list[int]) -> None:
        """Raise `OutOfBlocks` unless each pool has what its groups need, a number a group."""
        for pool, need in self._by_pool(needs):
            if need > pool.num_free:
                raise OutOfBlocks(f"{need} blocks needed, {pool.num_free} free")

    def _by_pool(self, needs: list[int]) -> list[tuple[BlockPool, int]]:
        """What the groups need as what the pools must have."""
        if len(needs) == 1:
            return [(self._pools[0], needs[0])]
        return [
            (pool, sum(n for t, n in zip(self._groups, needs, strict=True) if t.pool is pool))
            for pool in self._pools
        ]

    def _only_group(self) -> tuple[Tables, Store]:
        """The tables and the data of a geometry without groups; else `AllocatorError`."""
        if self._store is None:
            raise AllocatorError("with KV groups there are tables only")
        return self._groups[0], self._store

    def _blocks_of(self, state: Sequence) -> list[Tensor]:
        """The blocks of a sequence in each group, views."""
        return [
            tables.live(state.row, gone, state.length)
            for tables, gone in zip(self._groups, state.gone, strict=True)
        ]

    # Changes.

    def _may_fail(self, point: str) -> None:
        """Where the real counterpart of what comes next may fail."""
        if self._checkpoint is not None:
            self._checkpoint(point)

    def _undoable(self, operation: Callable[[], R]) -> R:
        """Run an operation under the journal, to which tensors report their changes themselves."""

        def with_numbers_kept() -> R:
            for pool in (*self._pools, self._host):
                pool.keep_numbers()
            return operation()

        return self._journal.run(with_numbers_kept)

    def _open(self, seq: int, length: int, limit: int | None) -> Sequence:
        """Start `seq`, whose tables are empty."""
        state = Sequence(
            self._open_row(),
            length,
            limit,
            gone=(0,) * len(self._groups),
            epoch=self._index.epoch,
            chain=[self._index.unkeyed],
        )
        return self._enter(seq, state)

    def _open_row(self) -> int:
        """A row without a sequence; where none is spare, the rows are doubled."""
        self._may_fail("opening a row")
        if not self._spare:
            rows = len(self._groups[0].entries)
            for tables in self._groups:
                tables.double_rows()
            self._journal.keep_way_back(self._spare.clear)
            self._spare.extend(range(rows, 2 * rows))
        return self._spare.pop()

    def _enter(self, seq: int, state: Sequence) -> Sequence:
        """Have `seq` from now on."""
        self._sequences[seq] = state
        self._journal.keep_way_back(partial(self._close, seq))
        return state

    def _close(self, seq: int) -> None:
        """End `seq`, whose tables are empty."""
        self._spare.append(self._sequences.pop(seq).row)

    def _fresh(self, pool: BlockPool, need: int) -> Tensor:
        """Take `need` blocks of a pool; a view, good until blocks are let go again."""
        if self._checkpoint is None:
            return pool.take(need)
        taken = pool.take(0)
        for _ in range(need):  # one after the other, since each may fail
            self._checkpoint("taking a block")
            taken = torch.cat((taken, pool.take(1)))
        return taken

    def _take(self, tables: Tables, row: int, column: int, need: int) -> Tensor:
        """Move `need` free blocks to a row's table, from `column` on; gives a view of them."""
        fresh = self._fresh(tables.pool, need)
        if need:
            tables.put(row, column, fresh)
        return fresh

    def _let_go(self, tables: Tables, row: int, column: int, stop: int) -> None:
        """Let go of the blocks in the columns `[column, stop)` of a row."""
        tables.pool.let_go("users", tables.entries[row, column:stop])
        tables.clear(row, column, stop)
