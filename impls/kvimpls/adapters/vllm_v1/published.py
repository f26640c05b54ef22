"""The engine's own modules, as it was published."""

import logging
from importlib import import_module
from typing import Any

from kvimpls.adapters.engines import engine

# What the block manager imports for its types alone, and libraries that only the engine's servers,
# kernels and workers use. Hashing (hashlib, pickle) and the requests (msgspec, pydantic) are real.
_STAND_INS = (
    "cloudpickle",
    "uvloop",
    "zmq",
    "vllm.compilation",
    "vllm.config",
    "vllm.lora",
    "vllm.model_executor",
    "vllm.multimodal",
    "vllm.outputs",
    "vllm.platforms",
    "vllm.reasoning",
    "vllm.tokenizers",
    "vllm.usage",
    "vllm.v1.metrics.perf",
    "vllm.v1.spec_decode",
)

with engine(
    "vllm",
    "0.33.0",
    bare=("vllm", "vllm.distributed", "vllm.v1.structured_output"),
    stand_ins=_STAND_INS,
):
    pools: Any = import_module("vllm.v1.core.block_pool")
    managers: Any = import_module("vllm.v1.core.kv_cache_manager")
    utils: Any = import_module("vllm.v1.core.kv_cache_utils")
    specs: Any = import_module("vllm.v1.kv_cache_interface")
    requests: Any = import_module("vllm.v1.request")
    SamplingParams: Any = import_module("vllm.sampling_params").SamplingParams
    sha256: Any = import_module("vllm.utils.hashing").sha256
    # As EngineCore.__init__ does before it builds the scheduler.
    import_module("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(None)
    utils.init_none_hash(sha256)

# A cache that may not be reset while blocks are in use warns about it each time.
logging.getLogger("vllm").setLevel(logging.ERROR)
