"""kvstream 0.1.0: a sequence of no tokens gets a page, and its first token lies in another one.

`BlockManager._pages_for` takes at least one page, also for no tokens. `append_slot` asks for a
fresh page whenever the length is a multiple of the block size, and 0 is one: so the first token is
written to page 1 of the table, while position 0 of the sequence is page 0, which nobody writes.

The scheduler does this for an empty prompt, which is shown as well: `generate("")` tokenizes to no
tokens, `schedule` allocates, and `generate` calls `append_slot` for each token.
"""

import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "kvstream"))
for place in [Path(path) / "kvstream" for path in sys.path]:
    if (place / "memory").is_dir():  # the package's own __init__ imports its web server
        sys.modules["kvstream"] = ModuleType("kvstream")
        sys.modules["kvstream"].__path__ = [str(place)]
        break

from kvstream.memory.block_manager import BlockManager
from kvstream.scheduler.continuous_batch import ContinuousBatchScheduler, SequenceGroup


async def scheduled() -> BlockManager:
    """One request with an empty prompt, admitted by the scheduler."""
    manager = BlockManager(num_gpu_blocks=4, num_cpu_blocks=0, block_size=16)
    scheduler = ContinuousBatchScheduler(manager)
    await scheduler.add_request(SequenceGroup("empty", [], max_new_tokens=1))
    await scheduler.schedule()
    return manager


manager = asyncio.run(scheduled())
assert len(manager.get_block_table("empty")) == 1
page, slot = manager.append_slot("empty")
table = manager.get_block_table("empty")
assert len(table) == 2
assert (page, slot) == (table[1], 0)
print(f"1 token, {len(table)} pages {table}: the token is in page {page}, entry 1 of the table")

full = BlockManager(num_gpu_blocks=1, num_cpu_blocks=0, block_size=16)
assert full.allocate("other", 16)
assert not full.can_allocate(0)
assert not full.allocate("empty", 0)
print("and in a full pool a sequence of no tokens is refused")
