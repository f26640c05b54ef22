"""lmdeploy 0.18.0, with prefix caching: a resumed sequence writes into a cached block.

A running sequence that gets no block for its next token is preempted and keeps its blocks. When
`Scheduler.schedule` admits it again, `BlockTrie.match` goes on from the sequence's trie cursor and
appends each cached block that it finds to the block table. The cursor is behind the table by the
blocks that were taken ahead (`prefill_interval` tokens), so where another sequence has published
the same tokens meanwhile, a shared block lands behind the sequence's own blocks, not in its place.
The next tokens of the sequence are written into it, while the trie goes on to give it to others
for its old contents.

`_PrefillAdmissionAttempt._has_private_local_tail` describes this case ("misaligning table
positions"), but answers only where a lookup in an external KV connector is configured.

Reached through the engine's own scheduler with its default block size and prefill interval: two
requests with one prompt, greedy decoding, and a pool in which one of them is preempted.

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

BLOCK, AHEAD = 64, 16  # CacheConfig's and SchedulerConfig's values for a server
TEXT = np.arange(1000)  # what the model says, token by token, to whoever asks

scheduler = Scheduler(
    SchedulerConfig(max_batches=8, max_session_len=1000, prefill_interval=AHEAD),
    CacheConfig(
        max_batches=8,
        block_size=BLOCK,
        num_cpu_blocks=0,
        num_gpu_blocks=6,
        enable_prefix_caching=True,
    ),
    seq_meta=SequenceMeta(BLOCK, strategy=ARSequenceStrategy()),
)


def ask(number, num_tokens):
    """A request whose prompt is the beginning of the text."""
    return scheduler.add_session(number).add_sequence(TEXT[:num_tokens])


def prefill():
    """One prefill step: what is admitted, after its forward."""
    running = scheduler.schedule(is_prefill=True, prealloc_size=AHEAD).running
    scheduler.activate_seqs(running)
    for seq in running:
        generate(seq, UpdateTokenMode.PREFILL)
    return running


def generate(seq, mode):
    """The token that the forward gives: the next one of the text."""
    seq.update_token_ids(TEXT[seq.num_all_ids : seq.num_all_ids + 1], mode=mode)


def table(seq):
    return scheduler.block_manager.get_block_table(seq).tolist()


first, second = ask(0, 120), ask(1, 120)
running = prefill()
assert running == [first, second]
while all(valid := scheduler.schedule_running(running, 1, AHEAD)):
    for seq in running:
        generate(seq, UpdateTokenMode.DECODE)
assert valid == [False, True]  # the first one is preempted
assert first.num_all_ids == 192
own = table(first)
print(f"preempted with {first.num_all_ids} tokens, it keeps its blocks {own}")
generate(second, UpdateTokenMode.DECODE)
second.finish()
scheduler.end_session(1)

assert prefill() == [first]
resumed = table(first)
print(f"resumed, its blocks are {resumed}; the next token goes to block {resumed[192 // BLOCK]}")
assert scheduler.schedule_running([first], 1, AHEAD) == [True]  # which needs no block for it

third = ask(2, 150)  # the text again, as long as the cached part and more
assert prefill() == [third]
print(f"a third request finds {third.cached_tokens} tokens in the cache, in {table(third)[:2]}")
assert third.cached_tokens == 2 * BLOCK
assert resumed[192 // BLOCK] == table(third)[1]
print(f"block {table(third)[1]} is written by the first and read by the third for tokens 64 to 127")
