"""mini-infer 0.2.5: evict_lru gives up the head of a prompt first; its tail is not found any more.

`insert_prefix_block` and `match_prefix` stamp the blocks of a prompt one by one from its head on,
so that the head has the oldest stamp and goes first. `match_prefix` looks from the head on, and
stops at the first block that is missing: one eviction loses the whole prompt, while the other
blocks stay taken by contents that nobody finds, until each has been evicted too. Hits are lost, no
contents.

Only through the public API: the engine itself never evicts (see mini-infer-cache-never-yields).
"""

import os
import sys
from pathlib import Path

WILD = Path(os.environ.get("KVSPEC_WILD", "build/wild"))
sys.path.insert(0, str(WILD / "mini-infer"))  # where it is unpacked; else as it is installed

import torch
from mini_infer.cache.block_pool import BlockPool, BlockTable
from mini_infer.cache.prefix_cache import PrefixCache

pool, cache = BlockPool(3, 2, 1, 1, 8, device=torch.device("cpu")), PrefixCache(2)
table, tokens = BlockTable(2), [1, 2, 3, 4, 5, 6]
for _ in tokens:
    table.append_slot(pool)
for index, block in enumerate(table.physical_block_ids):
    cache.insert_prefix_block(tuple(tokens[: 2 * (index + 1)]), block, pool)
table.free(pool)
print(f"a prompt of {len(tokens)} tokens is cached in {len(cache.cache)} blocks; nobody uses it")

assert cache.evict_lru(pool, 1) == 1
found = cache.match_prefix(tokens, pool)
print(f"one block is evicted: {found[1]} tokens are found, and {pool.num_free} block is free")
assert found == ([], 0)
assert pool.num_free == 1
assert len(cache.cache) == 2
