"""lmdeploy 0.18.0: a request that is not admitted evicts all the cached blocks that nobody uses.

`RecomputeEvictionHelper._try_make_block_capacity` calls `BlockTrie.evict` for all the blocks that
are missing, and looks afterwards whether that was enough. Where it was not, the request is refused,
and what was cached is lost all the same, for nobody: the next request that would have found it
computes it again. (The blocks are free then, no block is lost.)

Reached through the engine's own scheduler.

Needed are the Python files of lmdeploy==0.18.0, and numpy, torch and transformers; no model.
"""

import os
import sys
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

BLOCK, AHEAD = 64, 16  # CacheConfig's and SchedulerConfig's values for a server
scheduler = Scheduler(
    SchedulerConfig(max_batches=8, max_session_len=1000, prefill_interval=AHEAD),
    CacheConfig(
        max_batches=8,
        block_size=BLOCK,
        num_cpu_blocks=0,
        num_gpu_blocks=8,
        enable_prefix_caching=True,
    ),
    seq_meta=SequenceMeta(BLOCK, strategy=ARSequenceStrategy()),
)
manager = scheduler.block_manager


def ask(number, first_token, num_tokens):
    """A request with a prompt that begins with a token of its own."""
    return scheduler.add_session(number).add_sequence(first_token + np.arange(num_tokens))


def prefill():
    """One prefill step: what is admitted, after its forward."""
    running = scheduler.schedule(is_prefill=True, prealloc_size=AHEAD).running
    scheduler.activate_seqs(running)
    for seq in running:
        seq.update_token_ids(np.array([0]), mode=UpdateTokenMode.PREFILL)
    return running


system = ask(0, 10_000, 200)
assert prefill() == [system]
system.finish()
scheduler.end_session(0)
print(f"3 blocks are cached and used by nobody; {manager.get_num_free_gpu_blocks()} are free")

long = ask(1, 20_000, 300)
assert prefill() == [long]
print(f"one of 300 tokens runs in 5 blocks; {manager.get_num_free_gpu_blocks()} is free")
assert manager.get_num_free_gpu_blocks() == 0

waiting = ask(2, 30_000, 250)
assert prefill() == []
print(f"one of 250 tokens needs 5 and must wait; {manager.get_num_free_gpu_blocks()} are free now")
assert manager.get_num_free_gpu_blocks() == 3
scheduler.end_session(2)

again = ask(3, 10_000, 150)
assert prefill() == [again]
print(f"the first prompt again: {again.cached_tokens} tokens of it are cached, where 128 were")
assert again.cached_tokens == 0
