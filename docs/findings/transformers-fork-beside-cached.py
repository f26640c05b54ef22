"""transformers 5.24: a fork is refused while the blocks that it needs are cached and nobody's.

`ContinuousBatchProcessor.update_batch` frees sectors "once to maximize the nb of free sectors
available for the forks" and calls `PagedAttentionCache.prepare_fork_request`, which counts the
pool's free blocks alone. Blocks that are kept for their contents are not among them until
`evict_cached_blocks` is called, as it is before a running request is denied a block ("cached blocks
are a bonus, never worth starving live requests"). Here nobody calls it, so that children of which
all blocks but the last could be shared go to the waiting queue, to be prefilled from scratch.
Nothing is lost but work and time.

It takes a request with `num_return_sequences`, beside what earlier requests left cached. The
scheduler is run here, and the part of `update_batch` that forks is called by itself. A scheduler
with a safety margin (the FIFO one has 15%) evicts when less than that is free, and so forks into
what that leaves: here 4 of 20 blocks, for 7 children.

Needed is transformers==5.24 with torch; no weights: the forward pass is left out.
"""

import torch
from transformers import PreTrainedConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

PAGE, BLOCKS, CHILDREN = 16, 20, 7
model = {"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 2, "hidden_size": 2}
cache = PagedAttentionCache(
    PreTrainedConfig.from_dict({**model, "vocab_size": 1}, attn_implementation="sdpa"),
    ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=BLOCKS, max_batch_tokens=512, max_memory_percent=1.0
    ),
    device="cpu",
    distributed_helper=DistributedHelper(device_mesh=None, cpu_group_timeout=None),
    dtype=torch.float16,
)
scheduler = FIFOScheduler(cache, safety_margin=None, max_requests_per_batch=8)


def prefill(state):
    """One step with this prompt, as `prepare_next_batch` and `update_batch` around a forward."""
    scheduler.add_waiting_request(state)
    (scheduled,), *_ = scheduler.schedule_batch(512, cache.max_tokens_read)
    state.position_offset += scheduled.query_length  # prepare_batch_tensors
    cache.mark_complete_blocks(state, scheduled.complete_blocks)


earlier = RequestState("earlier", list(range(14 * PAGE)))
prefill(earlier)
scheduler.finish_request("earlier")
cached = len(cache.cache_allocators["full_attention"].ledger.cached_blocks)
print(f"a request of {14 * PAGE} tokens has ended; {cached} of {BLOCKS} blocks are cached for it")
assert cached == 14

parent = RequestState("parent", [1000 + i for i in range(PAGE + 9)], num_children=CHILDREN)
prefill(parent)
assert parent.status == RequestStatus.PREFILLING
assert scheduler._requests_to_fork == [parent]
print(f"another has {CHILDREN} children; all of its prompt but one token is prefilled")

# The part of update_batch that forks.
cache.pool.try_to_free_sectors()
copies = {"full_attention": ([], [])}
names = [f"parent__child#{i}" for i in range(CHILDREN)]
forked = cache.prepare_fork_request(parent, names, copies)
assert len(forked) == 4
print(f"each needs one block: {len(forked)} were forked, {CHILDREN - len(forked)} must wait")

assert cache.evict_cached_blocks()
cache.pool.try_to_free_sectors()
forked = cache.prepare_fork_request(parent, names[4:], copies)
assert len(forked) == 3
print(f"once what is cached was evicted there is room for the other {len(forked)} too")
