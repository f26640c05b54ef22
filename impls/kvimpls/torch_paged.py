"""A paged KV-cache allocator in torch: the blocks, the tables and the K/V data are tensors.

The layout is that of PagedAttention (Kwon et al., SOSP 2023): position `p` of a sequence lies
in slot `table[p // block_size] * block_size + p % block_size` of one pool of slots. No block
id is kept in a Python container and nothing loops over tokens or blocks, so that the same
code runs on an accelerator, where a loop would be one launch an element.
"""

import operator
import os
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvspec import (
    Admission,
    Copy,
    Geometry,
    InvalidLength,
    OutOfBlocks,
    SequenceExists,
    UnknownLease,
    UnknownSequence,
    UnsupportedGeometry,
)

_NONE = -1  # in a tensor: no block, no limit, no sequence in this row
_FIRST_ROWS = 8  # sequences that fit before the tables are first doubled
_INT64_MAX = 2**63 - 1


class Lease:
    """The blocks of one transfer in flight, shape `(blocks,)`; opaque to the caller.

    It belongs to the allocator that began it and is spent once `blocks` is `None`.
    """

    __slots__ = ("blocks", "owner")

    def __init__(self, owner: "TorchPaged", blocks: Tensor) -> None:
        self.owner = owner
        self.blocks: Tensor | None = blocks


class TorchPaged:
    """Hands out blocks of a pool of `num_blocks * block_size` slots of `width` values of `dtype`.

    Capabilities: core, sharing, lease, reservation, admission, store and attention. A slot holds
    the keys of all `n_kv_heads` heads, `d_k` numbers each, and then their values, `d_v` numbers
    each. The device is the argument, else `KVSPEC_DEVICE` from the environment, else the CPU.
    `dtype` is any torch float type that numpy has as well. Every error leaves everything as it
    was.

    A table has a column for each block that one sequence may ever hold, so a large pool wants
    a geometry with `max_tokens`. Raises `UnsupportedGeometry` for a window, groups or host
    blocks.

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

    def __init__(
        self,
        geometry: Geometry,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float16,
        n_heads: int = 4,
        n_kv_heads: int = 2,
        d_k: int = 8,
        d_v: int = 8,
    ) -> None:
        for name in ("window", "groups", "num_host_blocks"):
            if getattr(geometry, name):
                raise UnsupportedGeometry(f"TorchPaged has no {name}")
        if min(n_heads, n_kv_heads, d_k, d_v) < 1 or n_heads % n_kv_heads:
            shape = f"n_heads={n_heads}, n_kv_heads={n_kv_heads}, d_k={d_k}, d_v={d_v}"
            raise ValueError(
                f"{shape}: all are at least 1, and query heads share the others evenly"
            )
        if device is None:
            device = os.environ.get("KVSPEC_DEVICE") or "cpu"
        blocks = geometry.num_blocks
        self._num_blocks = blocks
        self._block_size = geometry.block_size
        self._max_tokens = _NONE if geometry.max_tokens is None else geometry.max_tokens
        columns = blocks
        if geometry.max_tokens is not None:
            columns = min(blocks, self._blocks_for(geometry.max_tokens))

        self.n_heads, self.n_kv_heads, self.d_k, self.d_v = n_heads, n_kv_heads, d_k, d_v
        width = n_kv_heads * (d_k + d_v)
        self._dtype = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
        self._pool = torch.zeros((blocks * self._block_size, width), dtype=dtype, device=device)

        # Free are the blocks at stack[:top]; they are taken from and put back at the top.
        self._stack = torch.arange(blocks, device=device)
        self._top = blocks
        self._users = torch.zeros_like(self._stack)  # tables that have the block
        self._leases = torch.zeros_like(self._stack)  # leases on it; it is free iff both are 0
        self._one = torch.ones(1, dtype=torch.int64, device=device)

        self._rows: dict[int, int] = {}  # sequence ids are sparse, rows are not
        self._tables = torch.full((_FIRST_ROWS, columns), _NONE, device=device)
        # Every decision asks for these two, so they live on the host: no wait for the device.
        self._lengths = torch.full((_FIRST_ROWS,), _NONE, device="cpu")
        self._limits = torch.full((_FIRST_ROWS,), _NONE, device="cpu")

    @property
    def width(self) -> int:
        """Values a token."""
        return self._pool.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the values that `read` gives."""
        return self._dtype

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> tuple[Copy, ...]:
        """Start `seq` with `num_tokens` reserved slots, never to be longer than `limit` tokens.

        Raises `SequenceExists`, `InvalidLength` (also for a limit below `num_tokens` or beyond
        `max_tokens`) or `OutOfBlocks`.
        """
        tokens = _whole(num_tokens)
        bound = self._max_tokens if limit is None else _whole(limit)
        if 0 <= self._max_tokens < bound:
            raise InvalidLength(f"a limit of {bound} tokens is beyond {self._max_tokens}")
        self._check_length(tokens, bound)
        self._check_new(seq)
        need = self._blocks_for(tokens)
        self._check_free(need)
        row = self._open_row(seq, tokens, bound)
        self._take(row, 0, need)
        return ()

    def append(self, seq: int, num_tokens: int) -> tuple[Copy, ...]:
        """Reserve slots for `num_tokens` more tokens of `seq`, after copying a shared last block.

        The copy is done when this returns; it is reported all the same. Raises
        `UnknownSequence`, `InvalidLength` or `OutOfBlocks`.
        """
        row, length = self._find(seq)
        tokens = _whole(num_tokens)
        total = length + tokens
        self._check_length(total, int(self._limits[row]))
        if not tokens:
            return ()
        column = self._blocks_for(length)  # of the first new table entry
        last = int(self._tables[row, column - 1]) if length % self._block_size else _NONE
        shared = last != _NONE and int(self._users[last]) > 1
        if shared:
            column -= 1  # the last entry too becomes a new one
        need = self._blocks_for(total) - column
        self._check_free(need)
        fresh = self._take(row, column, need)
        self._lengths[row] = total
        if not shared:
            return ()
        self._users[last] -= 1  # some other table has it, so that it does not become free
        copy = Copy(last, int(fresh[0]))
        self._block(copy.destination).copy_(self._block(copy.source))
        return (copy,)

    def fork(self, parent: int, child: int) -> tuple[Copy, ...]:
        """Start `child` with the tokens, the limit and, shared, the blocks of `parent`.

        Raises `UnknownSequence` or `SequenceExists`.
        """
        source, length = self._find(parent)
        self._check_new(child)
        row = self._open_row(child, length, int(self._limits[source]))
        blocks = self._held(row, length)
        blocks.copy_(self._held(source, length))
        self._count(self._users, blocks, 1)
        return ()

    def free(self, seq: int) -> tuple[Copy, ...]:
        """End `seq`; blocks in no other table and no lease can be handed out again.

        Raises `UnknownSequence`.
        """
        row, length = self._find(seq)
        blocks = self._held(row, length)
        self._release(self._users, blocks)
        blocks.fill_(_NONE)
        self._lengths[row] = _NONE
        del self._rows[seq]
        return ()

    def block_table(self, seq: int) -> list[int]:
        """The blocks of `seq` in the order of its positions, a snapshot; or `UnknownSequence`."""
        table: list[int] = self._held(*self._find(seq)).tolist()
        return table

    def num_free_blocks(self) -> int:
        """How many blocks are in no table and no lease."""
        return self._top

    def can_allocate(self, num_tokens: int) -> Admission:
        """What `allocate` of a new sequence would do: OK, LATER (not now), or NEVER."""
        tokens = _whole(num_tokens)
        need = self._blocks_for(tokens)
        if need > self._num_blocks or 0 <= self._max_tokens < tokens:
            return Admission.NEVER
        return Admission.OK if need <= self._top else Admission.LATER

    def begin_transfer(self, seq: int) -> Lease:
        """Lease the blocks that `seq` has now, until `end_transfer`; or `UnknownSequence`."""
        blocks = self._held(*self._find(seq)).clone()
        self._count(self._leases, blocks, 1)
        return Lease(self, blocks)

    def end_transfer(self, lease: object) -> tuple[Copy, ...]:
        """End one lease; `UnknownLease` for any object that is not an open lease of this pool."""
        if not isinstance(lease, Lease) or lease.owner is not self or lease.blocks is None:
            raise UnknownLease("no lease that this allocator began, or one that has ended")
        self._release(self._leases, lease.blocks)
        lease.blocks = None
        return ()

    def write(self, seq: int, start: int, values: Any) -> None:
        """Fill the reserved slots from position `start` with `values`, shape `(tokens, width)`.

        Values are converted to `dtype`. Raises `UnknownSequence`, or `InvalidLength` for
        another shape or for slots beyond the length.
        """
        row, length = self._find(seq)
        first = _whole(start)
        rows = self._rows_of(values)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise InvalidLength(f"values of shape {tuple(rows.shape)}, not (tokens, {self.width})")
        stop = first + len(rows)
        if stop > length:
            raise InvalidLength(f"writing [{first}, {stop}) of a sequence of {length} tokens")
        self._pool[self._slots(row, first, stop)] = rows

    def read(self, seq: int) -> npt.NDArray[Any]:
        """The values at all positions, shape `(length, width)`, a copy; or `UnknownSequence`.

        What was never written is unspecified.
        """
        row, length = self._find(seq)
        rows: npt.NDArray[Any] = self._pool[self._slots(row, 0, length)].cpu().numpy()
        return rows

    def attend(self, seq: int, query: Any) -> npt.NDArray[Any]:
        """The attention of the last position of `seq`, shape `(n_heads, d_v)`.

        `query` has the shape `(n_heads, d_k)`; the query head `h` reads the key-value head
        `h // (n_heads // n_kv_heads)`. Computed in float32 at least, and rounded to `dtype`
        once. Raises `UnknownSequence`, or `InvalidLength` for another shape or where nothing is
        written; all that was reserved is taken to be.
        """
        row, length = self._find(seq)
        wide = torch.promote_types(self._pool.dtype, torch.float32)
        asked = self._rows_of(query)
        if asked.shape != (self.n_heads, self.d_k):
            shape = tuple(asked.shape)
            raise InvalidLength(f"a query of shape {shape}, not ({self.n_heads}, {self.d_k})")
        if not length:
            raise InvalidLength(f"sequence {seq} has no tokens to attend to")
        rows = self._pool[self._slots(row, 0, length)].to(wide)
        part = self.n_kv_heads * self.d_k
        keys = rows[:, :part].view(length, self.n_kv_heads, self.d_k)
        values = rows[:, part:].view(length, self.n_kv_heads, self.d_v)
        grouped = asked.to(wide).view(self.n_kv_heads, -1, self.d_k)
        scores = grouped @ keys.permute(1, 2, 0) / self.d_k**0.5  # (kv head, query head, position)
        # Not torch's softmax, which wakes all threads for a handful of numbers.
        weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        outputs = weights @ values.transpose(0, 1) / weights.sum(dim=-1, keepdim=True)
        attended = outputs.reshape(self.n_heads, self.d_v).to(self._pool.dtype)
        answer: npt.NDArray[Any] = attended.cpu().numpy()
        return answer

    # Checks: everything that can fail comes before the first change.

    def _find(self, seq: int) -> tuple[int, int]:
        """The row and the length of `seq`."""
        row = self._rows.get(seq)
        if row is None:
            raise UnknownSequence(f"no sequence {seq}")
        return row, int(self._lengths[row])

    def _check_new(self, seq: int) -> None:
        if seq in self._rows:
            raise SequenceExists(f"sequence {seq} is in use")

    def _check_length(self, tokens: int, limit: int) -> None:
        if 0 <= limit < tokens:
            raise InvalidLength(f"{tokens} tokens are beyond the limit of {limit}")

    def _check_free(self, need: int) -> None:
        if need > self._top:
            raise OutOfBlocks(f"{need} blocks needed, {self._top} free")

    def _rows_of(self, values: Any) -> Tensor:
        """Values as a tensor like the pool, of any shape."""
        if isinstance(values, Tensor):
            return values.detach().to(self._pool)
        try:  # the copy is writable and in C order, which torch wants
            return torch.from_numpy(np.array(values, dtype=self._dtype, order="C")).to(self._pool)
        except (TypeError, ValueError) as error:
            raise InvalidLength("values are no array of shape (tokens, width)") from error

    # Arithmetic.

    def _blocks_for(self, tokens: int) -> int:
        """The fewest blocks that hold `tokens` tokens."""
        return -(-tokens // self._block_size)

    def _held(self, row: int, length: int) -> Tensor:
        """The blocks of a row, a view of shape `(blocks,)`."""
        return self._tables[row, : self._blocks_for(length)]

    def _slots(self, row: int, start: int, stop: int) -> Tensor:
        """The slots of positions `[start, stop)`, shape `(stop - start,)`."""
        positions = torch.arange(start, stop, device=self._tables.device)
        blocks = self._tables[row, positions // self._block_size]
        return blocks * self._block_size + positions % self._block_size

    def _block(self, block: int) -> Tensor:
        """The contents of one block, a view of shape `(block_size, width)`."""
        return self._pool[block * self._block_size : (block + 1) * self._block_size]

    # Changes. Only the doubling of the rows could fail, for memory, and it comes first.

    def _open_row(self, seq: int, length: int, limit: int) -> int:
        """Give `seq` a spare row, whose table is empty; where none is spare, double the rows."""
        if len(self._rows) == len(self._lengths):
            self._tables = _doubled(self._tables)
            self._limits = _doubled(self._limits)
            self._lengths = _doubled(self._lengths)
        row = int(self._lengths.argmin())  # a spare row has the least length of all, _NONE
        self._lengths[row] = length
        # A limit too large for the tensor never binds: the blocks run out first.
        self._limits[row] = limit if limit <= _INT64_MAX else _NONE
        self._rows[seq] = row
        return row

    def _take(self, row: int, column: int, need: int) -> Tensor:
        """Move `need` free blocks to a row's table, from `column` on; gives a view of them."""
        self._top -= need
        fresh = self._stack[self._top : self._top + need]
        if need:
            self._tables[row, column : column + need] = fresh
            self._users.index_fill_(0, fresh, 1)
        return fresh

    def _count(self, counts: Tensor, blocks: Tensor, by: int) -> None:
        """Add `by` to the count of each of `blocks`."""
        counts.index_add_(0, blocks, self._one.expand(len(blocks)), alpha=by)

    def _release(self, counts: Tensor, blocks: Tensor) -> None:
        """Take one from the count of each of `blocks`, and free those that nobody holds now."""
        self._count(counts, blocks, -1)
        idle = blocks[self._users[blocks] + self._leases[blocks] == 0]
        self._stack[self._top : self._top + len(idle)] = idle
        self._top += len(idle)


def _whole(number: SupportsIndex) -> int:
    """A number of tokens as an int: `InvalidLength` if it is negative or no integer."""
    try:
        whole = operator.index(number)
    except TypeError:
        raise InvalidLength(f"a {type(number).__name__} is no number of tokens") from None
    if whole < 0:
        raise InvalidLength(f"{whole} tokens")
    return whole


def _doubled(rows: Tensor) -> Tensor:
    """The rows, and as many spare ones behind them."""
    return torch.cat((rows, torch.full_like(rows, _NONE)))
