"""mini-infer 0.2.5: a token is appended in place to a block that has several references.

`BlockPool` keeps a count of references "for prefix caching / copy-on-write", but
`BlockTable.append_slot` does not look at it, and nothing copies. Only through the public API: the
engine itself shares full blocks and forks no sequence. (Its own write into a shared full block, of
the last token of a prompt that is cached whole, is that of mini-infer-hit-overwritten.)
"""

import os
import sys
from pathlib import Path

WILD = Path(os.environ.get("KVSPEC_WILD", "build/wild"))
sys.path.insert(0, str(WILD / "mini-infer"))  # where it is unpacked; else as it is installed

import torch
from mini_infer.cache.block_pool import BlockPool, BlockTable

pool = BlockPool(4, 2, 1, 1, 8, device=torch.device("cpu"))
parent = BlockTable(2)
parent.append_slot(pool)
child = BlockTable(2)
for block in parent.physical_block_ids:
    pool.retain_block(block)
    child.physical_block_ids.append(block)
child.num_tokens = parent.num_tokens
slots = parent.append_slot(pool), child.append_slot(pool)
print(f"block and slot of the parent's next token {slots[0]}, of the child's {slots[1]}")
assert pool.ref_counts[slots[0][0]] == 2
assert slots[0] == slots[1]
