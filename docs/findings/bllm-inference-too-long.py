"""bllm-inference 0.1.0: a request longer than `max_seq_len` takes blocks and slots for good.

`Scheduler.add_request` compares a request with the pool, not with `max_seq_len`.
`_try_admit_requests` then allocates its blocks and its slot of the batch, and only
`PageTable.set_mapping` raises `ValueError`, at the first block beyond its table. Nothing is given
back, and the request stays at the head of the queue: each further `schedule()` takes as much
again. When no slot or too few blocks are left, `schedule()` has no work any more, although no
request is running.

This is the engine's own loop: `InferenceEngine.generate` calls `add_request` and, in `_step`,
`schedule()`. With its defaults (1024 blocks of 16 tokens, `max_seq_len` 2048, 128 new tokens) a
prompt of 1921 tokens does it; below are these numbers.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "bllm-inference"))

from bllm.core import BlockAllocator, InferenceConfig, PagedCacheConfig, PageTable
from bllm.scheduler import InferenceRequest, Scheduler

cache, settings = PagedCacheConfig(1, num_kv_heads=1, head_dim=4), InferenceConfig()
blocks_per_seq = settings.max_blocks_per_seq(cache.block_size)
page_table = PageTable(settings.max_batch_size, blocks_per_seq, cache.block_size, "cpu")
allocator = BlockAllocator(cache.num_blocks, cache.block_size)
scheduler = Scheduler(cache, settings, allocator, page_table)


def raises() -> bool:
    """Whether a step of the engine raises."""
    try:
        scheduler.schedule()
    except ValueError:
        return True
    return False


assert scheduler.add_request(InferenceRequest("long", [7] * 1921))
assert raises()
print(f"after one request that was not admitted: {scheduler.get_stats()}")
assert scheduler.num_active == 0
assert allocator.num_free_blocks == 1024 - 129

scheduler.add_request(InferenceRequest("short", [7] * 10))
steps = 0
while raises():
    steps += 1
assert scheduler.num_active == 0
assert scheduler.num_pending == 2
assert allocator.num_free_blocks < 129
assert not scheduler.schedule().has_work
print(f"after {steps} more steps: {scheduler.get_stats()}, and no work is scheduled any more")
