"""vllm 0.33.0: blocks whose load failed stay in the prefix cache, and are found after an abort.

With `kv_load_failure_policy="recompute"` (the default is "fail") a running request whose
synchronous load failed is to compute the failed blocks again. `Scheduler._handle_invalid_blocks`
leaves them in the index meanwhile, since they "will be recomputed and reused by other requests
sharing them". Where the request is aborted before its next step nobody computes them, and the next
request with the same prompt takes them for computed: contents that were never loaded are read.

The engine's own `Scheduler` is driven here, step by step, without a model: its outputs are made up,
and so is a connector that promises eight tokens and whose worker then reports that both blocks
could not be loaded. No operation of the suite says that contents turned out to be missing, so the
suite does not find this.
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
from vllm.v1.request import Request, RequestStatus

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
    kv_transfer_config=Settings(kv_load_failure_policy="recompute"),
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


class Connector(engine.SupportsHMA):
    """Promises the first two blocks of the first request, to be loaded within the step."""

    requires_kv_delivery = False

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return (2 * SIZE if request.request_id == "first" else 0), False

    def request_finished_all_groups(self, request, block_ids):
        return False, None

    def __getattr__(self, name):
        return lambda *arguments, **options: None


engine.KVConnectorFactory = SimpleNamespace(create_connector=lambda **options: Connector())
grammars = SimpleNamespace(accept_tokens=lambda *arguments: True)
scheduler = engine.Scheduler(settings, config, grammars, SIZE, SIZE)


def request(name):
    tokens = list(range(3 * SIZE))
    return Request(name, tokens, SamplingParams(max_tokens=4), None, block_hasher=hasher)


first = request("first")
scheduler.add_request(first)
output = scheduler.schedule()
failed = scheduler.kv_cache_manager.get_block_ids("first")[0][:2]
result = Settings(
    sampled_token_ids=[[99]],
    req_id_to_index={"first": 0},
    prompt_logprobs_dict={},
    prompt_token_id_logprobs_dict={},
    kv_connector_output=Settings(invalid_block_ids=set(failed)),
)
scheduler.update_from_output(output, result)
print(f"blocks {failed} could not be loaded; {first.num_computed_tokens} tokens are computed now")
assert first.num_computed_tokens == 0

scheduler.finish_requests("first", RequestStatus.FINISHED_ABORTED)
scheduler.add_request(request("second"))
computes = scheduler.schedule().num_scheduled_tokens["second"]
(blocks,) = scheduler.kv_cache_manager.get_block_ids("second")
print(
    f"the next request computes {computes} of its {3 * SIZE} tokens, and reads blocks {blocks[:2]}"
)
assert computes == SIZE
assert blocks[:2] == failed
