"""vllm 0.33.0: blocks that the offload to the host held are given back with the chain's head first.

`BlockPool.free_blocks` takes blocks "ordered by their eviction priority, where the first block will
be evicted first", and of one sequence "the tail of a block chain is at the front"
(`FreeKVCacheBlockQueue`): without its head nothing of a prompt can be found. So its callers free in
reverse. `SimpleCPUOffloadScheduler._process_store_completion` frees the blocks of a finished store
in the order in which they were stored. On the device this shows where the request ended while a
store of it was in flight, as after the flush when it finishes; in the host's pool, in which the
store is the only user, each time. In lazy mode the device's are stored tail first, and it does not.

What is lost is hits, never correctness. The engine's own `Scheduler` is driven here, step by step,
without a model: its outputs are made up, and a relay hands its calls to the offload's scheduler
side as `SimpleCPUOffloadConnector` does. No KV is copied.
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
    BARE |= {"vllm.v1.structured_output"}
    ABSENT = "cloudpickle uvloop zmq vllm.compilation vllm.config vllm.lora vllm.model_executor "
    ABSENT += "vllm.multimodal vllm.outputs vllm.platforms vllm.tokenizers vllm.usage "
    ABSENT += "vllm.v1.attention.backend vllm.v1.metrics.perf vllm.v1.spec_decode "
    ABSENT += "cachetools vllm.parser vllm.ray vllm.distributed.ec_transfer "
    ABSENT += f"vllm.v1.structured_output.utils {CONNECTOR}.factory {CONNECTOR}.v1"

    class Nothing(ABCMeta):
        def __getattr__(cls, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return Nothing(name, (), {"__init__": lambda self, *arguments, **options: None})

    class Absent(ModuleType):
        def __getattr__(self, name):
            return Nothing.__getattr__(self, name)

    class Unpacked:
        def find_spec(self, name, path, target=None):
            if any(f"{name}.".startswith(f"{one}.") for one in ABSENT.split()):
                return ModuleSpec(name, self, is_package=True)
            if name in BARE:
                spec = ModuleSpec(name, self, is_package=True)
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
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched import scheduler as engine
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


class Settings(SimpleNamespace):
    """A configuration of which all that is not said is `None`."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


settings = Settings(
    parallel_config=Settings(
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        data_parallel_index=0,
        world_size=1,
    ),
    model_config=Settings(max_model_len=64, runner_type="generate"),
    scheduler_config=Settings(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        policy="fcfs",
        long_prefill_token_threshold=0,
        prefill_schedule_interval=1,
        enable_chunked_prefill=True,
        scheduler_reserve_full_isl=True,
        watermark=0.0,
    ),
    cache_config=Settings(num_gpu_blocks=BLOCKS, enable_prefix_caching=True, block_size=SIZE),
    kv_transfer_config=Settings(kv_load_failure_policy="fail"),
    observability_config=Settings(),
    aux_output_config=Settings(enabled=False),
    ec_manager_config=Settings(get_encoder_cache_manager_obj=lambda: None),
    max_concurrent_batches=1,
    max_in_flight_tokens=64,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_hash_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
)
offload = SimpleCPUOffloadScheduler(
    settings, config, cpu_capacity_bytes=BLOCKS * spec.page_size_bytes,
    scheduler_block_size=SIZE, hash_block_size=SIZE,
)  # fmt: skip


class Relay(engine.SupportsHMA):
    """Hands on what SimpleCPUOffloadConnector hands on, and does nothing where it does nothing."""

    requires_kv_delivery = False

    def request_finished_all_groups(self, request, block_ids):
        return offload.request_finished_all_groups(request, block_ids)

    def __getattr__(self, name):
        return getattr(offload, name, lambda *arguments, **options: None)


engine.KVConnectorFactory = SimpleNamespace(create_connector=lambda **options: Relay())
grammars = SimpleNamespace(accept_tokens=lambda *arguments: True)
scheduler = engine.Scheduler(settings, config, grammars, SIZE, SIZE)
pool = scheduler.kv_cache_manager.block_pool
offload.bind_gpu_block_pool(pool)


def request(name, tokens, most=2):
    return Request(name, list(tokens), SamplingParams(max_tokens=most), None, block_hasher=hasher)


def step(**worker):
    """One step: what is scheduled samples a token, and the workers say what they have done."""
    output = scheduler.schedule()
    ids = list(output.num_scheduled_tokens)
    done = Settings(
        sampled_token_ids=[[99] for _ in ids],
        req_id_to_index={name: i for i, name in enumerate(ids)},
        prompt_logprobs_dict={},
        prompt_token_id_logprobs_dict={},
        kv_connector_output=Settings(**worker) if worker else None,
    )
    scheduler.update_from_output(output, done)
    return output.kv_connector_metadata


def cached(tokens):
    """How many of these tokens the device has cached."""
    asked = request("asked", tokens)
    return scheduler.kv_cache_manager.get_computed_blocks(asked, len(tokens))[1]


def free(some_pool):
    """The free blocks in the order in which they are given up."""
    return [block.block_id for block in some_pool.free_block_queue.get_all_free_blocks()]


# A prompt of four blocks is computed; the next step stores them, and is the request's last.
prompt = range(4 * SIZE)
first = request("first", prompt)
scheduler.add_request(first)
step()
meta = step()
assert first.is_finished()
print("stored:", meta.store_gpu_blocks, "of the device as", meta.store_cpu_blocks, "of the host")

# The store completes while nobody else has the blocks.
stored = SimpleCPUOffloadWorkerMetadata(completed_store_events={meta.store_event: 1})
step(kv_connector_worker_meta=stored)
device, host = free(pool), free(offload.cpu_block_pool)
print("the device gives up its free blocks in this order:", device)
print("the host gives up its free blocks in this order:  ", host)

# Another request needs two blocks: one is free, and one of the prompt's has to go.
before = cached(prompt)
scheduler.add_request(request("other", range(100, 100 + 2 * SIZE)))
step()
after = cached(prompt)
left = sum(block.block_hash is not None and block.ref_cnt == 0 for block in pool.blocks)
print(f"of the prompt's {len(prompt)} tokens the device had {before} cached, and has {after} now")
print(f"{left} of its 4 blocks are cached still, and none can be found")
assert device[-4:] == meta.store_gpu_blocks
assert host[-4:] == meta.store_cpu_blocks
assert (before, after, left) == (4 * SIZE, 0, 3)
