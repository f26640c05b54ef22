"""bllm-inference 0.1.0: freeing the sequence of slot 0 erases the cache of all others.

`PagedQwen.free_sequence` is to "clear contiguous cache for batch_idx=0 (single-sequence fast
path)" when that slot is freed. It calls `PagedKVCache.clear_contiguous()` without the slot, which
clears every slot of the batch: sequences that are still running lose their keys and values.

`PagedAttention.forward` keeps keys and values of all slots there. `Scheduler` frees blocks by
itself and does not call `free_sequence`; so this is reachable through the public API. A model is
not needed: the method is called with the four parts of one that it uses.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "bllm-inference"))

from bllm.attention.paged_attention import PagedAttention
from bllm.core import BlockAllocator, PagedCacheConfig, PagedKVCache, PageTable
from bllm.models.qwen import PagedQwen

cache = PagedCacheConfig(1, 1, 4, num_blocks=8, dtype=torch.float32, device="cpu")
model = SimpleNamespace(
    cache_config=cache,
    block_allocator=BlockAllocator(cache.num_blocks, cache.block_size),
    page_table=PageTable(cache.max_batch_size, cache.num_blocks, cache.block_size, "cpu"),
    kv_cache=PagedKVCache(cache),
)
attention = PagedAttention(num_heads=1, num_kv_heads=1, head_dim=4, block_size=cache.block_size)

for slot in (0, 1):
    assert PagedQwen.allocate_sequence(model, slot, total_len=16)
prompts = torch.ones(2, 5, 1, 4)
attention(
    prompts, prompts, prompts, model.kv_cache, model.page_table, 0, [0, 1], [0, 0], is_prefill=True
)
before, _ = model.kv_cache.read_contiguous(0, 5, batch_idx=1)
assert before.eq(1).all()
PagedQwen.free_sequence(model, 0)
after, _ = model.kv_cache.read_contiguous(0, 5, batch_idx=1)
assert model.page_table.get_num_blocks(1) == 1
assert after.eq(0).all()
print(f"slot 0 is freed, and the keys of slot 1, which has its block still, are {after.unique()}")
