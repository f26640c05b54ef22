"""The whole allocator: sequences and blocks, cached contents, and the data that they are for."""

import os
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvimpls.torch_paged.arguments import whole
from kvimpls.torch_paged.base import atomic
from kvimpls.torch_paged.blocks import BlockPool
from kvimpls.torch_paged.caching import Caching
from kvimpls.torch_paged.journal import Journal
from kvimpls.torch_paged.store import Heads, Store
from kvspec import AllocatorError, Contract, Copy, Geometry, InvalidLength, OutOfBlocks


class TorchPaged(Caching):
    """Hands out blocks of a pool of `num_blocks * block_size` slots of `width` values of `dtype`.

    It has every capability. A slot holds the keys of all `n_kv_heads` heads, `d_k` numbers each,
    and then their values, `d_v` numbers each. The device is the argument, else `KVSPEC_DEVICE`
    from the environment, else the CPU. `dtype` is any torch float type that numpy has as well.
    Every error leaves everything as it was, what `checkpoint` raises among them.

    In a geometry with groups it has the tables and counts only: prefix, swap, resize, store and
    attention are `AllocatorError`s.

    >>> pool = TorchPaged(Geometry(4, 2), device="cpu", n_heads=1, n_kv_heads=1, d_k=1, d_v=1)
    >>> pool.allocate(7, 3), pool.block_table(7), pool.num_free_blocks()
    ((), [2, 3], 2)
    >>> pool.write(7, 0, [[1, 10], [2, 20], [3, 30]])
    >>> pool.fork(7, 8), pool.append(8, 1)  # the half-filled block is shared: it is copied first
    ((), (Copy(source=3, destination=1),))
    >>> pool.write(8, 3, [[4, 40]])
    >>> pool.block_table(8), pool.read(8)[:, 0].tolist()
    ([2, 1], [1.0, 2.0, 3.0, 4.0])
    >>> pool.attend(7, [[0]]).item(), pool.attend(8, [[0]]).item()  # means of the values
    (20.0, 25.0)
    """

    contract: ClassVar[Contract] = Contract(order="lru")

    def __init__(
        self,
        geometry: Geometry,
        *,
        checkpoint: Callable[[str], None] | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float16,
        n_heads: int = 4,
        n_kv_heads: int = 2,
        d_k: int = 8,
        d_v: int = 8,
    ) -> None:
        self._heads = Heads(n_heads, n_kv_heads, d_k, d_v)
        self._dtype = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
        where = torch.device(device or os.environ.get("KVSPEC_DEVICE") or "cpu")
        journal = Journal()
        store = None
        if geometry.groups is None:
            store = Store(geometry, self._heads.width, dtype, where, journal)
        super().__init__(geometry, where, checkpoint, store, journal)

    # Swap.

    @atomic
    def swap_out(self, seq: int) -> tuple[Copy, ...]:
        """Move `seq` to host blocks and let go of its device blocks; copies name (device, host).

        Raises `UnknownSequence`, `NotResident` or `OutOfBlocks`.
        """
        tables, store = self._only_group()
        state = self._resident(seq)
        [blocks] = self._blocks_of(state)
        host_blocks = self._claim(self._host, len(blocks))
        copies = self._moved(store.copy_out, blocks, host_blocks)
        tables.pool.let_go("users", blocks)
        tables.put(state.row, state.gone[0], host_blocks)
        state.swapped, state.marked = True, 0
        return copies

    @atomic
    def swap_in(self, seq: int) -> tuple[Copy, ...]:
        """Move `seq` back to device blocks of its own; copies name (host, device).

        Raises `UnknownSequence`, `OutOfBlocks`, or `AllocatorError` where it is not swapped out.
        """
        tables, store = self._only_group()
        state = self._find(seq)
        if not state.swapped:
            raise AllocatorError(f"sequence {seq} is not swapped out")
        [host_blocks] = self._blocks_of(state)
        blocks = self._claim(tables.pool, len(host_blocks))
        copies = self._moved(store.copy_in, host_blocks, blocks)
        self._host.let_go("users", host_blocks)
        tables.put(state.row, state.gone[0], blocks)
        state.swapped = False
        return copies

    def host_block_table(self, seq: int) -> list[int | None]:
        """The host blocks of `seq`, a snapshot; empty unless it is swapped out.

        Raises `UnknownSequence`.
        """
        state = self._find(seq)
        if not state.swapped:
            return []
        return self._groups[0].shown(state.row, state.gone[0], state.length)

    def num_free_host_blocks(self) -> int:
        """How many host blocks no sequence has."""
        return self._host.num_free

    # Resize.

    @atomic
    def resize(self, num_blocks: int) -> tuple[Copy, ...]:
        """Have the blocks `[0, num_blocks)`, with the contents they have.

        Cached contents beyond that are given up. Raises `InvalidLength` for fewer than one block,
        or `OutOfBlocks` where a table or a lease has one beyond.
        """
        tables, store = self._only_group()
        size = whole(num_blocks)
        if not size:
            raise InvalidLength("a pool has at least 1 block")
        if tables.pool.in_use_from(size):
            raise OutOfBlocks(f"blocks from {size} on are in use")
        self._may_fail("resizing the counts")
        tables.pool.resize(size)
        self._may_fail("resizing the store")
        store.resize(size)
        return ()

    # Store and attention.

    @property
    def width(self) -> int:
        """Values a token."""
        return self._heads.width

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the values that `read` gives."""
        return self._dtype

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self._heads.query

    @property
    def n_kv_heads(self) -> int:
        """Key-value heads, which the query heads share evenly."""
        return self._heads.kv

    @property
    def d_k(self) -> int:
        """Numbers in a key."""
        return self._heads.d_k

    @property
    def d_v(self) -> int:
        """Numbers in a value."""
        return self._heads.d_v

    def write(self, seq: int, start: int, values: Any) -> None:
        """Fill the reserved slots from position `start` with `values`, shape `(tokens, width)`.

        Values are converted to `dtype`; those whose blocks have been released are dropped, since
        nothing will see them. Raises `UnknownSequence`, `NotResident`, or `InvalidLength` for
        another shape or for slots beyond the length.
        """
        tables, store = self._only_group()
        state = self._resident(seq)
        first = whole(start)
        rows = store.rows_of(values)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise InvalidLength(f"values of shape {tuple(rows.shape)}, not (tokens, {self.width})")
        stop = first + len(rows)
        if stop > state.length:
            raise InvalidLength(f"writing [{first}, {stop}) of a sequence of {state.length} tokens")
        there = min(max(first, state.gone[0] * tables.block_size), stop)
        store.slots[store.slots_of(tables.entries[state.row], there, stop)] = rows[there - first :]
        if first <= state.written < stop:
            state.written = stop

    def read(self, seq: int) -> npt.NDArray[Any]:
        """The values at all positions, shape `(length, width)`, a copy.

        What was never written is unspecified, and zero where the block has been released. Raises
        `UnknownSequence` or `NotResident`.
        """
        tables, store = self._only_group()
        state = self._resident(seq)
        there = state.gone[0] * tables.block_size
        live = store.slots[store.slots_of(tables.entries[state.row], there, state.length)].cpu()
        rows: npt.NDArray[Any] = live.numpy()
        if not there:
            return rows
        return np.concatenate((np.zeros((there, self.width), self.dtype), rows))

    def attend(self, seq: int, query: Any) -> npt.NDArray[Any]:
        """The attention of the last written position of `seq`, shape `(n_heads, d_v)`.

        `query` has the shape `(n_heads, d_k)`; the query head `h` reads the key-value head
        `h // (n_heads // n_kv_heads)`. It sees what is written without a gap from the first
        position on (contents found in the cache are), or with a window the last of it, as far as
        its blocks are still there: of none, zeros. Raises `UnknownSequence`, `NotResident`, or
        `InvalidLength` for another shape or where nothing is written.
        """
        tables, store = self._only_group()
        state = self._resident(seq)
        asked = store.rows_of(query)
        if asked.shape != (self.n_heads, self.d_k):
            shape = tuple(asked.shape)
            raise InvalidLength(f"a query of shape {shape}, not ({self.n_heads}, {self.d_k})")
        if not state.written:
            raise InvalidLength(f"sequence {seq} has nothing written to attend to")
        first = state.gone[0] * tables.block_size
        if tables.window is not None:
            first = max(first, state.written - tables.window)
        if first >= state.written:  # nothing of it has been written since its window moved on
            return np.zeros((self.n_heads, self.d_v), self.dtype)
        rows = store.slots[store.slots_of(tables.entries[state.row], first, state.written)]
        answer: npt.NDArray[Any] = self._heads.attention(rows, asked).cpu().numpy()
        return answer

    def _claim(self, pool: BlockPool, need: int) -> Tensor:
        """Take `need` blocks of a pool, or raise `OutOfBlocks`; a view as `take` gives it."""
        if need > pool.num_free:
            raise OutOfBlocks(f"{need} blocks needed, {pool.num_free} free")
        return self._fresh(pool, need)

    def _moved(
        self, copy: Callable[[Tensor, Tensor], None], sources: Tensor, destinations: Tensor
    ) -> tuple[Copy, ...]:
        """Copy blocks between the tiers, all at once unless each may fail."""
        if self._checkpoint is None:
            copy(sources, destinations)
        else:
            for i in range(len(sources)):
                self._may_fail("copying a block between the tiers")
                copy(sources[i : i + 1], destinations[i : i + 1])
        return tuple(map(Copy, sources.tolist(), destinations.tolist()))
