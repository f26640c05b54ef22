"""llm-infer 0.8.0: a batched decode step that runs out of blocks stops half way.

`run_decode_batch` appends the token of one request after the other. Where a request gets no block,
those before it are a token further, those after it are not, and its own `output_tokens` have the
new token already, for which it has no slot. Reached by the serving loop itself:
`BoundedQueueHandler._step_batched` lets the error through, which ends the serving loop. If it is
stepped again, once there is room, it decodes from that token with the position, and so the slot,
of the one before.
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
from llm_infer.engines.native.kv_cache import BlockPool
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


engine = new_engine(num_blocks=4)
positions: list[list[int]] = []


def forward(tokens, where, caches, pool):  # type: ignore[no-untyped-def]
    """Notes the positions at which keys and values would be written."""
    positions.append([int(row[-1]) for row in where])
    return torch.zeros(len(tokens), 4)


engine.model = SimpleNamespace(forward=forward)
handler = BoundedQueueHandler(engine, max_batch_size=3)
for name in ("a", "b", "c"):
    handler.submit(Request(id=name, prompt="x" * 14, max_tokens=8))


def state() -> list[tuple[int, int]]:
    """The slots and the output tokens of each request."""
    requests = [running.engine_request for running in handler.running.values()]
    return [(one.kv_cache.num_tokens, len(one.output_tokens)) for one in requests]


handler.step()
assert state() == [(16, 2)] * 3
try:
    handler.step()
    raise AssertionError("three requests got a block each of one")
except RuntimeError as error:
    print(f"{error}: slots and tokens of the three are {state()}")
assert state() == [(17, 3), (16, 3), (16, 2)]
engine.free_request(handler.running.pop("c").engine_request)
handler.step()
print(f"c is gone; a and b are written at {positions[-1]}, and b was at {positions[-2][1]} before")
assert positions[-2][1] == positions[-1][1] == 15
