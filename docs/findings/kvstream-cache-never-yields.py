"""kvstream 0.1.0: pages of cached prefixes are not given up when requests need them.

`PrefixKVCache.register` forks the prompt of each finished request into a sequence of its own,
which holds its pages until the entry is `ttl_seconds` (an hour) old: `evict_expired` asks for
nothing else, and nobody else evicts. The README says that "its prefix is registered for reuse and
its pages return to the pool". Once the prompts that were served fill the pool, no new prompt is
admitted, although no request runs.

The script runs the engine's own loop, `KVStreamEngine.generate`, with a backend of its own.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "kvstream"))
for place in [Path(path) / "kvstream" for path in sys.path]:
    if (place / "memory").is_dir():  # without the package's web server, clients and settings
        for name, has in (("", ()), (".backends", ()), (".config", ("KVStreamConfig",))):
            module = sys.modules["kvstream" + name] = ModuleType("kvstream" + name)
            module.__path__ = [str(place / name.lstrip("."))]
            vars(module).update(dict.fromkeys(has, object))
        sys.modules.setdefault("uvicorn", ModuleType("uvicorn"))
        break

from kvstream.backends.base import BaseBackend, GenerateRequest, Token
from kvstream.engine import KVStreamEngine


class OneToken(BaseBackend):
    """A runtime that answers with one token."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        """One token, and the end."""
        yield Token(text="x", token_id=0, finish_reason="stop")

    async def health(self) -> bool:
        """It is."""
        return True


def settings() -> SimpleNamespace:
    """The settings' defaults, but for a pool of 4 pages and a timeout of a second."""
    fcfs, swap = SimpleNamespace(value="fcfs"), SimpleNamespace(value="swap")
    return SimpleNamespace(
        memory=SimpleNamespace(num_gpu_blocks=4, num_cpu_blocks=4, block_size=16),
        prefix_cache=SimpleNamespace(
            enabled=True, max_prefix_length=2048, ttl_seconds=3600, min_match_tokens=16
        ),
        scheduler=SimpleNamespace(
            max_batch_size=8,
            max_waiting_tokens=4096,
            preemption_policy=swap,
            priority=fcfs,
            max_queue_depth=1000,
            admission_timeout_seconds=1.0,
        ),
    )


async def main() -> None:
    """Requests one after the other, each with a prompt of one page that no other has."""
    engine = KVStreamEngine(OneToken(), settings())
    for number in range(4):
        assert [token.text async for token in engine.generate(str(number) * 16)] == ["x"]
        await asyncio.sleep(0.1)
        print(f"request {number} is served; {engine.scheduler.stats()}")
    try:
        async for _ in engine.generate("4" * 16):
            raise AssertionError("it was served")
    except RuntimeError as error:
        print(error)
    stats = engine.scheduler.stats()
    print(stats, engine.prefix_cache.stats())
    assert (stats["running"], stats["gpu_blocks_free"]) == (0, 0)
    assert engine.prefix_cache.evict_expired() == 0
    await engine.shutdown()


asyncio.run(main())
