"""kvstream 0.1.0: pages that are shared are written into, and nothing copies them.

`BlockManager.fork` says that pages "are shared until one of them writes", and its `cow_write` is
the function for who writes. `append_slot`, "called before writing a new token's KV", looks at no
count, and no code of the package calls `cow_write`.

The engine shares whole pages only, but not all of them are full: a request whose prompt hit short
of its length (kvstream-hit-short-of-pages) is registered with a page that has fewer tokens than
its place in the prompt says, and two requests that hit it at once both write into its next slot.

The script runs the scheduler's own iterations, and around them what `KVStreamEngine.generate` does.
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
from kvstream.memory.prefix_cache import PrefixKVCache
from kvstream.scheduler.continuous_batch import ContinuousBatchScheduler, SeqStatus, SequenceGroup

manager = BlockManager(num_gpu_blocks=8, num_cpu_blocks=0, block_size=16)
cache = PrefixKVCache(manager)
scheduler = ContinuousBatchScheduler(manager, allow_preemption=False)


async def start(seq_id: str, prompt: list[int], new: int) -> int:
    """What `KVStreamEngine.generate` does for a prompt and `new` tokens; the length of the hit."""
    cached = 0
    if match := cache.match(prompt):
        cached = cache.fork_prefix(match, seq_id)
    sequence = SequenceGroup(seq_id, prompt, max_new_tokens=new)
    await scheduler.add_request(sequence)
    await scheduler.schedule()
    assert sequence.status is SeqStatus.RUNNING
    written[seq_id] = [manager.append_slot(seq_id) for _ in range(new)]
    return cached


async def end(seq_id: str, prompt: list[int]) -> None:
    """What the end of `generate` does, and the scheduler's next iteration."""
    cache.register(seq_id, prompt)
    next(seq for seq in scheduler.running if seq.seq_id == seq_id).status = SeqStatus.FINISHED
    await scheduler.schedule()


async def main() -> None:
    """A parent and its child; then four requests, of which the last two run at once."""
    manager.allocate("parent", 8)
    manager.fork("parent", "child")
    parent, child = manager.append_slot("parent"), manager.append_slot("child")
    print(f"token 8 of a parent is in {parent}, and that of its child in {child}")
    assert parent == child
    manager.free("parent")
    manager.free("child")

    first, second = list(range(16)), list(range(32))
    assert await start("one", first, new=1) == 0
    await end("one", first)

    assert await start("two", second, new=0) == 16
    written["two"] = [manager.append_slot("two") for _ in range(8)]
    page = manager.get_block_table("two")[1]
    await end("two", second)
    assert await start("three", second, new=1) == 32
    assert await start("four", second, new=1) == 32
    print(f"two more are told that 32 tokens are cached, in {manager.get_block_table('four')}")
    [three], [four] = written["three"], written["four"]
    print(f"the first token of one is in {three}, and that of the other in {four}")
    assert three == four == (page, 8)


written: dict[str, list[tuple[int, int]]] = {}
asyncio.run(main())
