"""kvstream 0.1.0: a prompt that hits the prefix cache gets no pages for the rest of its tokens.

`KVStreamEngine.generate` forks the pages of the hit for the new sequence, and
`ContinuousBatchScheduler.schedule` admits a sequence that has pages "without re-allocating". So
its table ends where the hit ended: `append_slot` puts the first generated token where the prompt
goes on, and admission has not counted the rest of the prompt.

What follows is shown as well. When such a request ends, `register` takes the pages by their number
in the prompt: the page of the prompt's second 16 tokens holds the 8 generated ones. It is filed
under the hash of the prompt, so that a later request is told that it has 32 tokens cached. (That
two of them write into one slot of it is another fault: kvstream-no-copy-on-write.)
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
    """Three requests with one system prompt, one after the other."""
    first, second = list(range(16)), list(range(32))
    assert await start("one", first, new=1) == 0
    await end("one", first)

    assert await start("two", second, new=0) == 16
    table = manager.get_block_table("two")
    print(f"a prompt of {len(second)} tokens, 16 of them a hit, has {len(table)} page of 16")
    assert len(table) == 1

    written["two"] = [manager.append_slot("two") for _ in range(8)]
    page = manager.get_block_table("two")[1]
    print(f"its first generated token, number 32, is in {written['two'][0]}: entry 1, slot 0")
    assert written["two"][0] == (page, 0)

    await end("two", second)
    assert await start("three", second, new=0) == 32
    print(f"the next is told that 32 tokens are cached, in {manager.get_block_table('three')}")
    assert manager.get_block_table("three")[1] == page


written: dict[str, list[tuple[int, int]]] = {}
asyncio.run(main())
