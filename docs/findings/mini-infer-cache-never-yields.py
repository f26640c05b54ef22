"""mini-infer 0.2.5: the blocks of the prefix cache are never given up, so the engine stands still.

`PrefixCache` retains every full block of a prompt. `evict_lru` is there "when VRAM is tight", but
neither the engine nor its scheduler calls it. When the cache has all blocks,
`ContinuousScheduler.schedule` admits no request any more although none is running, and
`InferenceEngine.step` returns without work for ever. Reached by `InferenceEngine` itself, with a
random model and its default of prefix caching.
"""

import os
import sys
from pathlib import Path

WILD = Path(os.environ.get("KVSPEC_WILD", "build/wild"))
sys.path.insert(0, str(WILD / "mini-infer"))  # where it is unpacked; else as it is installed

import torch
from mini_infer.engine import InferenceEngine
from mini_infer.models.config import Qwen2Config
from mini_infer.models.qwen2 import Qwen2ForCausalLM

torch.manual_seed(0)
config = Qwen2Config(64, 16, 16, 1, 2, 1, 8)
engine = InferenceEngine(Qwen2ForCausalLM(config), config, num_blocks=5, device=torch.device("cpu"))
for first in range(5):
    request = engine.add_request([first, *range(15)], max_tokens=1)
    for _ in range(20):
        engine.step()
    print(f"prompt {first}: {request.status.name}, {engine.block_pool.num_free} blocks free")
assert engine.block_pool.num_free == 0
assert not engine.scheduler.running
last = engine.add_request([9, *range(15)], max_tokens=1)
for _ in range(100):
    assert engine.step() == []
assert last.status.name == "WAITING"
assert engine.scheduler.has_unfinished_sequences()
print("a sixth prompt waits for ever: 0 blocks free, none in use, and 100 steps did nothing")
assert engine.prefix_cache is not None
assert engine.prefix_cache.evict_lru(engine.block_pool, 1) == 1
assert len(engine.step()) == 1
print("after one evict_lru from outside it runs")
