"""The CPU paged cache of kvboost 0.9.0 (MIT), behind the interface.

The engine is `kvboost.cpu_paged`: `BlockAllocator` (block_allocator.py, its bookkeeping in Python,
which "mirrors" that of the optional extension), with `append_kv_to_blocks` and
`paged_attention_fwd` (paged_attn_cpu.py), and the life of a sequence in `CPUPagedEngine`
(cpu_engine.py). Nothing is checked and nothing repaired here: a fault of the engine comes through.
"""

from importlib import import_module
from typing import Any
from warnings import catch_warnings

import numpy as np
import numpy.typing as npt
import torch
from attrs import define, evolve

from kvimpls.adapters.engines import engine
from kvimpls.adapters.small import HEAD_DIM, HEADS, KV_HEADS, SmallHeads, blocks_only, one_thread
from kvspec import Contract, Geometries, Geometry, OutOfBlocks

with (
    engine(
        "kvboost",
        "0.9.0",
        bare=("kvboost", "kvboost.cpu_paged"),
        stand_ins=("transformers",),  # the source of its models, of which none is loaded here
    ),
    catch_warnings(action="ignore", category=FutureWarning),  # it probes what torch deprecates
):
    _block_allocator: Any = import_module("kvboost.cpu_paged.block_allocator")
    _paged_attn: Any = import_module("kvboost.cpu_paged.paged_attn_cpu")
    _cpu_engine: Any = import_module("kvboost.cpu_paged.cpu_engine")


@define
class _Sequence:
    """What `CPUPagedEngine._decode_with_kv` keeps of a sequence."""

    block_table: list[int]
    seq_len_in_pool: int


class KVBoostPool(SmallHeads):
    """`BlockAllocator` and `append_kv_to_blocks`: core, sharing, store and attention.

    Source: kvboost 0.9.0, cpu_paged/: block_allocator.py, paged_attn_cpu.py, chunk_to_blocks.py.
    """

    contract = Contract(
        # Chunks are found by ChunkBlockMapper, whose contents are those of another cache in memory:
        # it copies them into the pool, so publishing blocks is not what it does.
        capabilities=("core", "sharing", "store", "attention", "introspection"),
        # Tables are the caller's own lists, and no length or block id is checked: BlockAllocator
        # .free puts a block on the free list whose count is zero already.
        misuse="callers_duty",
        # Nothing bounds a sequence but the pool.
        geometries=Geometries(max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        blocks_only(geometry)
        self.allocator = _block_allocator.BlockAllocator(
            num_layers=1,
            num_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            num_blocks=geometry.num_blocks,
            block_size=geometry.block_size,
            dtype=torch.float32,
        )
        self.sequences: dict[int, _Sequence] = {}

    def __repr__(self) -> str:
        tables = {seq: one.block_table for seq, one in self.sequences.items()}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with blocks for `num_tokens`, as `ChunkBlockMapper.load_chunk` takes them."""
        try:
            blocks = self.allocator.allocate(-(-num_tokens // self.allocator.block_size))
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from error
        self.sequences[seq] = _Sequence(blocks, num_tokens)

    def append(self, seq: int, num_tokens: int) -> None:
        """Append zeros for `num_tokens` tokens, as `CPUPagedEngine._append_new_kv_to_pool` does."""
        sequence = self.sequences[seq]
        zeros = torch.zeros(KV_HEADS, num_tokens, HEAD_DIM)
        try:
            sequence.block_table, sequence.seq_len_in_pool = _paged_attn.append_kv_to_blocks(
                allocator=self.allocator,
                layer=0,
                block_table=sequence.block_table,
                slot_offset=sequence.seq_len_in_pool,
                k=zeros,
                v=zeros,
            )
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from error

    def free(self, seq: int) -> None:
        """End `seq`: its references are given back."""
        self.allocator.free(self.sequences.pop(seq).block_table)

    def fork(self, parent: int, child: int) -> None:
        """Start `child` with the blocks of `parent`: the engine's own "copy-on-write fork"."""
        origin = self.sequences[parent]
        blocks = self.allocator.fork(origin.block_table)
        self.sequences[child] = evolve(origin, block_table=blocks)

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`."""
        return list(self.sequences[seq].block_table)

    def num_free_blocks(self) -> int:
        """The blocks that the engine counts as free."""
        count: int = self.allocator.free_blocks
        return count

    def ref_count(self, block: int) -> int:
        """The engine's count; it keeps none of a free block."""
        return int(self.allocator._meta.ref_count_snapshot().get(block, 0))

    def free_blocks(self) -> list[int]:
        """The engine's own snapshot of its free blocks."""
        blocks: list[int] = self.allocator._meta.free_snapshot()
        return blocks

    def write(self, seq: int, start: int, values: npt.NDArray[Any]) -> None:
        """Store keys and values by `BlockAllocator.write_kv`, token by token."""
        table, size = self.sequences[seq].block_table, self.allocator.block_size
        for position, row in enumerate(np.array(values, dtype=self.dtype), start):
            keys, data = torch.from_numpy(row).reshape(2, KV_HEADS, HEAD_DIM)
            index, slot = divmod(position, size)
            self.allocator.write_kv(0, table[index], slot, keys, data)

    def read(self, seq: int) -> npt.NDArray[Any]:
        """What `BlockAllocator.read_kv` gathers for `seq`, one row a token."""
        sequence = self.sequences[seq]
        parts = self.allocator.read_kv(0, sequence.block_table, sequence.seq_len_in_pool)
        rows: npt.NDArray[Any] = torch.cat(
            [part.transpose(0, 1).flatten(1) for part in parts], 1
        ).numpy()
        return rows

    def attend(self, seq: int, query: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One query over all tokens of `seq`, by `paged_attention_fwd`."""
        sequence = self.sequences[seq]
        heads = torch.from_numpy(np.array(query, dtype=self.dtype)).reshape(1, HEADS, 1, HEAD_DIM)
        with one_thread():
            output = _paged_attn.paged_attention_fwd(
                heads, self.allocator, [sequence.block_table], [sequence.seq_len_in_pool], layer=0
            )
        values: npt.NDArray[Any] = output.reshape(HEADS, HEAD_DIM).numpy()
        return values


class KVBoostAsking(KVBoostPool):
    """The same pool, whose caller looks at `BlockAllocator.free_blocks` before it appends.

    Nothing in the engine does. This factory shows what lies behind an append refused half way.
    """

    def append(self, seq: int, num_tokens: int) -> None:
        """Append, unless the blocks that it needs, with that of a copy, are not free."""
        sequence, size = self.sequences[seq], self.allocator.block_size
        length, table = sequence.seq_len_in_pool, sequence.block_table
        need = -(-(length + num_tokens) // size) - len(table)
        if num_tokens and length % size and self.ref_count(table[-1]) > 1:
            need += 1
        if need > self.num_free_blocks():
            raise OutOfBlocks(f"{need} more blocks for sequence {seq}: {self!r}")
        super().append(seq, num_tokens)


class KVBoostEngine(KVBoostAsking):
    """The life of a sequence in `CPUPagedEngine._decode_with_kv`, its prompt cached: core.

    The prompt is loaded by `_load_past_kv_into_pool`, as where none of its chunks is found, and
    the sequence ends by `_free_sequence_blocks`.
    """

    contract = evolve(KVBoostPool.contract, capabilities=("core", "introspection"))

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.engine = object.__new__(_cpu_engine.CPUPagedEngine)
        self.engine.allocator = self.allocator
        self.engine._block_size = geometry.block_size
        self.cached_len: dict[int, int] = {}

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Load a prompt of `num_tokens` cached tokens, if there is any (as `_decode_with_kv`)."""
        zeros = torch.zeros(1, KV_HEADS, num_tokens, HEAD_DIM)
        table: list[int] = []
        if num_tokens > 0:
            try:
                table, _ = self.engine._load_past_kv_into_pool(((zeros, zeros),), num_tokens)
            except RuntimeError as error:
                raise OutOfBlocks(str(error)) from error
        self.sequences[seq] = _Sequence(table, num_tokens)
        self.cached_len[seq] = num_tokens

    def free(self, seq: int) -> None:
        """End `seq` as `_decode_with_kv` does."""
        table = self.sequences.pop(seq).block_table
        self.engine._free_sequence_blocks(table, self.cached_len.pop(seq))
