"""mini-infer 0.2.5: a prefill that runs out of blocks half way keeps those that it took.

`InferenceEngine.step` takes the slots of a chunk one by one, and `BlockPool.allocate_block` raises
`MemoryError` when there is no block left. `ContinuousScheduler.schedule` asks for two blocks at
most, however long the prompt is, so that this is reached by the engine itself. The request stays
in `running` with a table that covers slots of which nothing is known to be written, no running
request is preempted for it, and every later step raises again, also for other requests.
"""

import os
import sys
from pathlib import Path

WILD = Path(os.environ.get("KVSPEC_WILD", "build/wild"))
sys.path.insert(0, str(WILD / "mini-infer"))  # where it is unpacked; else as it is installed

import torch
from mini_infer.cache.block_pool import BlockPool, BlockTable
from mini_infer.engine import InferenceEngine
from mini_infer.models.config import Qwen2Config
from mini_infer.models.qwen2 import Qwen2ForCausalLM

pool = BlockPool(1, 1, 1, 1, 8, device=torch.device("cpu"))
table = BlockTable(1)
try:
    for _ in range(2):
        table.append_slot(pool)
    raise AssertionError("two tokens fit into one block of one")
except MemoryError:
    assert pool.num_free == 0
    print(f"refused at the second of two tokens, and the first keeps {table.physical_block_ids}")

torch.manual_seed(0)
config = Qwen2Config(64, 16, 16, 1, 2, 1, 8)
engine = InferenceEngine(Qwen2ForCausalLM(config), config, num_blocks=4, device=torch.device("cpu"))
short = engine.add_request(list(range(10)), max_tokens=20)
engine.step()
engine.add_request(list(range(60)), max_tokens=1)  # 4 blocks, and 3 are free
for number in range(1, 4):
    try:
        engine.step()
        raise AssertionError("60 tokens fit into three blocks of 16")
    except MemoryError as error:
        print(
            f"step {number}: {error} {engine.block_pool.num_free} free, short request "
            f"has {short.num_output_tokens} token"
        )
assert engine.block_pool.num_free == 0
assert short.num_output_tokens == 1
assert engine.scheduler.preempted_count == 0
print("the short request, which needs no block, makes no progress any more")
