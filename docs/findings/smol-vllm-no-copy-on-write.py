"""smol-vllm 0.1.2: after `copy_on_write` both sequences write their next tokens to one slot.

`BlockSpaceManager.copy_on_write` shares all blocks of the source, a partly filled last one among
them. `append_token` takes a block only when the tokens need one more, and looks at no count of
references: so each of the two goes on in the shared block, without a copy.

Within the package `copy_on_write` is called by the demo only (experiment 3), after whole blocks and
without contents; the engine's own loop shares nothing. So this is reachable through the public API.
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

BLOCK_SIZE = 16
manager = BlockSpaceManager(num_blocks=8, block_size=BLOCK_SIZE)


def slot(seq: int, position: int) -> tuple[int, int]:
    """Where the token of this position lies: its block, and its place in there."""
    return manager.get_block_table(seq)[position // BLOCK_SIZE], position % BLOCK_SIZE


manager.allocate(0, 20)
manager.copy_on_write(0, 1)
manager.append_token(0)
manager.append_token(1)
assert manager.num_free_blocks() == 6
assert slot(0, 20) == slot(1, 20)
print(f"token 20 of both sequences lies in block {slot(0, 20)[0]}, slot {slot(0, 20)[1]}")
