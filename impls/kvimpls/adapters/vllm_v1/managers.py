"""`KVCacheManager`, for the KV groups of a model, and with what its connectors hold."""

from collections.abc import Sequence
from math import gcd, lcm
from typing import Any

import torch
from attrs import evolve, frozen

from kvimpls.adapters.vllm_v1 import published
from kvimpls.adapters.vllm_v1.requests import Sequences, block_ids, refusal
from kvspec import Contract, Geometries, Geometry, OutOfBlocks, UnsupportedGeometry

_UNLIMITED = 2**62
"""`max_model_len` where a sequence has no limit of its own."""


@frozen(eq=False)
class Lease:
    """Blocks that a transfer holds, told from every other lease by its identity."""

    blocks: tuple[Any, ...]


def _spec(block_size: int, window: int | None) -> Any:
    """The KV cache of one layer whose keys and values are one number each."""
    shape: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float16,
    }
    if window is None:
        return published.specs.FullAttentionSpec(**shape)
    return published.specs.SlidingWindowSpec(**shape, sliding_window=window)


def _manager(geometry: Geometry) -> Any:
    """The manager that `Scheduler.__init__` builds for a model of these KV groups."""
    if geometry.num_host_blocks or len(geometry.pools) > 1:
        raise UnsupportedGeometry(f"all KV groups share one device pool: {geometry}")
    groups = geometry.layout
    sizes = [group.block_size for group in groups]
    config = published.specs.KVCacheConfig(
        num_blocks=geometry.num_blocks + 1,  # BlockPool.__init__ keeps one as the null block
        kv_cache_tensors=[],
        kv_cache_groups=[
            published.specs.KVCacheGroupSpec([f"layer.{i}"], _spec(group.block_size, group.window))
            for i, group in enumerate(groups)
        ],
    )
    return published.managers.KVCacheManager(
        config,
        max_model_len=_UNLIMITED if geometry.max_tokens is None else geometry.max_tokens,
        scheduler_block_size=lcm(*sizes),  # both as in kv_cache_utils.resolve_kv_cache_block_sizes
        hash_block_size=gcd(*sizes),
    )


class Manager:
    """`KVCacheManager` with one group of full attention: core, prefix and lease.

    Blocks are cached when their contents are said to be there, as for a request whose first
    tokens a KV connector loads: `allocate_slots(delay_cache_blocks=True)`, and then `cache_blocks`
    as in `Scheduler._update_waiting_for_remote_kv`. Without a connector the scheduler lets
    `allocate_slots` cache them at once, since what one step allocates is computed before the next.
    """

    contract = Contract(
        # Not admission: allocate_slots(full_sequence_must_fit=True) takes what it asks for, and
        # its None is the answer for what must wait and for what can never fit. Not rollback:
        # rejected drafts lower Request.num_computed_tokens, and their blocks stay in the table
        # (SingleTypeKVCacheManager.get_num_blocks_to_allocate: "num_required_blocks may be
        # smaller than num_req_blocks"). Not introspection: see BlockPool.
        capabilities=("core", "prefix", "lease"),
        # FreeKVCacheBlockQueue: "The least recent used block is at the front (LRU)", and of one
        # sequence "the tail of a block chain".
        order="lru",
        # Nothing checks an id or a length: allocate_slots goes on with the blocks of an id in use,
        # free pops "Default to [] in case a request is freed (aborted) before alloc", and a length
        # is cut at max_model_len.
        misuse="callers_duty",
        # BlockPool.reset_prefix_cache: "Failed to reset prefix cache because some blocks are not
        # freed yet".
        reset_when_used="refused",
        # BlockPool.__init__: "a placeholder block with block_id=0".
        first_block=1,
    )

    def __init__(self, geometry: Geometry) -> None:
        self.manager = _manager(geometry)
        self.sequences = Sequences(self.manager.block_pool.hash_block_size)

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.sequences.requests}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def _allocate_slots(self, request: Any, num_tokens: int, *hit: Any) -> None:
        if num_tokens == 0:
            return  # Scheduler.schedule skips a request that has nothing to compute
        new = self.manager.allocate_slots(request, num_tokens, *hit, delay_cache_blocks=True)
        if new is None:
            raise refusal(request, num_tokens, self.num_free_blocks())

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with slots for `num_tokens` tokens that nobody can look up."""
        request = self.sequences.request(seq)
        self._allocate_slots(request, num_tokens)
        self.sequences.admit(seq, request)
        self.sequences.extend_unknown(request, num_tokens)

    def append(self, seq: int, num_tokens: int) -> None:
        """Slots for `num_tokens` more tokens: a running request in `Scheduler.schedule`."""
        request = self.sequences.requests[seq]
        self._allocate_slots(request, num_tokens)
        self.sequences.extend_unknown(request, num_tokens)

    def free(self, seq: int) -> None:
        """End `seq`, as `Scheduler._free_request_blocks` does."""
        self.manager.free(self.sequences.end(seq))

    def block_table(self, seq: int) -> list[int | None]:
        """The blocks of `seq`, `None` for the null block."""
        return block_ids(self._blocks(seq))

    def _blocks(self, seq: int, group: int = 0) -> Sequence[Any]:
        blocks: Sequence[Any] = self.manager.get_blocks(str(seq)).blocks[group]
        return blocks

    def num_free_blocks(self) -> int:
        """The length of the pool's free queue, in which cached blocks are too."""
        return int(self.manager.block_pool.get_num_free_blocks())

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: object = None) -> int:
        """Start `seq` with a prompt, as `Scheduler.schedule` starts a waiting request."""
        request = self.sequences.request(seq, tokens, key)
        hits = 0
        if request.num_tokens:
            blocks, hits, _ = self.manager.get_computed_blocks(request)
            self._allocate_slots(request, request.num_tokens - hits, hits, blocks)
        self.sequences.admit(seq, request)
        return int(hits)

    def append_tokens(self, seq: int, tokens: Sequence[int]) -> None:
        """Slots for more tokens of `seq`, which are known."""
        request = self.sequences.requests[seq]
        self._allocate_slots(request, len(tokens))
        self.sequences.extend(request, tokens)

    def mark_written(self, seq: int, num_tokens: int) -> None:
        """The first `num_tokens` are there: as in `Scheduler._update_waiting_for_remote_kv`."""
        self.manager.cache_blocks(self.sequences.requests[seq], num_tokens)

    def lookup(self, tokens: Sequence[int], key: object = None) -> int:
        """The length of the hit, where the last token need not be left to be computed."""
        request = self.sequences.request(-1, tokens, key)
        return int(self.manager.get_computed_blocks(request, request.num_tokens)[1])

    def reset_prefix_cache(self) -> None:
        """Forget all contents, as `Scheduler.reset_prefix_cache` does without preempting."""
        if not self.manager.reset_prefix_cache():
            raise OutOfBlocks("blocks are in use")

    def begin_transfer(self, seq: int) -> Lease:
        """Hold the blocks of `seq`, as MooncakeStoreScheduler pins those that it saves."""
        lease = Lease(tuple(self._blocks(seq)))
        self.manager.block_pool.touch(lease.blocks)
        return lease

    def end_transfer(self, lease: Lease) -> None:
        """Let go of them "tail-first, as elsewhere, so the shared prefix is evicted last"."""
        self.manager.block_pool.free_blocks(reversed(lease.blocks))


class OffloadManager(Manager):
    """The same manager, whose blocks are held as the offload to the host's memory holds them."""

    def end_transfer(self, lease: Lease) -> None:
        """Let go of them, head first, as SimpleCPUOffloadScheduler._process_store_completion."""
        self.manager.block_pool.free_blocks(lease.blocks)


class WindowManager(Manager):
    """`KVCacheManager` with one group of sliding-window attention: window as well.

    Without windows of one token, which see no earlier block: SlidingWindowManager needs none for a
    hit then (`_contiguous_blocks_for_hit`), and so caches none (`reachable_block_mask`).
    """

    contract = evolve(
        Manager.contract,
        capabilities=("core", "prefix", "lease", "window"),
        # KVCacheManager.allocate_slots frees what the window skips first: "We can do this even if
        # we cannot schedule this request due to insufficient free blocks".
        window_before_refusal=True,
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.window == 1:
            raise UnsupportedGeometry(f"a window that sees an earlier token: {geometry}")
        super().__init__(geometry)


class HybridManager(Manager):
    """`KVCacheManager` with the groups of a hybrid model, which share one pool."""

    contract = evolve(
        Manager.contract,
        capabilities=("core", "groups", "window", "lease"),
        window_before_refusal=True,
        # KVCacheManager has one BlockPool, which KVCacheCoordinator gives to all its managers.
        geometries=Geometries(own_pools=False),
    )

    def block_table(self, seq: int, group: int = 0) -> list[int | None]:
        """The blocks of `seq` in a group."""
        return block_ids(self._blocks(seq, group))

    def num_free_blocks(self, pool: int = 0) -> int:
        """The one pool's free blocks."""
        return super().num_free_blocks()

    def begin_transfer(self, seq: int) -> Lease:
        """Hold the blocks of `seq` in all groups."""
        lease = Lease(tuple(map(tuple, self.manager.get_blocks(str(seq)).blocks)))
        for blocks in lease.blocks:
            self.manager.block_pool.touch(blocks)
        return lease

    def end_transfer(self, lease: Lease) -> None:
        """Let go of them, group by group."""
        for blocks in lease.blocks:
            self.manager.block_pool.free_blocks(reversed(blocks))
