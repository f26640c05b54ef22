"""smol-vllm 0.1.2: a token whose append is refused is counted all the same.

`BlockSpaceManager.append_token` adds 1 to the sequence's tokens before it looks for a free block,
and does not take it back when it raises. From then on the count is too high: the sequence takes a
block before its last one is full, and is refused where it needs none.

`Scheduler.schedule` keeps a free block for each running sequence, so that the engine's own loop has
no append refused. This is reachable through the public API.
"""

import os
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild")) / "smol-vllm"))
for place in [Path(path) / "smol_vllm" for path in sys.path]:
    if place.is_dir():  # the package's own __init__ imports its metrics and its model
        sys.modules["smol_vllm"] = ModuleType("smol_vllm")
        sys.modules["smol_vllm"].__path__ = [str(place)]
        break

from smol_vllm.block_manager import BlockSpaceManager


def refused(manager: BlockSpaceManager, seq: int) -> bool:
    """Whether a token could not be appended."""
    try:
        manager.append_token(seq)
    except ValueError:
        return True
    return False


manager = BlockSpaceManager(num_blocks=2, block_size=4)
manager.allocate(0, 4)
manager.allocate(1, 4)
assert refused(manager, 1)
assert refused(manager, 1)  # tried again while nothing is free
manager.free(0)
appended = 0
while not refused(manager, 1):
    appended += 1
assert len(manager.get_block_table(1)) == 2
assert appended == 2
print(f"2 blocks of 4 tokens, and 4 + {appended} tokens in them: the next is refused")
