"""lmdeploy 0.18.0: an allocation that `WindowBlockManager` said would fit fails, and leaks blocks.

`WindowBlockManager.can_allocate` counts the blocks that the window lets go of as free. But
`allocate_msg` uses only `min(dropped - required, required)` of them again, takes the rest of what
it needs from the free blocks, and frees the other dropped ones last. With 4 dropped blocks, 3
required and none free it raises `MemoryError`, although `can_allocate` was true. By then the
dropped blocks are out of the sequence's table and not back in the allocator: 3 of 5 are in no
table and not free, and stay so when the sequence ends.

Reached through the public API. The engine's scheduler asks `RecomputeEvictionHelper` instead of
`can_allocate`, which wants all the required blocks to be free, so it does not come to this.

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

WINDOW = 1
scheduler = Scheduler(
    SchedulerConfig(max_batches=1, max_session_len=100),
    CacheConfig(
        max_batches=1, block_size=1, num_cpu_blocks=0, num_gpu_blocks=5, window_size=WINDOW
    ),
    seq_meta=SequenceMeta(1, strategy=ARSequenceStrategy()),
)
manager = scheduler.block_manager
seq = scheduler.add_session(0).add_sequence(np.arange(5))
manager.allocate(seq)
seq.update_token_ids(np.zeros(0, dtype=int), mode=UpdateTokenMode.PREFILL)  # the forward

print(f"{len(seq.logical_blocks)} blocks in the table, {manager.get_num_free_gpu_blocks()} free")
print(f"can_allocate for 3 more tokens: {manager.can_allocate(seq, 3)}")
assert manager.can_allocate(seq, 3)
try:
    manager.allocate(seq, 3)
except MemoryError as error:
    print(f"allocate: MemoryError: {error}")
else:
    raise AssertionError("it should fail")
held, free = len(seq.logical_blocks), manager.get_num_free_gpu_blocks()
print(f"{held} blocks in the table, {free} free: {5 - held - free} of 5 are in neither")
assert (held, free) == (2, 0)
manager.free(seq)
print(f"the sequence has ended, and {manager.get_num_free_gpu_blocks()} of 5 blocks are free")
assert manager.get_num_free_gpu_blocks() == 2
