"""vllm-block 0.1.0 (vLLM's V0): a fork after the sliding window has released blocks goes astray.

`BlockTable.append_token_ids` frees the blocks before the window and puts the null block into its
list. The block after them still has the freed object as its `prev_block`, and the object has gone
back to the `BlockPool`, for any sequence to use. `CpuGpuBlockAllocator.fork` finds the blocks of a
sequence by `prev_block`, from the last one back. So it meets a block without an id
(`AssertionError`), the sequence's own new block (a circle: `RecursionError`), or a block of
another sequence, which becomes part of the child.

The script calls `SelfAttnBlockSpaceManager.fork`, which V0's `Scheduler.fork_seq` calls. No code
of this package calls `fork_seq`, so this is reached by the public API only.
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
for name in ("vllm.platforms", "vllm.sequence", "cloudpickle", "zmq", "zmq.asyncio"):
    sys.modules[name] = MagicMock()
for name in ("torch", "torch.types", "torch.library"):
    sys.modules[name] = MagicMock()
sys.modules["vllm.platforms"].current_platform.is_hpu.return_value = False

from vllm.core.block_manager import SelfAttnBlockSpaceManager

SIZE = 4


def sequence(number: int, num_tokens: int) -> SimpleNamespace:
    """A sequence, as far as the manager looks at it."""
    return SimpleNamespace(
        seq_id=number,
        num_tokens=num_tokens,
        get_token_ids=lambda: [0] * made[number].num_tokens,
        extra_hash=lambda: None,
        data=SimpleNamespace(get_num_computed_tokens=lambda: made[number].num_tokens - 1),
    )


def group(of: SimpleNamespace) -> SimpleNamespace:
    """A group of one sequence."""
    return SimpleNamespace(
        request_id=str(of.seq_id),
        get_seqs=lambda status=None: [of],
        is_encoder_decoder=lambda: False,
    )


made = {0: sequence(0, 4 * SIZE + 1), 1: sequence(1, SIZE), 2: sequence(2, 0)}
manager = SelfAttnBlockSpaceManager(SIZE, 12, 0, sliding_window=SIZE)
manager.allocate(group(made[0]))
made[0].num_tokens += 1
manager.append_slots(made[0], 0)
parent = manager.get_block_table(made[0])
null = manager.block_allocator.allocate_or_get_null_block().block_id
print(f"the parent has {parent}, where {null} is the null block")
assert parent[0] == null

manager.allocate(group(made[1]))
other = manager.get_block_table(made[1])
print(f"another sequence has {other}")

manager.fork(made[0], made[2])
child = manager.get_block_table(made[2])
print(f"the child of the first has {child}")
assert child != parent
assert other[0] in child
