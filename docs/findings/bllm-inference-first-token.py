"""bllm-inference 0.1.0: the first generated token is stored one position too far.

When the prompt is processed, `Scheduler.process_outputs` sets `cache_position` to its length, which
is where the next token belongs. Then it calls `SequenceState.append_token`, which adds 1. So the
first decode writes the keys and values of the first generated token to `prompt_len + 1`, and no
step ever writes position `prompt_len`. All later decodes attend to it: to zeros in a fresh cache,
to the padding of a batch of prompts, or to what the request before left in that slot of the batch,
since a slot is not cleared when its request completes.

This is the engine's own loop: the steps below are those of `InferenceEngine._step`, with rows of
ones in place of a model's keys and values. With `Scheduler` and `PagedAttention` only public
names are used.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "bllm-inference"))

from bllm.attention.paged_attention import PagedAttention
from bllm.core import BlockAllocator, InferenceConfig, PagedCacheConfig, PagedKVCache, PageTable
from bllm.scheduler import InferenceRequest, Scheduler

cache = PagedCacheConfig(1, num_kv_heads=1, head_dim=4, num_blocks=8, dtype=torch.float32)
cache.device = "cpu"
settings = InferenceConfig(max_batch_size=1, max_seq_len=64)
kv_cache = PagedKVCache(cache)
page_table = PageTable(1, settings.max_blocks_per_seq(cache.block_size), cache.block_size, "cpu")
allocator = BlockAllocator(cache.num_blocks, cache.block_size)
scheduler = Scheduler(cache, settings, allocator, page_table)
attention = PagedAttention(num_heads=1, num_kv_heads=1, head_dim=4, block_size=cache.block_size)


def step(mark: float) -> torch.Tensor:
    """One step of the engine, whose new rows of K and V are all `mark`; what attention gives."""
    work = scheduler.schedule()
    if work.prefill_requests:
        [request], slots, starts = work.prefill_requests, work.prefill_batch_indices, [0]
        rows = request.sequence.prompt_len
    else:
        [request], slots, rows = work.decode_requests, work.decode_batch_indices, 1
        starts = work.decode_start_positions
    new = torch.full((1, rows, 1, 4), mark)
    output = attention(
        new, new, new, kv_cache, page_table, 0, slots, starts, bool(work.prefill_requests)
    )
    scheduler.process_outputs({request.request_id: 7}, eos_token_id=0)
    return output[0, -1, 0, 0]


scheduler.add_request(InferenceRequest("first", [7] * 9, max_new_tokens=2))
step(5.0)
step(5.0)
assert scheduler.num_active == 0

scheduler.add_request(InferenceRequest("second", [7] * 4, max_new_tokens=4))
step(1.0)  # the prompt: positions 0 to 3
attended = step(1.0)  # the first generated token
written = kv_cache.k_cache_contig[0, 0, :6, 0, 0].tolist()
assert written == [1.0, 1.0, 1.0, 1.0, 5.0, 1.0]
assert attended > 1.0  # of values that are all 1, were it not for the other request's
print(f"keys at positions 0 to 5: {written}: position 4 is of the request before")
print(f"attention over 5 tokens whose values are all 1.0 gives {attended:.2f}")
