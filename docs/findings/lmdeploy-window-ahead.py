"""lmdeploy 0.18.0: a sliding window drops a block that it still needs.

`_num_blocks_to_drop` (window_block_manager.py) computes how many blocks the window of the computed
tokens covers, and drops all but so many from the front of the table. Where the table has blocks
beyond the computed tokens, which `prealloc_size` asks for, it drops as many blocks too many.

Here 8 tokens are computed, blocks hold 4, and the window is 4: the next token, at position 8, sees
positions 5 to 7, which are in the second block. The table has a third block, taken ahead, and the
next `allocate` drops the first two.

Reached through `Scheduler` as `Engine._add_message` uses it for a further message of a session.
`EngineInstance` ends a session after each request, so its callers do not come to that; and in a
decode step the scheduler allocates only when the blocks taken ahead are used up, so that there the
case needs more required tokens in a step than a block holds (draft tokens, with small blocks).

Needed are the Python files of lmdeploy==0.18.0, and numpy, torch and transformers; no model.
"""

import os
import sys
from pathlib import Path
from types import ModuleType

BARE = " .vl .pytorch .pytorch.disagg .pytorch.disagg.conn .pytorch.engine .pytorch.strategies"
sys.path.insert(0, str(Path(os.environ.get("KVSPEC_WILD", "build/wild"), "lmdeploy")))
for name in (BARE + " .pytorch.strategies.ar").split(" "):  # packages without their __init__
    package = sys.modules["lmdeploy" + name] = ModuleType("lmdeploy" + name)
    package.__path__ = [str(Path(place, *package.__name__.split("."))) for place in sys.path]
agent = sys.modules["lmdeploy.pytorch.engine.model_agent"] = ModuleType("model_agent")
agent.BatchedOutputs = object  # an annotation of the model agent, which is not loaded

import numpy as np
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.messages import SequenceMeta, UpdateTokenMode
from lmdeploy.pytorch.paging.scheduler import Scheduler
from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

BLOCK, WINDOW, AHEAD = 4, 4, 4
scheduler = Scheduler(
    SchedulerConfig(max_batches=1, max_session_len=100, prefill_interval=AHEAD),
    CacheConfig(
        max_batches=1, block_size=BLOCK, num_cpu_blocks=0, num_gpu_blocks=8, window_size=WINDOW
    ),
    seq_meta=SequenceMeta(BLOCK, strategy=ARSequenceStrategy()),
)


def prefill(seq):
    """A prefill step, and its forward, after which the sequence stops without a new token."""
    assert scheduler.schedule(is_prefill=True, prealloc_size=AHEAD).running == [seq]
    scheduler.activate_seqs([seq])
    table = scheduler.block_manager.get_block_table(seq).tolist()
    ignored = seq.num_ignored_history
    seq.update_token_ids(np.zeros(0, dtype=int), mode=UpdateTokenMode.PREFILL)
    seq.finish()
    return table, ignored


seq = scheduler.add_session(0).add_sequence(np.arange(8))
table, ignored = prefill(seq)
print(f"8 tokens are computed; blocks {table}, the last one taken ahead")
assert (len(table), ignored) == (3, 0)

seq.update_token_ids(np.array([8]), mode=UpdateTokenMode.INPUTS)  # Engine._add_message
seq.activate()
after, ignored = prefill(seq)
print(f"the token at position 8 gets blocks {after}, of which the first is for position {ignored}")
print(f"its window of {WINDOW} begins at position {8 + 1 - WINDOW}, in block {table[1]}: dropped")
assert ignored == 8
assert table[1] not in after
