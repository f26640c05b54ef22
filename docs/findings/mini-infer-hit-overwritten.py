"""mini-infer 0.2.5: what is computed after a prefix hit is written over the cached prefix.

`InferenceEngine.step` starts a request with the cached blocks in its table, but with no
`past_key_values`: the rest of the prompt is computed as if it began at position 0. It is then
written to the table from position 0 on (`start_token_idx=0`), which is the cached block that other
requests share. Reached by `InferenceEngine` itself, with prefix caching as it is by default: the
cached block changes under a running request, and the answer differs from that without the cache.
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
config = Qwen2Config(64, 16, 16, 1, 2, 1, 8, tie_word_embeddings=False)
model = Qwen2ForCausalLM(config)
for parameter in model.parameters():
    torch.nn.init.normal_(parameter)
prefix = list(range(16))


def run(cached: bool) -> tuple[list[int], bool]:
    """The tokens of the second request; whether the block of the first changed under it."""
    engine = InferenceEngine(
        model, config, num_blocks=16, device=torch.device("cpu"), enable_prefix_caching=cached
    )
    first = engine.add_request([*prefix, 1], max_tokens=40)
    engine.step()
    block = first.block_table.physical_block_ids[0]
    before = engine.block_pool.key_caches[0][block].clone()
    second = engine.add_request([*prefix, 2, 3, 4], max_tokens=8)
    engine.step()
    assert (second.block_table.physical_block_ids[0] == block) is cached
    changed = not torch.equal(before, engine.block_pool.key_caches[0][block])
    while second.status.name != "FINISHED":
        engine.step()
    return second.output_token_ids, changed


with_cache, without = run(True), run(False)
print(f"with the cache: {with_cache[0]}, the first request's block changed: {with_cache[1]}")
print(f"without it:     {without[0]}, the first request's block changed: {without[1]}")
assert with_cache[1]
assert not without[1]
assert with_cache[0] != without[0]
