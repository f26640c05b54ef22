"""vllm 0.33.0: blocks that the offload to the host held are given back with the chain's head first.

`BlockPool.free_blocks` takes blocks "ordered by their eviction priority, where the first block will
be evicted first", and of one sequence "the tail of a block chain is at the front"
(`FreeKVCacheBlockQueue`): without its head nothing of a prompt can be found. So its callers free in
reverse. `SimpleCPUOffloadScheduler._process_store_completion` frees the blocks of a finished store
in the order in which they were stored. On the device this shows where the request ended while a
store of it was in flight, as after the flush when it finishes; in the host's pool, in which the
store is the only user, each time. In lazy mode the device's are stored tail first, and it does not.

What is lost is hits, never correctness. The manager and the offload's scheduler side are called
here as the engine's `Scheduler` calls them (the connector only hands the calls on); the `Scheduler`
itself is not built, and no KV is copied.
"""

import os
import sys
from abc import ABCMeta
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

if "KVSPEC_WILD" in os.environ:  # unpacked: without what only its servers and kernels need
    ROOT = Path(os.environ["KVSPEC_WILD"]).absolute() / "vllm"
    CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
    BARE = {"vllm", "vllm.distributed", "vllm.distributed.kv_transfer", CONNECTOR}
    BARE |= {f"{CONNECTOR}.v1", "vllm.v1.structured_output"}
    ABSENT = "cloudpickle uvloop zmq vllm.compilation vllm.config vllm.lora vllm.model_executor "
    ABSENT += "vllm.multimodal vllm.outputs vllm.platforms vllm.tokenizers vllm.usage "
    ABSENT += "vllm.v1.attention.backend vllm.v1.metrics.perf vllm.v1.spec_decode "
    ABSENT += f"{CONNECTOR}.factory {CONNECTOR}.v1.base {CONNECTOR}.v1.metrics"

    class Nothing(ABCMeta):
        def __getattr__(cls, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return Nothing(name, (), {"__init__": lambda self, *arguments: None})

    class Absent(ModuleType):
        def __getattr__(self, name):
            return Nothing.__getattr__(self, name)

    class Unpacked:
        def find_spec(self, name, path, target=None):
            if any(f"{name}.".startswith(f"{one}.") for one in ABSENT.split()):
                return ModuleSpec(name, self, is_package=True)
            if name in BARE:
                spec = ModuleSpec(name, None, is_package=True)
                spec.submodule_search_locations = [str(ROOT.joinpath(*name.split(".")))]
                return spec
            return None

        def create_module(self, spec):
            return Absent(spec.name)

        def exec_module(self, module):
            pass

    sys.meta_path.insert(0, Unpacked())

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

SIZE, BLOCKS = 4, 6  # tokens a block; blocks, of which block 0 is the null block

register_all_kvcache_specs(None)
init_none_hash(sha256)
hasher = get_request_block_hasher(SIZE, sha256)
spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float16)
config = KVCacheConfig(
    num_blocks=BLOCKS,
    kv_cache_tensors=[
        KVCacheTensor(
            size=BLOCKS * spec.page_size_bytes,
            layers=["layer"],
            layer_stride=0,
            block_stride=spec.page_size_bytes,
        )
    ],
    kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
)
settings = SimpleNamespace(
    kv_events_config=None,
    speculative_config=None,
    parallel_config=SimpleNamespace(decode_context_parallel_size=1, world_size=1),
    model_config=SimpleNamespace(max_model_len=64),
    max_in_flight_tokens=64,
    num_prefill_lookahead_tokens=0,
)
manager = KVCacheManager(config, 64, SIZE, SIZE)
offload = SimpleCPUOffloadScheduler(
    settings, config, cpu_capacity_bytes=BLOCKS * spec.page_size_bytes,
    scheduler_block_size=SIZE, hash_block_size=SIZE,
)  # fmt: skip
offload.bind_gpu_block_pool(manager.block_pool)


def request(name, tokens):
    return Request(name, list(tokens), SamplingParams(max_tokens=8), None, block_hasher=hasher)


def step(scheduled, num_tokens, new_blocks, is_new=False):
    """What `Scheduler.schedule` hands to the connector for one request, and its metadata."""
    one = SimpleNamespace(req_id=scheduled.request_id, block_ids=new_blocks)
    old = ([scheduled.request_id], [new_blocks]) if not is_new else ([], [])
    cached = SimpleNamespace(req_ids=old[0], new_block_ids=old[1], resumed_req_ids=set())
    output = SimpleNamespace(
        scheduled_new_reqs=[one] if is_new else [],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={scheduled.request_id: num_tokens},
        preempted_req_ids=None,
        finished_req_ids=set(),
        kv_connector_block_state=None,
    )
    meta = offload.build_connector_meta(output)
    scheduled.num_computed_tokens += num_tokens  # Scheduler._update_after_schedule
    return meta


# A prompt of four blocks is computed; the next step stores them while it decodes.
prompt = range(4 * SIZE)
first = request("first", prompt)
blocks = manager.allocate_slots(first, 4 * SIZE)
offload.update_state_after_alloc(first, blocks, 0)
step(first, 4 * SIZE, blocks.get_block_ids(), is_new=True)
first.append_output_token_ids(99)
more = manager.allocate_slots(first, 1)
meta = step(first, 1, more.get_block_ids())
print("stored:", meta.store_gpu_blocks, "on the device to", meta.store_cpu_blocks, "on the host")

# It ends while the store is in flight, which then completes.
delay_free, _ = offload.request_finished_all_groups(first, manager.get_block_ids("first"))
assert not delay_free  # so Scheduler._free_request frees at once
manager.free(first)
worker = SimpleCPUOffloadWorkerMetadata(completed_store_events={meta.store_event: 1})
offload.update_connector_output(
    SimpleNamespace(finished_recving=None, kv_connector_worker_meta=worker)
)

queue = [b.block_id for b in manager.block_pool.free_block_queue.get_all_free_blocks()]
host = [b.block_id for b in offload.cpu_block_pool.free_block_queue.get_all_free_blocks()]
print("the device gives up its free blocks in this order:", queue)
print("the host gives up its free blocks in this order:  ", host)

# On the device another request needs two blocks: one is free, and one cached block has to go.
before = manager.get_computed_blocks(request("again", prompt), 4 * SIZE)[1]
other = request("other", range(100, 100 + 2 * SIZE))
manager.allocate_slots(other, 2 * SIZE)
after = manager.get_computed_blocks(request("again", prompt), 4 * SIZE)[1]
print(f"of the prompt's {4 * SIZE} tokens the device had {before} cached, and has {after} now")
left = sum(
    block.block_hash is not None and block.ref_cnt == 0 for block in manager.block_pool.blocks
)
print(f"{left} of its 4 blocks are cached still, and none can be found")
assert queue[-4:] == meta.store_gpu_blocks
assert host[-4:] == meta.store_cpu_blocks
assert (before, after, left) == (4 * SIZE, 0, 3)
