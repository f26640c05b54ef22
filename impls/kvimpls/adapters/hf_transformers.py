"""The paged cache of Hugging Face transformers 5.24.0, behind the interface.

The engine is `transformers.generation.continuous_batching`: `PagedAttentionCache` (cache.py) with
its `CachePool` and `FullAttentionCacheAllocator` (cache_allocators/). It needs no model and runs
on the CPU. `PagedCache` does what the engine's scheduler does around each call, naming the function
that it follows. `PrefixSharingCache` is the same with the blocks that the engine finds again by
their hash. Nothing is checked and nothing repaired: a fault of the engine comes through.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import gcd
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch
from attrs import evolve

from kvimpls.adapters import engines
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks, UnsupportedGeometry

with engines.engine("transformers", "5.24.0"):  # an ordinary package: nothing of it is left out
    from transformers import PreTrainedConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching import cache as engine
    from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION
    from transformers.generation.continuous_batching.distributed import DistributedHelper
    from transformers.generation.continuous_batching.initialization import check_cb_values_bounds
    from transformers.generation.continuous_batching.requests import RequestState
    from transformers.generation.continuous_batching.utils import get_device_and_memory_breakdown


@cache
def _model(block_size: int) -> PreTrainedConfig:
    """A model of one layer of full attention, whose blocks of `block_size` tokens are sectors.

    `PagedAttentionCache.__init__` makes a sector the least common multiple of 128 bytes and a
    block: keys and values of `head_dim` numbers of 2 bytes a token. The smallest head for which
    that is one block keeps the pool at exactly as many blocks as were asked for, and small.
    """
    head_dim = 32 // gcd(32, block_size)
    return PreTrainedConfig.from_dict(
        {
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "head_dim": head_dim,
            "hidden_size": head_dim,
            "vocab_size": 1,
        },
        attn_implementation="sdpa",
    )


@cache
def _single_process() -> DistributedHelper:
    """The engine's helper for a run without tensor parallelism."""
    return DistributedHelper(device_mesh=None, cpu_group_timeout=None)


# `PagedAttentionMemoryHandler.get_available_memory` reads /proc/self/numa_maps, which takes many
# times as long as the rest of a build. Where the number of blocks is given, the answer decides
# nothing but whether to raise MemoryError, so it is asked for once.
_memory = cache(get_device_and_memory_breakdown)
_building = Lock()


def _build(geometry: Geometry) -> engine.PagedAttentionCache:
    """The engine's cache for `geometry`; `UnsupportedGeometry` where it cannot be built."""
    if geometry.window is not None or geometry.max_tokens is not None or geometry.num_host_blocks:
        raise UnsupportedGeometry(f"only num_blocks and block_size can be chosen: {geometry}")
    settings = ContinuousBatchingConfig(
        page_size=geometry.block_size,
        num_blocks=geometry.num_blocks,
        # The buffers of a batch count as memory; none is run here.
        max_batch_tokens=1,
        max_memory_percent=1.0,
        # Off, `CacheAllocator.count_shareable_blocks` is 0 and a fork copies every block. On,
        # prefix sharing is allowed too, and idle until `mark_complete_blocks` gives blocks a hash.
        allow_block_sharing=True,
    )
    try:
        check_cb_values_bounds(settings)  # as resolve_continuous_batching_config does
    except ValueError as error:
        raise UnsupportedGeometry(str(error)) from error
    try:
        with _building, patch.object(engine, "get_device_and_memory_breakdown", _memory):
            return engine.PagedAttentionCache(
                _model(geometry.block_size),
                settings,
                device="cpu",
                distributed_helper=_single_process(),
                dtype=torch.float16,
            )
    except MemoryError as error:
        raise UnsupportedGeometry(str(error)) from error


class PagedCache:
    """`PagedAttentionCache` with one full-attention allocator, as a core and sharing allocator.

    What the engine's callers keep is kept here and nothing else: a `RequestState` a sequence, whose
    `position_offset` is the length in tokens. The engine's refusals are raised as `OutOfBlocks`;
    all else that it raises comes through as it is.

    Source: transformers 5.24.0, generation/continuous_batching: cache.py, cache_allocators/ and,
    for the calls' surroundings, scheduler.py, input_outputs.py and continuous_api.py.
    """

    contract = Contract(
        # Not admission: can_store_request_tokens(dry_run=True) says yes or no, and no query tells
        # a request that must wait from one that can never fit. Not introspection: BlockLedger
        # counts the users of a block from the second on, so one user and none look the same.
        capabilities=("core", "sharing"),
        # CacheAllocator.fork_blocks: the first past_length // tokens_per_page blocks are shared,
        # "and others are backed by fresh blocks", whose "content the caller must copy".
        eager_fork="tail",
        # Nothing checks an id or a length. CacheAllocator.free_blocks frees nothing for an unknown
        # id, allocate_cache_to_request keeps the table of an id in use, fork_blocks overwrites it,
        # and _compute_blocks_needed needs no block for a negative length.
        misuse="callers_duty",
        # CachePool.__init__: num_reserved_sectors=2, which padding tokens read and write.
        first_block=2,
        # initialization.BOUNDS: at least 4 tokens a page; these, of all above. Nothing limits a
        # sequence: max_blocks_per_request is the width of the fast decode path's table.
        geometries=Geometries(block_sizes=(*range(4, 17), 32, 64, 128, 256), max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        self.cache = _build(geometry)
        self.allocator = self.cache.cache_allocators[FULL_ATTENTION]
        self.active_requests: dict[str, RequestState] = {}  # as Scheduler.active_requests

    def __repr__(self) -> str:
        return f"PagedCache({self.allocator.block_table}, free={self.num_free_blocks()})"

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with `num_tokens` reserved slots: a prompt that is prefilled in one batch."""
        state = RequestState(request_id=str(seq), initial_tokens=[])
        self._store(state, num_tokens)
        self.active_requests[state.request_id] = state  # Scheduler._schedule_request

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for `num_tokens` more tokens of `seq`: a decode, or more of a prompt."""
        self._store(self.active_requests[str(seq)], num_tokens)

    def _store(self, state: RequestState, num_tokens: int) -> None:
        # Scheduler._process_candidates; the first line is in _try_to_meet_safety_margin.
        self.cache.pool.try_to_free_sectors()
        if not self.cache.can_store_request_tokens(state, num_tokens):
            raise OutOfBlocks(
                f"no room for {num_tokens} tokens after the {state.current_len()} of request "
                f"{state.request_id}: {self.num_free_blocks()} blocks are free"
            )
        state.position_offset += num_tokens  # ContinuousBatchingIOs.prepare_batch_tensors

    def free(self, seq: int) -> None:
        """End `seq`: a request that is finished, as in `Scheduler.finish_request`."""
        self.cache.free_blocks(str(seq))
        self.active_requests.pop(str(seq), None)

    def fork(self, parent: int, child: int) -> list[Copy]:
        """Start `child` with the full blocks of `parent` and a copy of its partly filled tail.

        As in `ContinuousBatchProcessor.update_batch`, which hands the copies to
        `PagedAttentionCache.perform_cache_copy`.
        """
        self.cache.pool.try_to_free_sectors()
        state = self.active_requests[str(parent)]
        copies: dict[str, tuple[list[int], list[int]]] = {FULL_ATTENTION: ([], [])}
        if not self.cache.prepare_fork_request(state, [str(child)], copies):
            raise OutOfBlocks(
                f"no room to fork the {state.current_len()} tokens of request {state.request_id}: "
                f"{self.num_free_blocks()} blocks are free"
            )
        self.active_requests[str(child)] = state.fork(str(child))
        return [Copy(*pair) for pair in zip(*copies[FULL_ATTENTION], strict=True)]

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`; the two trash sectors are the blocks 0 and 1."""
        return list(self.allocator.block_table[str(seq)])

    def num_free_blocks(self) -> int:
        """The free bytes that the engine counts, in blocks."""
        free_bytes = self.cache.compute_free_capacity(relative=False)
        return int(free_bytes) // self.allocator.bytes_per_block


class PrefixSharingCache(PagedCache):
    """`PagedCache` whose complete blocks are found again by their hash: core, sharing and prefix.

    The engine publishes a block after the forward pass that completed it, which is `mark_written`
    here. It knows contents by tokens alone, so tokens under each key get numbers of their own.
    """

    contract = evolve(
        PagedCache.contract,
        # Not rollback nor swap: a request that is offloaded loses its whole table.
        capabilities=("core", "sharing", "prefix"),
        # CacheAllocator.mark_complete_blocks: "the request adopts the existing block and releases
        # its duplicate".
        deduplicates=True,
        # PagedAttentionCache.compute_free_capacity adds free sectors and the pool's free blocks. A
        # cached block is in neither until evict_cached_blocks is "returning them to the pool".
        free_counts_cached=False,
        # CacheAllocator.free_blocks: complete blocks "are cached but may be released anytime". And
        # they are: BlockLedger.evict_cached_blocks "evicts all the cached blocks", however few are
        # short; OffloadingManager.offload_requests has that done before it knows whether it helps,
        # and frees what a starved request had matched so that it "cannot be reused later".
        forgets=True,
        # BlockLedger.evict_cached_blocks passes by the blocks that a request has, which keep their
        # hashes, and PagedAttentionCache.reset "frees the cache of all requests".
        reset_when_used="refused",
    )

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.keys: dict[str, Any] = {}
        self.marks: dict[str, int] = {}
        self.token_ids: dict[tuple[str, int], int] = {}

    def _numbers(self, tokens: Sequence[int], key: Any) -> list[int]:
        numbers, name = self.token_ids, repr(key)
        return [numbers.setdefault((name, int(token)), len(numbers)) for token in tokens]

    def _store(self, state: RequestState, num_tokens: int) -> None:
        # ContinuousBatchProcessor.prepare_next_batch: where nothing could be scheduled, it has the
        # cached blocks evicted, and tries again if there were any.
        try:
            super()._store(state, num_tokens)
        except OutOfBlocks:
            if not self.cache.evict_cached_blocks():
                raise
            super()._store(state, num_tokens)

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq` with what is cached of `tokens`, as `Scheduler._infer_request_tokens`."""
        state = RequestState(request_id=str(seq), initial_tokens=self._numbers(tokens, key))
        prompt = state.remaining_prefill_tokens
        cached = self.cache.search_prefix_match(state.request_id, prompt)
        state.position_offset += cached
        try:
            self._store(state, len(prompt) - cached)
        except OutOfBlocks:
            # OffloadingManager.offload_requests goes on with this where the eviction was no help.
            self.cache.free_blocks(state.request_id, no_cache=True)
            raise
        self.active_requests[state.request_id] = state
        self.keys[state.request_id], self.marks[state.request_id] = key, cached
        return cached

    def append_tokens(self, seq: int, tokens: Sequence[int]) -> None:
        """Reserve slots for more tokens of `seq`, which are known where all before them are."""
        state = self.active_requests[str(seq)]
        all_known = len(_tokens(state)) == state.current_len()
        self._store(state, len(tokens))
        if all_known:
            state.generated_tokens += self._numbers(tokens, self.keys.get(state.request_id))

    def mark_written(self, seq: int, num_tokens: int) -> None:
        """Publish the blocks that are complete now, as `ContinuousBatchProcessor.update_batch`.

        The forward pass is one of the tokens since the last mark; their blocks were counted when
        it was scheduled (`Scheduler._process_candidates`).
        """
        state = self.active_requests[str(seq)]
        mark = self.marks.get(state.request_id, 0)
        if num_tokens <= mark:  # no forward pass is without tokens
            return
        scheduled = RequestState(request_id=str(seq), initial_tokens=[], position_offset=mark)
        complete = self.cache.count_new_complete_blocks(scheduled, num_tokens - mark)
        self.cache.mark_complete_blocks(state, complete)
        self.marks[state.request_id] = num_tokens

    def lookup(self, tokens: Sequence[int], key: Any = None) -> int:
        """What a prompt of these tokens and one more would be matched with."""
        blocks = self.allocator.match_prefix_blocks([*self._numbers(tokens, key), -1])
        return len(blocks) * self.allocator.tokens_per_page

    def reset_prefix_cache(self) -> None:
        """Evict all that is cached; refused where a request has blocks, which would stay."""
        if any(self.allocator.block_table.values()):
            raise OutOfBlocks("the blocks that are in use keep their hashes")
        self.cache.evict_cached_blocks()

    def fork(self, parent: int, child: int) -> list[Copy]:
        """As without prefix sharing: the child has the parent's tokens, key and mark."""
        copies = super().fork(parent, child)
        for kept in (self.keys, self.marks):
            if str(parent) in kept:
                kept[str(child)] = kept[str(parent)]
        return copies

    def free(self, seq: int) -> None:
        """As without prefix sharing: what is complete stays cached."""
        super().free(seq)
        for kept in (self.keys, self.marks):
            kept.pop(str(seq), None)


def _tokens(state: RequestState) -> list[int]:
    """All tokens of a request, as `PagedAttentionCache.mark_complete_blocks` takes them."""
    return state.initial_tokens + state.generated_tokens


class EvictingPrefixSharingCache(PrefixSharingCache):
    """The same, whose caller evicts by itself: core, sharing, prefix and eviction.

    `ContinuousBatchProcessor.prepare_next_batch` evicts where nothing could be scheduled, and
    `update_batch` does not before a fork. Here neither does; it shows what lies behind.
    """

    contract = evolve(
        PrefixSharingCache.contract,
        capabilities=("core", "sharing", "prefix", "eviction"),
        # CachePool and CacheAllocator evict nothing: what takes blocks counts those of the pool.
        eviction="explicit",
    )

    def _store(self, state: RequestState, num_tokens: int) -> None:
        PagedCache._store(self, state, num_tokens)

    def evict(self, num_blocks: int) -> list[int]:
        """All blocks that are cached, whatever was asked: `evict_cached_blocks` takes no number."""
        blocks = list(self.allocator.ledger.cached_blocks)
        self.cache.evict_cached_blocks()
        return blocks


class FalliblePagedCache(PagedCache):
    """The same cache, whose own source of blocks may fail: core and injection.

    The checkpoint sits in front of `CachePool.allocate_sector` and `CachePool.get_free_blocks`,
    from which all blocks of the engine come. Sharing is left out: `CacheAllocator.fork_blocks`
    raises the counts of the shared blocks before it takes those for the rest, and does not lower
    them again where that fails.
    """

    contract = evolve(PagedCache.contract, capabilities=("core", "injection"))

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry)
        if checkpoint is not None:
            pool = self.cache.pool
            for name in ("allocate_sector", "get_free_blocks"):
                setattr(pool, name, _failing_at(checkpoint, name, getattr(pool, name)))


def _failing_at(
    checkpoint: Callable[[str], object], name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """`function`, that reaches the checkpoint first."""

    def checked(*arguments: Any) -> Any:
        checkpoint(name)
        return function(*arguments)

    return checked
