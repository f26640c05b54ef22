"""llm-infer 0.8.0: the blocks of a prompt that did not fit are lost.

`SequenceKVCache.allocate_for_prompt` takes blocks one by one and raises `RuntimeError` when there
is none left, keeping those that it took. `BlockPool.can_allocate` is there, and nothing asks it.
Reached by the serving loop itself: `BoundedQueueHandler._start_request` reports the failure to the
client and forgets the request without `free_request`, so that one prompt that is too long leaves
no block for those that fit. `InferenceEngine.generate` loses them in the same way: it allocates
before its `try`.
"""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "llm-infer"))
for place in map(Path, sys.path):
    if (place / "llm_infer").is_dir():  # without its clients and servers
        for name in ("", ".serving", ".serving.dispatch", ".serving.dispatch.handlers"):
            module = sys.modules["llm_infer" + name] = ModuleType("llm_infer" + name)
            module.__path__ = [str(place / ("llm_infer" + name).replace(".", "/"))]
        break
for name, has in {"": (), ".log": ("Logger",), ".time": ("delta_str", "start")}.items():
    module = sys.modules["appinfra" + name] = ModuleType("appinfra" + name)
    vars(module).update(dict.fromkeys(has, object))  # its logging and timing

from llm_infer.engines.native.engine import InferenceEngine
from llm_infer.engines.native.kv_cache import BlockPool, SequenceKVCache
from llm_infer.serving.dispatch.handlers.bounded import BoundedQueueHandler
from llm_infer.serving.dispatch.types import Request


def new_engine(num_blocks: int) -> InferenceEngine:
    """The engine without its weights: every prompt is as many tokens as it has letters."""
    engine = object.__new__(InferenceEngine)
    engine.block_pool = BlockPool(num_blocks, 16, 1, 1, 8, device="cpu")
    engine.device, engine.guards, engine.eos_token_id = "cpu", [], None
    engine.config = SimpleNamespace(model_path="model", model=SimpleNamespace(max_seq_len=512))
    engine.tokenizer = SimpleNamespace(
        has_chat_template=False,
        encode=lambda text, add_special_tokens: [0] * len(text),
        decode=lambda tokens, skip_special_tokens: "x" * len(tokens),
    )
    engine.model = SimpleNamespace(
        forward=lambda tokens, positions, caches, pool: torch.zeros(len(tokens), 4)
    )
    return engine


pool = BlockPool(3, 16, 1, 1, 8, device="cpu")
cache = SequenceKVCache()
try:
    cache.allocate_for_prompt(pool, 64)
    raise AssertionError("64 tokens fit into three blocks of 16")
except RuntimeError as error:
    print(f"{error}: the sequence of {cache.num_tokens} tokens has {cache.block_ids}")
assert (cache.num_tokens, len(cache.block_ids), pool.num_free_blocks) == (0, 3, 0)

engine = new_engine(num_blocks=3)
handler = BoundedQueueHandler(engine, max_batch_size=2)
for name, prompt in (("short", "x" * 8), ("long", "x" * 64), ("short again", "x" * 8)):
    handler.submit(Request(id=name, prompt=prompt, max_tokens=2))
    done = handler.step()
    print(f"{name}: {len(done)} answered, {engine.block_pool.num_free_blocks} blocks free")
    assert len(done) == (1 if name == "short" else 0)
assert not handler.running
assert engine.block_pool.num_free_blocks == 0
print("no request is running, and no block is free")

engine = new_engine(num_blocks=3)
try:
    engine.generate("x" * 64)
    raise AssertionError("64 tokens fit into three blocks of 16")
except RuntimeError as error:
    print(f"generate: {error}: {engine.block_pool.num_free_blocks} blocks free")
assert engine.block_pool.num_free_blocks == 0
