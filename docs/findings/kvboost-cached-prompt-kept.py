"""kvboost 0.9.0: the blocks of a prompt that was cached are not given back.

`CPUPagedEngine._free_sequence_blocks` leaves the first `ceil(cached_len / block_size)` blocks of a
table to "the eviction callback". That frees what `ChunkBlockMapper` holds, which is one reference
a chunk. (1) A prompt of which no chunk is found is loaded into blocks of its own
(`_load_past_kv_into_pool`), which the callback does not know: each request loses them. (2) Where
the chunk is found, every request after the first adds a reference (`load_chunk` forks), which
nobody takes back: an eviction leaves the blocks in use for ever. Only through
`CPUPagedEngine._decode_with_kv`: in this version `generate` cannot call it, as it passes
`on_token`, which `CPUPagedEngine` does not take (3).
"""

import os
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

warnings.simplefilter("ignore", FutureWarning)
sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "kvboost"))
for place in map(Path, sys.path):
    if (place / "kvboost" / "cpu_paged").is_dir():  # without its servers
        for name in ("kvboost", "kvboost.cpu_paged"):
            module = sys.modules[name] = ModuleType(name)
            module.__path__ = [str(place / name.replace(".", "/"))]
        break
# Of transformers it needs the names of classes: the model here is one of its own.
names = ("AutoModelForCausalLM", "AutoTokenizer", "DynamicCache")
sys.modules["transformers"] = ModuleType("transformers")
vars(sys.modules["transformers"]).update(dict.fromkeys(names, object))

from kvboost.cpu_paged.cpu_engine import CPUPagedEngine
from kvboost.models import CachedChunk, chained_hash


class Model(torch.nn.Module):
    """Answers with keys and values of zeros, in tuples, and the same token for ever."""

    config = SimpleNamespace(
        num_hidden_layers=1,
        num_key_value_heads=1,
        num_attention_heads=1,
        hidden_size=8,
        architectures=["LlamaForCausalLM"],
        model_type="llama",
    )

    def forward(self, input_ids, past_key_values=None, **options):  # type: ignore[no-untyped-def]
        """Zeros for what was there and what is new."""
        past = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        kv = torch.zeros(1, 1, past + input_ids.shape[1], 8)
        logits = torch.zeros(1, input_ids.shape[1], 4)
        return SimpleNamespace(logits=logits, past_key_values=((kv, kv),))


class Engine(CPUPagedEngine):
    """Hands tuples to its model, as to a model of an older transformers."""

    @staticmethod
    def _as_cache(past):  # type: ignore[no-untyped-def]
        return past


def new_engine() -> Engine:
    """An engine with 64 blocks of 4 tokens, and chunks of 32 tokens."""
    tokenizer = SimpleNamespace(
        eos_token_id=3,
        encode=lambda text, add_special_tokens: [0] * len(text),
        decode=lambda tokens, skip_special_tokens=True: "x" * len(tokens),
    )
    return Engine(
        Model(), tokenizer, max_cache_bytes=10**6, num_blocks=64, block_size=4, chunk_size=32
    )


def decode(engine: Engine, tokens: list[int], cached: int) -> None:
    """One request with so many cached tokens, and one token of output."""
    kv = torch.zeros(1, 1, cached, 8)
    engine._decode_with_kv("", tokens, ((kv, kv),), cached, tokens[cached:], 1, 1.0, False, "test")


tokens = [*range(32), 1, 1]
cached = 16  # half a chunk, so that none is found
engine = new_engine()
for number in range(1, 4):
    decode(engine, tokens, cached)
    free = engine.allocator.free_blocks
    print(f"(1) after request {number} none runs, and {free} of 64 blocks are free")
    assert free == 64 - 4 * number
assert engine.chunk_mapper.loaded_chunks() == 0

cached = 32
engine = new_engine()
kv = torch.zeros(1, 1, cached, 8)
name = chained_hash(tokens[:cached], None)
chunk = CachedChunk(name, "", tokens[:cached], ((kv, kv),), 0, cached, prefix_hash=name)
engine.cache_manager.store(chunk)
for number in range(1, 4):
    decode(engine, tokens, cached)
    free = engine.allocator.free_blocks
    print(f"(2) after request {number} the chunk is loaded, and {free} of 64 blocks are free")
    assert (engine.chunk_mapper.loaded_chunks(), free) == (1, 56)
engine.cache_manager._evict_one(name)
print(f"    and when it is evicted: {engine.paged_stats()}")
assert engine.chunk_mapper.loaded_chunks() == 0
assert engine.allocator.free_blocks == 56

try:
    engine.generate("xxxxxxxx", max_new_tokens=1)
    raise AssertionError("generate works")
except TypeError as error:
    print(f"(3) generate: {error}")
