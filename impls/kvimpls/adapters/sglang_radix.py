"""The paged allocator and the radix cache of sglang 0.5.23.

The engine is `sglang.srt.mem_cache` (Apache-2.0, SGLang Team): `PagedTokenToKVPoolAllocator`
(allocator/paged.py), `ReqToTokenPool` (memory_pool.py) and `RadixCache` (radix_cache.py). The
calls follow alloc_for_extend and alloc_for_decode_default (allocation.py), match_kv_cache,
checkpoint_kv_cache and release_kv_cache (common.py); nothing is checked and nothing is repaired
here. Without a GPU the allocator takes its own torch functions, `alloc_extend_naive` and
`alloc_decode_naive`, in place of the Triton kernels; these are what runs here.

A page is a block. Page 0 is for what padded tokens write.
"""

from array import array
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
from attrs import evolve

from kvimpls.adapters.engines import engine
from kvspec import Contract, Geometries, Geometry, OutOfBlocks

# Packages whose __init__ imports models, and what the modules here import for GPUs, for servers, or
# for metrics, and do not use.
with engine(
    "sglang",
    "0.5.23",
    bare=(
        "sglang",
        "sglang.srt",
        "sglang.srt.configs",
        "sglang.srt.managers",
        "sglang.srt.mem_cache",
    ),
    stand_ins=(
        "orjson",
        "pybase64",
        "starlette",
        "triton",
        "zmq",
        "sglang.kernels",
        "sglang.srt.disaggregation",
        "sglang.srt.distributed",
        "sglang.srt.layers",
        "sglang.srt.observability",
    ),
):
    _allocator: Any = import_module("sglang.srt.mem_cache.allocator")
    _base: Any = import_module("sglang.srt.mem_cache.base_prefix_cache")
    _common: Any = import_module("sglang.srt.mem_cache.common")
    _pools: Any = import_module("sglang.srt.mem_cache.memory_pool")
    _radix: Any = import_module("sglang.srt.mem_cache.radix_cache")
    _params: Any = import_module("sglang.srt.mem_cache.cache_init_params")
    _utils: Any = import_module("sglang.srt.utils")

ROWS = 64  # requests at a time


class PagedAllocator:
    """`PagedTokenToKVPoolAllocator` with the request pool and no prefix cache: core and batch.

    A sequence is a request: a row of `ReqToTokenPool`, and the record that `Req.kv` is. A refusal
    of the engine is `OutOfBlocks`; all else that it raises comes through as it is.
    """

    contract = Contract(
        # Not rollback: what was reserved for rejected drafts stays with the request until it ends.
        # Not admission: PrefillBudget.check_prefill answers for a request's whole future, by an
        # estimate. Not introspection: pages have no counts. No function forks a request.
        capabilities=("core", "batch"),
        # free() "no double-free contract": nothing but its debug mode looks at what is given back.
        misuse="callers_duty",
        # clear(): "The padded slot 0 is used for writing dummy outputs from padded tokens".
        first_block=1,
        # A page of one token is another class, TokenToKVPoolAllocator. The length of a request is
        # the caller's, the width of ReqToTokenPool being the model's.
        geometries=Geometries(block_sizes=(*range(2, 17), 32, 64, 128, 256), max_tokens="none"),
    )
    need_sort = False
    disable_radix = True

    def __init__(self, geometry: Geometry) -> None:
        self.page = geometry.block_size
        self.pool = _pools.ReqToTokenPool(
            size=ROWS,
            max_context_len=geometry.capacity,
            device="cpu",
            enable_memory_saver=False,
        )
        self.allocator = _allocator.PagedTokenToKVPoolAllocator(
            geometry.capacity,
            page_size=self.page,
            dtype=torch.float16,
            device="cpu",
            kvcache=None,
            need_sort=self.need_sort,
        )
        self.tree = _radix.RadixCache(
            _params.CacheInitParams(
                disable=self.disable_radix,
                req_to_token_pool=self.pool,
                token_to_kv_pool_allocator=self.allocator,
                page_size=self.page,
            )
        )
        self.requests: dict[int, Any] = {}
        self._unknown = count(-1, -1)  # tokens that nobody else has

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.requests}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with `num_tokens` reserved slots: a prompt that is prefilled at once."""
        self._start(seq, self._tokens(num_tokens), None)

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for `num_tokens` more tokens of `seq`."""
        self._extend([self.requests[seq]], [self._tokens(num_tokens)])

    def append_batch(self, seqs: Sequence[int], num_tokens: Any) -> None:
        """Reserve slots for more tokens of each sequence, in one batch."""
        seqs = [int(seq) for seq in seqs]
        each = [int(n) for n in torch.as_tensor(num_tokens).expand(len(seqs))]
        self._extend([self.requests[seq] for seq in seqs], [self._tokens(n) for n in each])

    def free(self, seq: int) -> None:
        """End `seq`, as release_kv_cache does without a checkpoint."""
        request = self.requests.pop(seq)
        self._release(request, request.kv.kv_committed_len)

    def _release(self, request: Any, owned: int) -> None:
        """The rest of release_kv_cache, for `owned` tokens: Req.owned_kv_len."""
        kv = request.kv
        self._free_row(kv, kv.cache_protected_len, owned)
        self.tree.unlock(request.lock)
        # _release_overallocated_kv_indices
        self._free_row(kv, _utils.common.ceil_align(owned, self.page), kv.kv_allocated_len)
        self.pool.free(request)

    def _free_row(self, kv: Any, start: int, end: int) -> None:
        """BasePrefixCache.free_kv_row, for one range of a row without a window."""
        if start < end:
            segment = self.pool.req_to_token[kv.req_pool_idx, start:end]
            _common.free_kv_row_segments(self.allocator, [(segment, start)], swa_evicted_seqlen=0)

    def block_table(self, seq: int) -> list[int]:
        """The pages of the row of `seq`, up to what is allocated."""
        kv = self.requests[seq].kv
        row = self.pool.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len : self.page]
        pages: list[int] = (row // self.page).tolist()
        return pages

    def num_free_blocks(self) -> int:
        """What is free and what can be evicted, as PrefillBudget counts, in pages."""
        tokens = self.allocator.available_size() + self.tree.evictable_size()
        return int(tokens) // self.page

    def _tokens(self, num_tokens: int) -> list[int]:
        return [next(self._unknown) for _ in range(num_tokens)]

    def _start(self, seq: int, tokens: Sequence[int], key: str | None) -> int:
        """A new request, as match_kv_cache, PrefillAdder and alloc_for_extend take it."""
        kv = SimpleNamespace(
            req_pool_idx=None,
            holds_kv=False,
            cache_protected_len=0,
            cache_inserted_len=0,
            kv_committed_len=0,
            kv_allocated_len=0,
            swa_evict_floor=0,
        )
        request = SimpleNamespace(
            kv=kv,
            origin_input_ids=array("q", tokens),
            full_untruncated_fill_ids=array("q"),
            extra_key=key,
            cache_salt=None,
            priority=None,
        )
        # Req._compute_max_prefix_len: at most one less than the prompt.
        prompt = _radix.RadixKey(array("q", tokens), key, limit=max(0, len(tokens) - 1))
        match = self.tree.match_prefix(_base.MatchPrefixParams(key=prompt))
        prefix = int(match.device_prefix_len)
        request.last_node = match.last_device_node
        request.lock = self.tree.lock(request.last_node)
        kv.cache_protected_len = prefix
        [kv.req_pool_idx] = self.pool.alloc([request])
        kv.holds_kv = True
        self.pool.write(
            (kv.req_pool_idx, slice(0, prefix)), self.tree.path_device_indices(request.last_node)
        )
        kv.kv_allocated_len = kv.kv_committed_len = prefix
        request.full_untruncated_fill_ids.extend(tokens[:prefix])
        try:
            self._extend([request], [tokens[prefix:]])
        except OutOfBlocks:
            self.tree.unlock(request.lock)
            self.pool.free(request)
            raise
        self.requests[seq] = request
        return prefix

    def _extend(self, requests: list[Any], tokens: list[Any]) -> None:
        """Slots for the tokens of a batch, as alloc_for_extend and alloc_for_decode_default."""
        batch = [(request, new) for request, new in zip(requests, tokens, strict=True) if len(new)]
        if not batch:  # no batch of the engine is without tokens
            return
        before = torch.tensor([request.kv.kv_allocated_len for request, _ in batch])
        after = before + torch.tensor([len(new) for _, new in batch])
        rows = torch.tensor([request.kv.req_pool_idx for request, _ in batch])
        last = torch.where(before > 0, self.pool.req_to_token[rows, before - 1], -1).long()
        total = int((after - before).sum())
        if total == len(batch) and bool((before > 0).all()):
            self._evict(len(batch) * self.page)  # alloc_paged_token_slots_decode
            slots = self.allocator.alloc_decode(after, after, last)
        else:
            self._evict(total + len(batch) * self.page)  # alloc_paged_token_slots_extend
            slots = self.allocator.alloc_extend(before, before, after, after, last, total)
        if slots is None:
            raise self._refusal(total)
        for request, new in batch:
            kv, slots_of_one = request.kv, slots[: len(new)]
            if not request.origin_input_ids:  # no request is without tokens: these are its prompt
                request.origin_input_ids.extend(new)
            slots = slots[len(new) :]
            start, end = kv.kv_allocated_len, kv.kv_allocated_len + len(new)
            self.pool.write((kv.req_pool_idx, slice(start, end)), slots_of_one.int())
            kv.kv_allocated_len = kv.kv_committed_len = end
            request.full_untruncated_fill_ids.extend(new)

    def _evict(self, num_tokens: int) -> None:
        """As BaseTokenToKVPoolAllocator.evict_to_free_tokens."""
        if not self.tree.supports_prefix_sharing():
            return
        shortfall = num_tokens - self.allocator.available_size()
        if shortfall > 0:
            self.tree.evict_for_alloc(_base.EvictParams(num_tokens=shortfall))

    def _refusal(self, num_tokens: int) -> OutOfBlocks:
        return OutOfBlocks(
            f"no room for {num_tokens} tokens: {self.num_free_blocks()} pages are free"
        )


class SortingPagedAllocator(PagedAllocator):
    """The same with freed pages staged until an allocation runs short, and sorted then.

    kv_cache_configurator.py sets need_sort where prefill and decode are in separate servers.
    """

    need_sort = True


class RadixCache(PagedAllocator):
    """`RadixCache` over the paged allocator: core, batch and prefix."""

    contract = evolve(
        PagedAllocator.contract,
        capabilities=("core", "batch", "prefix"),
        # RadixCache.checkpoint: "repoint the row onto the tree's copy", and the duplicates are
        # freed.
        deduplicates=True,
        # alloc_paged_token_slots_extend: "Over estimate the number of tokens: assume each request
        # needs a new page", and evict for that, so that also an append into a sequence's own last
        # page may have something evicted. And RadixCache.evict gives up leaves as a whole, which
        # may be many pages. BaseTokenToKVPoolAllocator.check_decode_capacity compares "after
        # evicting reclaimable cache", so that what is refused has had all evicted.
        forgets=True,
        # Scheduler.flush_cache does nothing but warn where requests are running.
        reset_when_used="refused",
    )
    disable_radix = False

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.known: dict[int, int] = {}

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with `num_tokens` slots for tokens that nobody else has."""
        super().allocate(seq, num_tokens)
        self.known[seq] = 0

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq` with a prompt; the key is a request's extra_key."""
        cached = self._start(seq, tokens, _extra(key))
        self.known[seq] = len(tokens)
        return cached

    def append_tokens(self, seq: int, tokens: Sequence[int]) -> None:
        """Reserve slots for more tokens of `seq`."""
        request = self.requests[seq]
        all_known = self.known[seq] == request.kv.kv_allocated_len
        self._extend([request], [tokens])
        if all_known:
            self.known[seq] = request.kv.kv_allocated_len

    def free(self, seq: int) -> None:
        """End `seq`, as release_kv_cache does without a checkpoint."""
        super().free(seq)
        del self.known[seq]

    def mark_written(self, seq: int, num_tokens: int) -> None:
        """A checkpoint of the request; the engine's never go back behind an earlier one."""
        request = self.requests[seq]
        up_to = min(num_tokens, self.known[seq])
        if up_to // self.page * self.page > request.kv.cache_protected_len:
            self.tree.checkpoint(request, up_to=up_to)

    def lookup(self, tokens: Sequence[int], key: Any = None) -> int:
        """The prefix that the tree has of all these tokens."""
        wanted = _radix.RadixKey(array("q", tokens), _extra(key))
        return int(self.tree.match_prefix(_base.MatchPrefixParams(key=wanted)).device_prefix_len)

    def reset_prefix_cache(self) -> None:
        """As Scheduler.flush_cache, which wants all requests to have ended.

        Sequences without a slot are none to the engine. They have nothing to be published.
        """
        if any(request.kv.kv_allocated_len for request in self.requests.values()):
            raise OutOfBlocks("a flush is refused while requests run")
        self.tree.reset()
        self.allocator.clear()
        for seq, request in self.requests.items():
            request.last_node = self.tree.root_node
            request.lock = self.tree.lock(request.last_node)
            self.known[seq] = -1


class StrippingRadixCache(RadixCache):
    """`RadixCache` in a server with --strip-thinking-cache, in which requests are retracted.

    Such a request ends with a checkpoint of its prompt alone (Req.owned_kv_len). Prefilled again
    after a retraction, it has had one beyond its prompt before. Without that, nothing is published
    at its end here, as nothing else is.
    """

    need_sort = True  # so that this is run too; kv_cache_configurator.py

    def free(self, seq: int) -> None:
        """End `seq`, as release_kv_cache does for a request that was thinking."""
        request = self.requests[seq]
        prompt = len(request.origin_input_ids)
        if request.kv.cache_protected_len <= prompt:
            super().free(seq)
            return
        self.tree.checkpoint(request, up_to=prompt)
        self._release(request, min(request.kv.kv_committed_len, prompt))
        del self.requests[seq], self.known[seq]


def _extra(key: Any) -> str | None:
    """Extra keys are strings."""
    return None if key is None else repr(key)
