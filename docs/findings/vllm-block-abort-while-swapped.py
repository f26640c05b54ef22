"""vllm-block 0.1.0 (vLLM's V0): freeing a swapped-out sequence breaks a later swap.

A block that is swapped out keeps its Python object, which belongs to the `BlockPool` of the
device's allocator. `CpuGpuBlockAllocator.free` asks the host's allocator, to which the block id
belongs, to free the block; that one appends the object's number to the free numbers of its own
pool. Numbers that its pool does not have are then looked up by the next swap out: `IndexError`,
after the device's blocks of that sequence have been released. The device's pool never
gets its object back.

The script drives V0's own `Scheduler`: its `_swap_out`, then its `abort_seq_group`, as for a client
that disconnects while its request is swapped out, then its `_swap_out` of another request.
"""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "vllm-block"))
place = next(p for p in [Path(path) / "vllm_block" for path in sys.path] if p.is_dir())
sys.modules["vllm"] = ModuleType("vllm")  # published as vllm_block, it imports itself as vllm
sys.modules["vllm"].__path__ = [str(place)]
for name in ("config", "lora.request", "platforms", "prompt_adapter.request", "sequence"):
    sys.modules[f"vllm.{name}"] = MagicMock()  # the model's part of the package
for name in ("vllm.lora", "vllm.prompt_adapter", "cloudpickle", "zmq", "zmq.asyncio"):
    sys.modules[name] = MagicMock()
for name in ("torch", "torch.types", "torch.library"):
    sys.modules[name] = MagicMock()
sys.modules["vllm.sequence"].SequenceGroup = object
sys.modules["vllm.platforms"].current_platform.is_hpu.return_value = False

from vllm.core.scheduler import Scheduler
from vllm.utils import Device

scheduler = Scheduler(
    MagicMock(runner_type="generate", policy="fcfs", max_model_len=1024, delay_factor=0.0),
    MagicMock(
        block_size=16,
        num_gpu_blocks=8,
        num_cpu_blocks=1,
        sliding_window=None,
        enable_prefix_caching=False,
        is_attention_free=False,
    ),
    None,
)
manager = scheduler.block_manager


def request(name: str, number: int, num_tokens: int) -> SimpleNamespace:
    """A request with one sequence, as far as the scheduler looks at it here."""
    sequence = SimpleNamespace(
        seq_id=number,
        get_token_ids=lambda: [0] * num_tokens,
        extra_hash=lambda: None,
        is_finished=lambda: False,
    )
    return SimpleNamespace(
        request_id=name,
        get_seqs=lambda status=None: [sequence],
        is_encoder_decoder=lambda: False,
    )


large, old, new = request("large", 0, 64), request("old", 1, 16), request("new", 2, 16)
for group in (large, old):
    manager.allocate(group)

scheduler._swap_out(old, [])
scheduler.swapped.append(old)
scheduler.abort_seq_group("old")
pool = manager.block_allocator._allocators[Device.CPU]._block_pool
print(f"the host's pool has {pool._pool_size} objects; its free numbers are {list(pool._free_ids)}")
assert manager.get_num_free_cpu_blocks() == 1
assert max(pool._free_ids) >= pool._pool_size

manager.allocate(new)
free = manager.get_num_free_gpu_blocks()
assert manager.can_swap_out(new)
try:
    scheduler._swap_out(new, [])
except IndexError as error:
    print(f"the next swap out raised IndexError: {error}")
else:
    raise AssertionError("it was swapped out")
block = manager.block_tables[2].physical_block_ids
print(f"the table of the sequence is still {block}; {manager.get_num_free_gpu_blocks()} are free")
assert manager.get_num_free_gpu_blocks() == free + 1
