"""The paged cache of vLLM 0.33 (Apache-2.0), behind the interface.

The engine is `vllm.v1.core`: `KVCacheManager` (kv_cache_manager.py) with its coordinator
(kv_cache_coordinator.py) and managers (single_type_kv_cache_manager.py), and below them `BlockPool`
(block_pool.py). They need no model and no device. The adapters do what the engine's callers do
around each call, naming the function that they follow: v1/core/sched/scheduler.py around the
manager, single_type_kv_cache_manager.py around the pool. They check and repair nothing.

Sequences are the engine's own `Request`s (v1/request.py), whose hasher gives the hashes.
"""

import logging
from collections.abc import Sequence
from importlib import import_module
from math import gcd, lcm
from typing import Any

import torch
from attrs import evolve, frozen

from kvimpls.adapters.engines import engine
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks, UnsupportedGeometry

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
    _pools = import_module("vllm.v1.core.block_pool")
    _managers = import_module("vllm.v1.core.kv_cache_manager")
    _utils = import_module("vllm.v1.core.kv_cache_utils")
    _specs = import_module("vllm.v1.kv_cache_interface")
    _requests = import_module("vllm.v1.request")
    _SamplingParams = import_module("vllm.sampling_params").SamplingParams
    _sha256 = import_module("vllm.utils.hashing").sha256
    # As EngineCore.__init__ does before it builds the scheduler.
    import_module("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(None)
    _utils.init_none_hash(_sha256)

# A cache that may not be reset while blocks are in use warns about it each time.
logging.getLogger("vllm").setLevel(logging.ERROR)

_UNLIMITED = 2**62
"""`max_model_len` where a sequence has no limit of its own."""

_UNKNOWN = 0
"""Stands for a token whose value nobody said; what it is in has no hash."""

_PARAMS = _SamplingParams(max_tokens=1)


class _Sequences:
    """The requests of live sequences, with the hashes that the engine gives them."""

    def __init__(self, hash_block_size: int) -> None:
        self.requests: dict[int, Any] = {}
        self.unknown: set[str] = set()
        hashes = _utils.get_request_block_hasher(hash_block_size, _sha256)
        self._hasher = lambda request: [] if request.request_id in self.unknown else hashes(request)

    def request(self, seq: int, tokens: Sequence[int] = (), key: object = None) -> Any:
        """A request as `Request.from_engine_core_request` makes it; a salt is a string."""
        return _requests.Request(
            request_id=str(seq),
            prompt_token_ids=[int(token) for token in tokens],
            sampling_params=_PARAMS,
            pooling_params=None,
            cache_salt=None if key is None else repr(key),
            block_hasher=self._hasher,
        )

    def admit(self, seq: int, request: Any) -> None:
        """Keep the request of a sequence that was scheduled, as `Scheduler.requests` does."""
        self.requests[seq] = request
        request.status = _requests.RequestStatus.RUNNING
        request.num_computed_tokens = request.num_tokens  # Scheduler._update_after_schedule

    def extend(self, request: Any, tokens: Sequence[int]) -> None:
        """Tokens that were sampled and are computed, as in `_update_request_with_output`."""
        request.append_output_token_ids([int(token) for token in tokens])
        request.num_computed_tokens = request.num_tokens

    def extend_unknown(self, request: Any, num_tokens: int) -> None:
        """Tokens of which only the number is known, so that no hash comes after them."""
        if num_tokens:
            self.unknown.add(request.request_id)
        self.extend(request, [_UNKNOWN] * num_tokens)

    def end(self, seq: int) -> Any:
        """The request of a sequence that ends."""
        request = self.requests.pop(seq)
        self.unknown.discard(request.request_id)
        return request


def _refusal(request: Any, num_tokens: int, free: int) -> OutOfBlocks:
    return OutOfBlocks(
        f"no room for {num_tokens} tokens of request {request.request_id} after the "
        f"{request.num_computed_tokens} it has: {free} blocks are free"
    )


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
        return _specs.FullAttentionSpec(**shape)
    return _specs.SlidingWindowSpec(**shape, sliding_window=window)


def _manager(geometry: Geometry) -> Any:
    """The manager that `Scheduler.__init__` builds for a model of these KV groups."""
    if geometry.num_host_blocks or len(geometry.pools) > 1:
        raise UnsupportedGeometry(f"all KV groups share one device pool: {geometry}")
    groups = geometry.layout
    sizes = [group.block_size for group in groups]
    config = _specs.KVCacheConfig(
        num_blocks=geometry.num_blocks + 1,  # BlockPool.__init__ keeps one as the null block
        kv_cache_tensors=[],
        kv_cache_groups=[
            _specs.KVCacheGroupSpec([f"layer.{i}"], _spec(group.block_size, group.window))
            for i, group in enumerate(groups)
        ],
    )
    return _managers.KVCacheManager(
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
        self.sequences = _Sequences(self.manager.block_pool.hash_block_size)

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.sequences.requests}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def _allocate_slots(self, request: Any, num_tokens: int, *hit: Any) -> None:
        if num_tokens == 0:
            return  # Scheduler.schedule skips a request that has nothing to compute
        new = self.manager.allocate_slots(request, num_tokens, *hit, delay_cache_blocks=True)
        if new is None:
            raise _refusal(request, num_tokens, self.num_free_blocks())

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
        return _ids(self._blocks(seq))

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


def _ids(blocks: Sequence[Any]) -> list[int | None]:
    return [None if block.is_null else block.block_id for block in blocks]


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
        return _ids(self._blocks(seq, group))

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


class Pool:
    """`BlockPool` as it is, with the tables that its callers keep: core, sharing, introspection.

    A fork shares the full blocks, as a hit does (`add_local_computed_blocks`), and takes a block
    for a copy of the partly filled one, as a hit that ends in the middle of a block does
    (`allocate_new_blocks`, `_apply_cow`, both of SingleTypeKVCacheManager).
    """

    contract = Contract(
        # Not lease: what pins a block raises the count that introspection shows.
        capabilities=("core", "sharing", "introspection"),
        # SingleTypeKVCacheManager._apply_cow redirects the shared tail to a copy at once.
        eager_fork="tail",
        # Ids and lengths are the managers'; free_blocks lowers any count it is given.
        misuse="callers_duty",
        # BlockPool.__init__: "a placeholder block with block_id=0".
        first_block=1,
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.window is not None or geometry.num_host_blocks:
            raise UnsupportedGeometry(f"the window is the managers': {geometry}")
        self.block_size = geometry.block_size
        self.pool = _pools.BlockPool(geometry.num_blocks + 1, True, geometry.block_size)
        self.req_to_blocks: dict[int, list[Any]] = {}
        self.lengths: dict[int, int] = {}

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.req_to_blocks}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def _num_new(self, seq: int, length: int, blocks: Sequence[Any], revived: int = 0) -> int:
        """How many blocks to take beyond `blocks`, with the test of KVCacheManager.allocate_slots.

        `revived` of `blocks` are free, and are not so any more when they are touched.
        """
        num_new = max(0, -(-length // self.block_size) - len(blocks))
        if num_new + revived > self.pool.get_num_free_blocks():
            raise OutOfBlocks(
                f"no room for {length} tokens of sequence {seq}, which has {len(blocks)} blocks: "
                f"{self.num_free_blocks()} are free"
            )
        return num_new

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with the blocks of `num_tokens` tokens."""
        num_new = self._num_new(seq, num_tokens, ())
        self.req_to_blocks[seq] = self.pool.get_new_blocks(num_new)
        self.lengths[seq] = num_tokens

    def append(self, seq: int, num_tokens: int) -> None:
        """The blocks of `num_tokens` more tokens of `seq`."""
        blocks, length = self.req_to_blocks[seq], self.lengths[seq] + num_tokens
        blocks.extend(self.pool.get_new_blocks(self._num_new(seq, length, blocks)))
        self.lengths[seq] = length

    def free(self, seq: int) -> None:
        """End `seq`: SingleTypeKVCacheManager.free."""
        self.pool.free_blocks(reversed(self.req_to_blocks.pop(seq)))
        del self.lengths[seq]

    def fork(self, parent: int, child: int) -> list[Copy]:
        """Start `child` with the full blocks of `parent`, and a copy of its partly filled one."""
        length = self.lengths[parent]
        blocks = self.req_to_blocks[parent][: -(-length // self.block_size)]
        full = blocks[: length // self.block_size]
        num_new = self._num_new(child, length, full)
        self.pool.touch(full)
        new = self.pool.get_new_blocks(num_new)
        self.req_to_blocks[child], self.lengths[child] = [*full, *new], length
        pairs = zip(blocks[len(full) :], new, strict=True)
        return [Copy(old.block_id, copy.block_id) for old, copy in pairs]

    def block_table(self, seq: int) -> list[int | None]:
        """The blocks of `seq`."""
        return _ids(self.req_to_blocks[seq])

    def num_free_blocks(self) -> int:
        """The length of the free queue, in which cached blocks are too."""
        return int(self.pool.get_num_free_blocks())

    def ref_count(self, block: int) -> int:
        """`KVCacheBlock.ref_cnt`."""
        return int(self.pool.blocks[block].ref_cnt)

    def free_blocks(self) -> list[int]:
        """The blocks in the free queue, in its order."""
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]


class CachingPool(Pool):
    """`BlockPool` with its index of contents: core, prefix and introspection.

    Without sharing: only a hit may give a block two users. `cache_full_blocks` has it that "the
    only valid case where a new full block already has a hash is partial->full promotion of the
    same cache block", and a fork from before a mark would be another.
    """

    contract = evolve(
        Pool.contract,
        capabilities=("core", "prefix", "introspection"),
        eager_fork="none",
        order=Manager.contract.order,
        reset_when_used=Manager.contract.reset_when_used,
    )

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.sequences = _Sequences(geometry.block_size)
        self.num_cached_block: dict[int, int] = {}  # as SingleTypeKVCacheManager.num_cached_block

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with tokens that nobody can look up."""
        super().allocate(seq, num_tokens)
        request = self.sequences.request(seq)
        self.sequences.admit(seq, request)
        self.sequences.extend_unknown(request, num_tokens)

    def append(self, seq: int, num_tokens: int) -> None:
        """More tokens of `seq` that are not known."""
        super().append(seq, num_tokens)
        self.sequences.extend_unknown(self.sequences.requests[seq], num_tokens)

    def append_tokens(self, seq: int, tokens: Sequence[int]) -> None:
        """More tokens of `seq`, which are known."""
        super().append(seq, len(tokens))
        self.sequences.extend(self.sequences.requests[seq], tokens)

    def free(self, seq: int) -> None:
        """End `seq`, as SingleTypeKVCacheManager.free does."""
        super().free(seq)
        self.sequences.end(seq)
        self.num_cached_block.pop(seq, None)

    def _hit(self, request: Any, num_tokens: int) -> list[Any]:
        """The cached blocks from the start, as FullAttentionManager.find_longest_cache_hit."""
        hit: list[Any] = []
        for block_hash in request.block_hashes[: max(0, num_tokens) // self.block_size]:
            cached = self.pool.get_cached_block(block_hash, [0])
            if not cached:
                break
            hit.extend(cached)
        return hit

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: object = None) -> int:
        """Start `seq`: add_local_computed_blocks and allocate_new_blocks of the managers."""
        request = self.sequences.request(seq, tokens, key)
        hit = self._hit(request, request.num_tokens - 1)  # KVCacheManager.get_computed_blocks
        evictable = sum(block.ref_cnt == 0 for block in hit)  # _get_num_evictable_blocks
        num_new = self._num_new(seq, request.num_tokens, hit, evictable)
        self.pool.touch(hit)
        self.req_to_blocks[seq] = [*hit, *self.pool.get_new_blocks(num_new)]
        self.lengths[seq] = request.num_tokens
        self.num_cached_block[seq] = len(hit)
        self.sequences.admit(seq, request)
        return len(hit) * self.block_size

    def mark_written(self, seq: int, num_tokens: int) -> None:
        """SingleTypeKVCacheManager.cache_blocks."""
        request, cached = self.sequences.requests[seq], self.num_cached_block.get(seq, 0)
        full = min(num_tokens // self.block_size, len(request.block_hashes))
        if cached < full:
            blocks = self.req_to_blocks[seq]
            self.pool.cache_full_blocks(request, blocks, cached, full, self.block_size, 0)
            self.num_cached_block[seq] = full

    def lookup(self, tokens: Sequence[int], key: object = None) -> int:
        """How many tokens' blocks are cached from the start."""
        request = self.sequences.request(-1, tokens, key)
        return len(self._hit(request, request.num_tokens)) * self.block_size

    def reset_prefix_cache(self) -> None:
        """Forget all contents."""
        if not self.pool.reset_prefix_cache():
            raise OutOfBlocks("blocks are in use")
