"""kvstream 0.1.0: `swap_out` that runs out of host pages leaves the sequence half moved.

`BlockManager.swap_out` moves page after page and raises `MemoryError` at the first for which there
is no host page. The pages before it are on the host by then and their device pages are free, but
the mapping that says which contents to copy is lost with the exception.

The scheduler calls it without asking for room (`schedule`, step 1, with `allow_preemption`, as for
the llama.cpp backend): the sequence stays in `running` with pages of both tiers, and its device
page goes to the next request.
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

GPU, CPU = range(2), range(2, 3)


async def scheduled() -> None:
    """A request with two pages, one host page, and a second request that needs the device."""
    manager = BlockManager(num_gpu_blocks=len(GPU), num_cpu_blocks=len(CPU), block_size=16)
    scheduler = ContinuousBatchScheduler(manager, preemption_policy="swap")
    await scheduler.add_request(SequenceGroup("old", [0] * 32, max_new_tokens=8))
    await scheduler.schedule()
    before = manager.get_block_table("old")
    await scheduler.add_request(SequenceGroup("new", [0] * 16, max_new_tokens=8))
    try:
        await scheduler.schedule()
    except MemoryError as error:
        print(f"schedule() raised MemoryError: {error}")
    else:
        raise AssertionError("swap_out was refused without an error")

    table = manager.get_block_table("old")
    print(f"the table of the running request was {before} and is {table}; page 2 is on the host")
    assert [seq.seq_id for seq in scheduler.running] == ["old"]
    assert table[0] in CPU
    assert table[1] in GPU
    assert manager.num_free_gpu_blocks() == 1

    await scheduler.schedule()  # it fits now, in the page that was taken from the other
    print(f"the new request has {manager.get_block_table('new')}")
    assert manager.get_block_table("new") == before[:1]
    assert [seq.seq_id for seq in scheduler.running] == ["old", "new"]


asyncio.run(scheduled())
