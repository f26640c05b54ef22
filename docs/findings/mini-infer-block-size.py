"""mini-infer 0.2.5: requests have tables of 16 tokens a block, whatever block size is asked for.

`InferenceEngine` and the command line's `--block-size` give the block size to the pool and to the
prefix cache, while `Sequence.__init__` makes `BlockTable(block_size=16)`. With blocks of 8 a table
has half of the blocks that its length needs, and the prefill of the first prompt of 9 tokens or
more raises `IndexError`. Reached by `InferenceEngine` itself.
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
config = Qwen2Config(64, 16, 16, 1, 2, 1, 8)
engine = InferenceEngine(
    Qwen2ForCausalLM(config), config, num_blocks=8, block_size=8, device=torch.device("cpu")
)
request = engine.add_request(list(range(12)), max_tokens=1)
try:
    engine.step()
    raise AssertionError("the prompt of 12 tokens was written")
except IndexError as error:
    table = request.block_table
    print(f"{table.num_tokens} tokens in blocks of 8: table {table.physical_block_ids}: {error}")
    assert len(table.physical_block_ids) == 1
