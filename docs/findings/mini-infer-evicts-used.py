"""mini-infer 0.2.5: evict_lru gives up cached contents that are in use, and counts them as evicted.

It goes by the time of the last look-up alone. A block that a running request has is "evicted"
before one that nobody uses: its contents are not found any more, no block comes free, and the
answer is 1 all the same. Only through the public API: the engine itself never evicts (see
mini-infer-cache-never-yields).
"""

import os
import sys
from pathlib import Path

WILD = Path(os.environ.get("KVSPEC_WILD", "build/wild"))
sys.path.insert(0, str(WILD / "mini-infer"))  # where it is unpacked; else as it is installed

import torch
from mini_infer.cache.block_pool import BlockPool, BlockTable
from mini_infer.cache.prefix_cache import PrefixCache

pool, cache = BlockPool(2, 2, 1, 1, 8, device=torch.device("cpu")), PrefixCache(2)
used, idle = BlockTable(2), BlockTable(2)
for table, tokens in ((used, (1, 1)), (idle, (2, 2))):
    for _ in tokens:
        table.append_slot(pool)
    cache.insert_prefix_block(tokens, table.physical_block_ids[0], pool)
idle.free(pool)
evicted = cache.evict_lru(pool, 1)
print(f"evict_lru says {evicted}, and {pool.num_free} blocks are free")
assert evicted == 1
assert pool.num_free == 0
assert cache.match_prefix([1, 1], pool) == ([], 0)
print("the contents of the running request are not found any more; those of nobody are kept")
assert cache.match_prefix([2, 2], pool)[1] == 2
