"""lmdeploy 0.18.0: eviction from the prefix cache is least recently used by whole seconds only.

`LogicalMemory.access_time` is an array of `int64`, and `LogicalAllocator.update_access_time` puts
`time.perf_counter()` there, which is a float in seconds: the fraction is lost. All blocks used
within one second have one access time, and `KVBlockLifecycle.evict` ("Evict least-recently-used
trie-owned KV leaf blocks") then decides by `id(node)`, the address of a Python object. A server
handles hundreds of requests in a second.

Reached through the engine's own scheduler: of 8 cached prompts, the one that was used last is
evicted first.

Needed are the Python files of lmdeploy==0.18.0, and numpy, torch and transformers; no model.
"""

import os
import sys
import time
from pathlib import Path
from types import ModuleType

BARE = " .vl .pytorch .pytorch.disagg .pytorch.disagg.conn .pytorch.engine .pytorch.strategies"
sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild"), "lmdeploy")))
for name in (BARE + " .pytorch.strategies.ar").split(" "):  # packages without their __init__
    package = sys.modules["lmdeploy" + name] = ModuleType("lmdeploy" + name)
    package.__path__ = [str(Path(place, *package.__name__.split("."))) for place in sys.path]
agent = sys.modules["lmdeploy.pytorch.engine.model_agent"] = ModuleType("model_agent")
agent.BatchedOutputs = object  # an annotation of the model agent, which is not loaded

import numpy as np
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.messages import SequenceMeta, UpdateTokenMode
from lmdeploy.pytorch.paging.scheduler import Scheduler
from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

BLOCK, PROMPTS = 4, 8
scheduler = Scheduler(
    SchedulerConfig(max_batches=8, max_session_len=1000),
    CacheConfig(
        max_batches=8,
        block_size=BLOCK,
        num_cpu_blocks=0,
        num_gpu_blocks=2 * PROMPTS,
        enable_prefix_caching=True,
    ),
    seq_meta=SequenceMeta(BLOCK, strategy=ARSequenceStrategy()),
)
allocator = scheduler.block_manager.allocator
sessions = iter(range(1000))


def run(prompt, num_tokens):
    """A request from beginning to end; how many of its tokens were cached."""
    number = next(sessions)
    seq = scheduler.add_session(number).add_sequence(np.full(num_tokens, prompt))
    assert scheduler.schedule(is_prefill=True).running == [seq]
    cached = seq.cached_tokens
    scheduler.activate_seqs([seq])
    seq.update_token_ids(np.array([0]), mode=UpdateTokenMode.PREFILL)
    seq.finish()
    scheduler.end_session(number)
    return cached


for prompt in range(PROMPTS):
    run(prompt, BLOCK)
nodes = {int(node.token_ids[0]): node for node in scheduler.block_trie.leaves}
assert len(nodes) == PROMPTS
order = sorted(nodes, key=lambda prompt: id(nodes[prompt]), reverse=True)

time.sleep(1 - time.perf_counter() % 1)  # all that follows is in one second
used = []
for prompt in order:
    assert run(prompt, BLOCK + 1) == BLOCK
    used.append(time.perf_counter())
print(f"prompts {order} were used again, one after the other, in {used[-1] - used[0]:.3f} s")
times = allocator.get_access_time(np.array([nodes[prompt].block_id for prompt in order]))
print(f"the access times of their blocks are {times.tolist()}")
assert len(set(times.tolist())) == 1

run(1000, (PROMPTS + 1) * BLOCK)  # needs one block more than there are free
lost = [prompt for prompt in order if not nodes[prompt].is_attached()]
print(f"a request that needs one block more than are free evicts prompt {lost}, used last")
assert lost == order[-1:]
