"""`DefaultBlockManager` with `BlockTrie`: blocks of known tokens are found again."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import evolve

from kvimpls.adapters.lmdeploy_pytorch import published
from kvimpls.adapters.lmdeploy_pytorch.managers import BlockManager
from kvspec import Geometry, OutOfBlocks


class PrefixCache(BlockManager):
    """`DefaultBlockManager` and `BlockTrie`: core and prefix.

    `Scheduler` attaches blocks to the trie before the forward that fills them, which its stream
    orders before all readers. Here `mark_written` is that moment, and attaches no more than what it
    names.
    """

    contract = evolve(
        BlockManager.contract,
        # Not rollback: truncate is for "blocks appended tentatively", so no caller cuts into a
        # block that the trie has. Not swap: _can_swap refuses blocks with "multiple reference",
        # which all blocks in the trie have. Not introspection: ref_count has the trie's references
        # too. Not lease: the engine leases full blocks, which are in the trie by then, while here
        # a block may be leased, and only later be exchanged for the trie's.
        capabilities=("core", "prefix"),
        # BlockTrie._extend_trie_path: "Substitute its shared trie block and release the sequence's
        # duplicate block".
        deduplicates=True,
        # get_num_free_gpu_blocks is what the allocator has; the trie keeps one reference of each
        # of its blocks, and RecomputeEvictionHelper makes room only when it is asked.
        free_counts_cached=False,
        # The trie is never emptied by the engine. All that it gives up is what BlockTrie.evict
        # finds, and that passes by what sequences still refer to.
        reset_when_used="refused",
        # KVBlockLifecycle.evict: "Evict least-recently-used trie-owned KV leaf blocks".
        order="lru",
    )
    prefix_caching = True

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.known: dict[int, int] = {}

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with `num_tokens` slots for tokens that nobody else has."""
        super().allocate(seq, num_tokens)
        self.known[seq] = 0

    def append_tokens(self, seq: int, tokens: Sequence[int]) -> None:
        """Reserve slots for more tokens of `seq`, as `Scheduler.schedule_running`."""
        message = self.sequences[seq]
        all_known = self.known[seq] == message.num_all_ids
        self._grow(seq, np.array(tokens, dtype=np.int64))
        if all_known:
            self.known[seq] = message.num_all_ids

    def free(self, seq: int) -> None:
        """End `seq` and its session, as `Scheduler.end_session`."""
        super().free(seq)
        del self.known[seq]

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq` with a prompt, which is a new request; the key is an adapter."""
        self._message(seq, np.array(tokens, dtype=np.int64), _adapter(key))
        try:
            cached = self._admit(seq)
        except OutOfBlocks:
            self._end(seq)
            raise
        self.known[seq] = len(tokens)
        return cached

    def _admit(self, seq: int) -> int:
        """Prefill a waiting sequence, as `_PrefillAdmissionAttempt.run`; how much was cached."""
        message = self.sequences[seq]
        match = published.prefill._TentativePrefixMatch(
            message, self.trie, self.manager, is_ssm=False, preserve_existing_state=False
        )
        match.match()
        if not self._fits(message, 0):
            match.rollback("eviction failed")
            raise self._refusal(seq, message.num_all_ids)
        cached = int(message.num_history_ids)
        self.manager.allocate(message)
        self.trie.finalize_match(message)
        match.commit()
        self._forward(message)
        return cached

    def mark_written(self, seq: int, num_tokens: int) -> None:
        """Attach the full blocks up to there to the trie, as for a chunk of a long prompt.

        The limit is that of `_PrefillScheduler.reserve_long_context_chunk`.
        """
        message = self.sequences[seq]
        message.kv_token_limit = max(0, min(num_tokens, self.known[seq]))
        self.trie.allocate(message)
        message.kv_token_limit = None

    def lookup(self, tokens: Sequence[int], key: Any = None) -> int:
        """The cached run that `match` would find for these tokens and one more."""
        root = self.trie._roots.get(_adapter(key))
        if root is None:
            return 0
        probe = published.messages.SchedulerSession(
            -1, seq_meta=self.meta, lifecycle=self.lifecycle
        )
        message = self.meta.strategy.make_sequence(-1, probe, published.messages.SamplingParam())
        message.update_token_ids(np.array([*tokens, 0], dtype=np.int64))
        return int(self.trie._find_deepest_block_match_step(message, root))

    def reset_prefix_cache(self) -> None:
        """Evict all that the trie has; refused where a sequence has blocks.

        Sequences that live then have no block, and are not attached any more.
        """
        if any(message.num_blocks for message in self.sequences.values()):
            raise OutOfBlocks("BlockTrie.evict keeps the blocks that are in use")
        self.trie.evict(self.manager.num_gpu_blocks)
        self.known = dict.fromkeys(self.known, -1)


class PatientPrefixCache(PrefixCache):
    """`PrefixCache` that does not ask for room where there cannot be enough.

    `RecomputeEvictionHelper` evicts before it knows whether that will do. This one is for what a
    suite that ends at the first broken law would not come to see.
    """

    def _fits(self, message: Any, more: int) -> bool:
        required = self.manager.num_required_blocks(message, more)
        return required <= self._within_reach() and super()._fits(message, more)

    def _within_reach(self) -> int:
        """Free blocks, and those that only the trie refers to."""
        nodes = list(self.trie._roots.values())
        for node in nodes:
            nodes += node.children.values()
        blocks = np.array([node.block_id for node in nodes if node.block_id >= 0], dtype=np.int64)
        alone = self.manager.allocator.get_ref_count(blocks) == 1
        return self.num_free_blocks() + int(np.count_nonzero(alone))


class PreemptedPrefixCache(PatientPrefixCache):
    """`PrefixCache` whose sequences are preempted where they get no block, and resumed later.

    `Scheduler.schedule_running` calls `preempt_seqs` for such a sequence, which keeps its blocks
    and waits. Its next step is a prefill step then, with another match.
    """

    contract = evolve(
        PatientPrefixCache.contract,
        # The order is that of PrefixCache, and is judged there.
        order="any",
    )

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.preempted: set[int] = set()

    def free(self, seq: int) -> None:
        """End `seq` and its session, as `Scheduler.end_session`."""
        super().free(seq)
        self.preempted.discard(seq)

    def _grow(self, seq: int, tokens: Any) -> None:
        if seq in self.preempted and len(tokens):
            self._admit(seq)
            self.preempted.discard(seq)
        try:
            super()._grow(seq, tokens)
        except OutOfBlocks:
            self.preempted.add(seq)
            raise


def _adapter(key: Any) -> str | None:
    """Adapters have names, and requests without one share the trie's root of `None`."""
    return None if key is None else repr(key)
