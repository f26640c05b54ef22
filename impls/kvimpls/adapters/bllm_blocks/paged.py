"""Sequences: blocks that a caller without a scheduler takes, and rows in pages."""

from types import SimpleNamespace
from typing import Any

import torch
from attrs import evolve

from kvimpls.adapters.bllm_blocks.published import (
    BlockAllocator,
    PagedAttention,
    PagedKVCache,
    PagedQwen,
    cache_config,
    inference_config,
    keys_and_values,
    page_table,
    rows,
)
from kvimpls.adapters.small import HEAD_DIM, KV_HEADS, one_thread
from kvspec import Contract, Exact, Geometry, OutOfBlocks


class Sequences:
    """The calls for sequences without a scheduler, in pages: core, reservation, store, attention.

    `PagedQwen` is a model, of which `allocate_sequence` and `free_sequence` use the four parts
    that are put together here as its `__init__` does. A sequence of no tokens has no blocks yet.

    Source: bllm-inference 0.1.0, models/qwen.py, core/page_table.py, core/kv_cache.py and
    attention/paged_attention.py.
    """

    contract: Contract = Contract(
        # Not sharing and not admission, as above.
        capabilities=("core", "reservation", "store", "attention"),
        # PagedQwen.allocate_sequence: blocks for "total expected length (prompt + generation)".
        # PageTable.append_blocks adds more where there was none.
        reservation=Exact(),
        # The slot in the batch is the caller's to choose, and PageTable checks only that there is
        # such a slot: set_mapping overwrites one in use. No length is checked, and write_batch
        # takes the table's -1, "an unallocated block", for an index like others.
        misuse="callers_duty",
    )

    width = 2 * KV_HEADS * HEAD_DIM
    dtype = "float32"
    n_heads = 2 * KV_HEADS
    n_kv_heads = KV_HEADS
    d_k = HEAD_DIM
    d_v = HEAD_DIM

    def __init__(self, geometry: Geometry) -> None:
        config, inference = cache_config(geometry), inference_config(geometry)
        self.page_table: Any = page_table(config, inference)
        self.allocator: Any = BlockAllocator(config.num_blocks, config.block_size)
        self.kv_cache: Any = PagedKVCache(config)
        self.model: Any = SimpleNamespace(
            cache_config=config,
            block_allocator=self.allocator,
            page_table=self.page_table,
            kv_cache=self.kv_cache,
        )
        self.attention: Any = PagedAttention(
            self.n_heads, self.n_kv_heads, HEAD_DIM, config.block_size, use_flex_attention=False
        )
        self.free_slots = set(range(inference.max_batch_size))  # as BatchManager._free_slots
        self.slots: dict[int, int] = {}
        self.lengths: dict[int, int] = {}
        self.limits: dict[int, int | None] = {}

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.slots}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> None:
        """Start `seq` with blocks for `limit` tokens, or for those that it has."""
        slot = min(self.free_slots)  # BatchManager.get_free_slot
        self._begun(slot, num_tokens, limit)
        self.free_slots.remove(slot)
        self.slots[seq], self.lengths[seq], self.limits[seq] = slot, num_tokens, limit

    def _begun(self, slot: int, num_tokens: int, limit: int | None) -> None:
        total = num_tokens if limit is None else limit
        if num_tokens and not PagedQwen.allocate_sequence(self.model, slot, total):
            raise OutOfBlocks(f"{self.num_free_blocks()} blocks are free")

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for `num_tokens` more tokens of `seq`."""
        slot, length = self.slots[seq], self.lengths[seq]
        if length == 0:
            self._begun(slot, num_tokens, self.limits[seq])
        else:
            held = self.page_table.get_num_blocks(slot)
            needed = self.model.cache_config.blocks_needed(length + num_tokens) - held
            if not self.allocator.can_allocate(needed):  # as PagedQwen.allocate_sequence asks
                raise OutOfBlocks(f"{self.num_free_blocks()} blocks are free")
            self.page_table.append_blocks(slot, self.allocator.allocate(needed))
        self.lengths[seq] = length + num_tokens

    def free(self, seq: int) -> None:
        """End `seq`."""
        slot = self.slots.pop(seq)
        del self.lengths[seq], self.limits[seq]
        PagedQwen.free_sequence(self.model, slot)
        self.free_slots.add(slot)

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`."""
        blocks: list[int] = self.page_table.get_physical_blocks(self.slots[seq])
        return blocks

    def num_free_blocks(self) -> int:
        """The blocks that the engine counts as free."""
        count: int = self.allocator.num_free_blocks
        return count

    def write(self, seq: int, start: int, values: Any) -> None:
        """Write rows through the page table, which is told how long the sequence now is."""
        keys, numbers = keys_and_values(values)
        slot = self.slots[seq]
        self.kv_cache.write_batch(0, self.page_table, [slot], [start], keys[None], numbers[None])
        self.page_table.set_seq_length(slot, start + len(keys))

    def read(self, seq: int) -> Any:
        """All rows of `seq`, as `PagedAttention.forward_naive` reads them."""
        table = self.page_table.get_batch_page_table([self.slots[seq]])
        length = self.lengths[seq]
        keys, values = self.kv_cache.read_paged(0, table, torch.tensor([length]), length)
        return rows(keys[0], values[0])

    def attend(self, seq: int, query: Any) -> Any:
        """The attention of the last position of `seq`, by the engine's own reading of pages."""
        rows = torch.tensor(query, dtype=torch.float32)[None, None]
        slots = [self.slots[seq]]
        with one_thread():
            output = self.attention.forward_naive(rows, self.kv_cache, self.page_table, 0, slots)
        return output[0, 0].numpy()


class ContiguousSequences(Sequences):
    """The same calls, with rows in the contiguous cache, as `PagedAttention.forward` writes them.

    `PagedQwen.free_sequence` clears that cache, not the pages. Attention is left out: a decode
    writes and attends in one call.
    """

    contract = evolve(Sequences.contract, capabilities=("core", "reservation", "store"))

    def write(self, seq: int, start: int, values: Any) -> None:
        """Write rows into the sequence's slot of the batch."""
        self.kv_cache.write_contiguous(0, start, *keys_and_values(values), self.slots[seq])

    def read(self, seq: int) -> Any:
        """All rows of `seq`."""
        slot = self.slots[seq]
        return rows(*self.kv_cache.read_contiguous(0, self.lengths[seq], slot))
