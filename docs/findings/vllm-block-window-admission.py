"""vllm-block 0.1.0 (vLLM's V0): with a sliding window a prompt is admitted that does not fit.

`SelfAttnBlockSpaceManager.can_allocate` counts at most the blocks of the window, while
`BlockTable.allocate` takes those of the whole prompt: only `append_token_ids` lets any go. It takes
them one by one, raises `NoFreeBlocksError` at the first that is missing, and has not told anybody
which it had, so they are in no table and not free.

The script calls the engine's own `Scheduler._schedule_prefills`, which asks, takes the group out of
its queue and allocates. What it needs to know of a group is made up.
"""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
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

from vllm.core.scheduler import Scheduler, SchedulingBudget

SIZE, BLOCKS, WINDOW = 16, 20, 64


def group(number: int, num_tokens: int) -> SimpleNamespace:
    """A group of one new sequence, as far as the scheduler and the manager look at it."""
    sequence = SimpleNamespace(
        seq_id=number,
        status=None,
        get_token_ids=lambda: [0] * num_tokens,
        get_len=lambda: num_tokens,
        get_num_new_tokens=lambda: num_tokens,
        get_num_computed_tokens=lambda: 0,
        is_finished=lambda: False,
        extra_hash=lambda: None,
        data=SimpleNamespace(get_num_computed_tokens=lambda: 0),
    )

    def sequences(status: Any = None) -> list[SimpleNamespace]:
        return [sequence]

    return SimpleNamespace(
        request_id=str(number),
        first_seq=sequence,
        get_seqs=sequences,
        lora_int_id=0,
        num_seqs=lambda status=None: 1,
        get_max_num_running_seqs=lambda: 1,
        is_prefill=lambda: True,
        is_finished=lambda: False,
        is_encoder_decoder=lambda: False,
        init_multi_step_from_lookahead_slots=lambda *_, **__: None,
    )


scheduler = Scheduler(
    MagicMock(
        runner_type="generate",
        policy="fcfs",
        max_model_len=4096,
        delay_factor=0.0,
        is_multi_step=False,
        chunked_prefill_enabled=False,
        max_num_batched_tokens=4096,
        num_scheduler_steps=1,
        max_num_seqs=64,
    ),
    MagicMock(
        block_size=SIZE,
        num_gpu_blocks=BLOCKS,
        num_cpu_blocks=0,
        sliding_window=WINDOW,
        enable_prefix_caching=False,
        is_attention_free=False,
    ),
    None,
)
# These look into the groups, which are made up.
scheduler._get_num_new_uncached_and_cached_tokens = lambda of, *_, **__: (of.first_seq.get_len(), 0)
scheduler._get_prompt_limit = lambda of: 4096
scheduler._passed_delay = lambda now: True
manager, budget = scheduler.block_manager, SchedulingBudget(token_budget=4096, max_num_seqs=64)

scheduler.waiting.append(group(0, 224))
assert len(scheduler._schedule_prefills(budget, None, enable_chunking=False).seq_groups) == 1
free = manager.get_num_free_gpu_blocks()
print(f"a prompt of 224 tokens has {BLOCKS - free} of {BLOCKS} blocks")
assert free == 6

new = group(1, 160)
print(f"for one of 160 tokens, which takes 10, the answer is {manager.can_allocate(new).name}")
assert manager.can_allocate(new).name == "OK"
scheduler.waiting.append(new)
raised = ""
try:
    scheduler._schedule_prefills(budget, None, enable_chunking=False)
except Exception as error:
    raised = type(error).__name__
print(f"_schedule_prefills raised {raised}")
assert raised == "NoFreeBlocksError"

assert list(manager.block_tables) == [0]
assert not scheduler.waiting
lost = BLOCKS - manager.get_num_free_gpu_blocks() - len(manager.block_tables[0].blocks)
print(f"it has no table and is in no queue; {lost} blocks are in no table and not free")
assert lost == 6
