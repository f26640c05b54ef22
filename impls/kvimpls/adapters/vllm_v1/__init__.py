"""The paged cache of vLLM 0.33 (Apache-2.0), behind the interface.

The engine is `vllm.v1.core`: `KVCacheManager` (kv_cache_manager.py) with its coordinator
(kv_cache_coordinator.py) and managers (single_type_kv_cache_manager.py), and below them `BlockPool`
(block_pool.py). They need no model and no device. The adapters do what the engine's callers do
around each call, naming the function that they follow: v1/core/sched/scheduler.py around the
manager, single_type_kv_cache_manager.py around the pool. They check and repair nothing.

Sequences are the engine's own `Request`s (v1/request.py), whose hasher gives the hashes.
"""
