"""kvstream 0.1.0: a sequence that is swapped out goes on growing, and cannot be swapped in again.

`KVStreamEngine.generate` calls `append_slot` for each token of the backend's stream, and nothing
stops the stream of a request that the scheduler has swapped out ("preempted/aborted concurrently"
is looked for as a `KeyError`, but a swapped sequence keeps its table). So its table gets a device
page after its host pages, or its host page is the one to write to. `swap_in` then looks for the
device page among the host's and raises `KeyError` out of `schedule`, with a device page taken from
the pool and the first pages moved already. The request stays swapped out, also in the iterations
after that.

The script runs the scheduler's own iterations as for a backend that supports hard injection
(`allow_preemption`), and `append_slot` as `generate` calls it.
"""

import asyncio
import os
import sys
from contextlib import suppress
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

manager = BlockManager(num_gpu_blocks=10, num_cpu_blocks=16, block_size=16)
cache = PrefixKVCache(manager)
scheduler = ContinuousBatchScheduler(manager, preemption_policy="swap")


async def start(seq_id: str, prompt: list[int]) -> SequenceGroup:
    """What `KVStreamEngine.generate` does until its request is admitted."""
    if match := cache.match(prompt):
        cache.fork_prefix(match, seq_id)
    sequence = SequenceGroup(seq_id, prompt, max_new_tokens=64)
    await scheduler.add_request(sequence)
    await scheduler.schedule()
    assert sequence.status is SeqStatus.RUNNING
    return sequence


def stream(sequence: SequenceGroup, tokens: int) -> None:
    """What `generate` does for each token of the backend."""
    for _ in range(tokens):
        sequence.output_tokens.append(0)
        with suppress(MemoryError):  # logged there: "KV page pool saturated mid-decode"
            manager.append_slot(sequence.seq_id)


async def end(sequence: SequenceGroup) -> None:
    """What `generate` does at the end, and the scheduler's next iteration."""
    if sequence.seq_id == "system prompt":
        cache.register(sequence.seq_id, sequence.prompt_tokens)
    sequence.status = SeqStatus.FINISHED
    await scheduler.schedule()


async def main() -> None:
    """One request is swapped out while others need its pages, streams on, and shall come back."""
    await end(await start("system prompt", list(range(16))))
    old = await start("old", list(range(96)))
    stream(old, 16)
    other = await start("other", [7] * 80)
    new = await start("new", [8] * 64)
    assert old.status is SeqStatus.SWAPPED
    print(f"swapped out: {manager.get_block_table('old')}, where 0 to 9 are the device's")
    assert min(manager.get_block_table("old")) >= 10

    await end(other)
    stream(old, 1)
    print(f"one more token: {manager.get_block_table('old')}")
    assert manager.get_block_table("old")[-1] < 10

    new.status = SeqStatus.FINISHED
    free = []
    for _ in range(3):
        try:
            await scheduler.schedule()
        except KeyError as error:
            free.append(manager.num_free_gpu_blocks())
            print(f"schedule() raised KeyError: {error}; {free[-1]} device pages are free")
    assert free
    assert scheduler.swapped == [old]
    assert not scheduler.running
    tables = {page for seq in manager._seq_states.values() for page in seq.logical_to_physical}
    lost = 10 - free[-1] - len({page for page in tables if page < 10})
    print(f"no request runs, and {lost} device pages are in no table and not free")
    assert lost >= 1


asyncio.run(main())
