"""The engine's own classes, as it was published, and its settings for a small model."""

from importlib import import_module
from typing import Any

import torch

from kvimpls.adapters.engines import engine
from kvimpls.adapters.small import HEAD_DIM, KV_HEADS
from kvspec import Geometry

# Only models of transformers are looked for there, and none is run here.
with engine("bllm-inference", "0.1.0", bare=("bllm",), stand_ins=("transformers", "flash_attn")):
    PagedAttention: Any = import_module("bllm.attention.paged_attention").PagedAttention
    BlockAllocator: Any = import_module("bllm.core.block_allocator").BlockAllocator
    InferenceConfig: Any = import_module("bllm.core.config").InferenceConfig
    PagedCacheConfig: Any = import_module("bllm.core.config").PagedCacheConfig
    PagedKVCache: Any = import_module("bllm.core.kv_cache").PagedKVCache
    PageTable: Any = import_module("bllm.core.page_table").PageTable
    PagedQwen: Any = import_module("bllm.models.qwen").PagedQwen
    InferenceRequest: Any = import_module("bllm.scheduler.request").InferenceRequest
    Scheduler: Any = import_module("bllm.scheduler.scheduler").Scheduler


def cache_config(geometry: Geometry) -> Any:
    """The engine's settings of a cache for a model of one layer, small and exact in its sums."""
    return PagedCacheConfig(
        num_layers=1,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=geometry.block_size,
        num_blocks=geometry.num_blocks,
        dtype=torch.float32,
        device="cpu",
    )


def inference_config(geometry: Geometry) -> Any:
    """The engine's settings of its requests, whose limit is the pool's where none is asked for."""
    return InferenceConfig(max_seq_len=geometry.max_tokens or geometry.capacity)


def page_table(config: Any, inference: Any) -> Any:
    """The engine's tables for its batch, as both its scheduler and its model have them."""
    return PageTable(
        max_batch_size=inference.max_batch_size,
        max_blocks_per_seq=inference.max_blocks_per_seq(config.block_size),
        block_size=config.block_size,
        device="cpu",
    )


def keys_and_values(values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as the engine's tensors, each of shape `[rows, num_kv_heads, head_dim]`."""
    rows = torch.tensor(values, dtype=torch.float32)
    keys, numbers = rows.view(len(rows), 2, KV_HEADS, HEAD_DIM).unbind(1)
    return keys, numbers


def rows(keys: torch.Tensor, values: torch.Tensor) -> Any:
    """The inverse: rows of the keys of all heads, and then their values."""
    return torch.cat([keys.flatten(1), values.flatten(1)], dim=1).numpy()
