"""kvboost 0.9.0: what an append took before it ran out of blocks is lost.

`append_kv_to_blocks` allocates block by block, into a copy of the table that is the answer only if
all goes well. Where `BlockAllocator.allocate` raises half way, nobody knows the blocks that were
taken. If the first was the copy of a shared block, the count of that one is lowered already, while
the caller's table still has it: freed by both owners it is on the free list twice, and two
sequences get it. The engine's loop, `CPUPagedEngine._decode_with_kv`, calls this function and asks
for no room before; in this version `generate` does not reach it (see kvboost-cached-prompt-kept).
"""

import os
import sys
from pathlib import Path
from types import ModuleType

import torch

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "kvboost"))
for place in map(Path, sys.path):
    if (place / "kvboost" / "cpu_paged").is_dir():  # without its models and servers
        for name in ("kvboost", "kvboost.cpu_paged"):
            module = sys.modules[name] = ModuleType(name)
            module.__path__ = [str(place / name.replace(".", "/"))]
        break

from kvboost.cpu_paged.block_allocator import BlockAllocator
from kvboost.cpu_paged.paged_attn_cpu import append_kv_to_blocks


def append(pool: BlockAllocator, table: list[int], length: int, tokens: int) -> str:
    """The refusal of so many tokens more."""
    new = torch.zeros(1, tokens, 8)
    try:
        append_kv_to_blocks(pool, 0, table, length, new, new)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was not refused")


pool = BlockAllocator(1, 1, 8, num_blocks=3, block_size=2)
table = pool.allocate(1)
print(append(pool, table, 2, 6))
pool.free(table)
print(f"the only sequence had {table} and is freed: {pool.free_blocks} of 3 blocks are free")
assert pool.free_blocks == 1

pool = BlockAllocator(1, 1, 8, num_blocks=2, block_size=2)
parent = pool.allocate(1)
child = pool.fork(parent)
print(append(pool, child, 1, 2), f"(the child has {child} as before)")
pool.free(parent)
pool.free(child)
first, second = pool.allocate(1), pool.allocate(1)
print(f"parent and child are freed; one sequence gets {first}, another {second}")
assert first == second
