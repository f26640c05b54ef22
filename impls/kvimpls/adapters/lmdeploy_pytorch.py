"""The block managers and the prefix cache of lmdeploy 0.18.0's PyTorch engine.

The engine is `lmdeploy.pytorch.paging` (Apache-2.0, Copyright 2023-2024 Shanghai AI Laboratory):
`DefaultBlockManager` and `WindowBlockManager` (block_manager/), `BlockTrie` (block_trie/), and what
its scheduler has around them: `SchedulerSession` and `SchedulerSequenceDefault` (messages.py,
strategies/ar/sequence.py), `SequenceLifecycle` (seq_states/), `RecomputeEvictionHelper`
(eviction_helper/), `_TentativePrefixMatch` (prefill_scheduler.py) and `KVSaveCoordinator`. They are
put together as `Scheduler.__init__` does it, and called as `Scheduler` calls them; nothing is
checked and nothing is repaired here.

Version 0.18.0 has no fork of a sequence, so sharing is claimed nowhere: blocks are shared by the
prefix cache only.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
from attrs import evolve

from kvimpls.adapters.engines import engine
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks, Unspecified

# The packages whose __init__ imports servers and models, and the model agent, which a module here
# imports for its annotations.
with engine(
    "lmdeploy",
    "0.18.0",
    bare=(
        "lmdeploy",
        "lmdeploy.vl",
        "lmdeploy.pytorch",
        "lmdeploy.pytorch.disagg",
        "lmdeploy.pytorch.disagg.conn",
        "lmdeploy.pytorch.strategies",
        "lmdeploy.pytorch.strategies.ar",
    ),
    stand_ins=("lmdeploy.pytorch.engine",),
):
    _config: Any = import_module("lmdeploy.pytorch.config")
    _messages: Any = import_module("lmdeploy.pytorch.messages")
    _managers: Any = import_module("lmdeploy.pytorch.paging.block_manager")
    _trie: Any = import_module("lmdeploy.pytorch.paging.block_trie")
    _eviction: Any = import_module(
        "lmdeploy.pytorch.paging.eviction_helper.recompute_eviction_helper"
    )
    _loads: Any = import_module("lmdeploy.pytorch.paging.kv_load_coordinator")
    _saves: Any = import_module("lmdeploy.pytorch.paging.kv_save_coordinator")
    _prefill: Any = import_module("lmdeploy.pytorch.paging.prefill_scheduler")
    _lifecycle: Any = import_module("lmdeploy.pytorch.paging.seq_states")
    _states: Any = import_module("lmdeploy.pytorch.paging.state_manager")
    _strategy: Any = import_module("lmdeploy.pytorch.strategies.ar.sequence")

# engine/config_builder.py: the block that dummy inputs read and write.
RESERVED = 1
# A connector's metadata, of which KVSaveCoordinator.acquire reads nothing else.
_NO_TOKENS = np.zeros(0, dtype=np.int64)


class BlockManager:
    """`DefaultBlockManager`: core, rollback, swap and introspection.

    A sequence is a `SchedulerSequenceDefault` whose tokens have all been through the model: between
    two calls `num_history_ids` is its length and `num_token_ids` is 0. A refusal of the engine is
    `OutOfBlocks`; all else that it raises comes through as it is.
    """

    contract = Contract(
        # Not sharing: no function of 0.18.0 forks a sequence. Not admission: can_allocate and
        # try_make_capacity_for say yes or no, and nothing tells a request that must wait from one
        # that can never fit. Not lease beside swap: pin_logical_blocks "prevents reuse or
        # swapping", and a swap is refused then.
        capabilities=("core", "rollback", "swap", "introspection"),
        # Nothing checks an id or a length; BaseBlockManager.truncate alone checks its own.
        misuse="callers_duty",
        # LogicalAllocator.__init__: the physical blocks begin at num_gpu_reserved.
        first_block=RESERVED,
        # The length of a session is the engine's limit (Engine._get_max_session_len), not that of
        # its paging.
        geometries=Geometries(max_tokens="none"),
    )
    prefix_caching = False
    ahead = 0  # tokens for which blocks are taken before they are needed: prealloc_size

    def __init__(self, geometry: Geometry) -> None:
        config = _config.CacheConfig(
            max_batches=256,
            block_size=geometry.block_size,
            num_cpu_blocks=geometry.num_host_blocks,
            num_gpu_blocks=geometry.num_blocks + RESERVED,
            num_reserved_gpu_blocks=RESERVED,
            window_size=-1 if geometry.window is None else geometry.window,
            enable_prefix_caching=self.prefix_caching,
        )
        # From here on as Scheduler.__init__, for a model without recurrent state or connector.
        self.meta = _messages.SequenceMeta(
            config.block_size,
            strategy=_strategy.ARSequenceStrategy(),
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self.states = _states.build_state_manager(config)
        self.manager = _managers.build_block_manager(config)
        self.trie = _trie.BlockTrie(
            allocator=self.manager.allocator,
            block_size=config.block_size,
            enabled=config.enable_prefix_caching,
        )
        self.lifecycle = _lifecycle.SequenceLifecycle(
            seq_manager=_messages.SequenceManager(self.meta),
            block_manager=self.manager,
            state_manager=self.states,
            state_checkpoints=self.trie.state_checkpoints,
            prefix_cache_enabled=self.trie.enabled,
            is_ssm=False,
            connector=None,
        )
        self.sessions: dict[int, Any] = {}
        self.eviction = _eviction.RecomputeEvictionHelper(
            block_manager=self.manager,
            block_trie=self.trie,
            state_manager=self.states,
            load_coordinator=_loads.KVLoadCoordinator(
                lookup_enabled=False,
                connector=None,
                block_manager=self.manager,
                block_trie=self.trie,
                sessions=self.sessions,
            ),
            is_ssm=False,
        )
        self.sequences: dict[int, Any] = {}
        self.away: set[int] = set()
        self._unknown = count(-1, -1)  # tokens that nobody else has

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.sequences}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with `num_tokens` reserved slots: a prompt that is prefilled at once."""
        message = self._message(seq, self._tokens(num_tokens))
        if not self._fits(message, self.ahead):
            self._end(seq)
            raise self._refusal(seq, num_tokens)
        self.manager.allocate(message, self.ahead)
        self._forward(message)

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for `num_tokens` more tokens of `seq`, as `Scheduler.schedule_running`."""
        self._grow(seq, self._tokens(num_tokens))

    def free(self, seq: int) -> None:
        """End `seq` and its session, as `Scheduler.end_session`."""
        self._end(seq)
        self.away.discard(seq)

    def truncate(self, seq: int, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens: blocks as `_TentativePrefixMatch.rollback`.

        The tokens are the caller's: "Callers restore the related token and prefix-cache state
        separately". They are cut as `SchedulerSequenceARSpec` cuts rejected drafts.
        """
        message = self.sequences[seq]
        self.manager.truncate(message, -(-num_tokens // message.block_size))
        message.history_cache.resize(num_tokens)
        message._num_history_ids = num_tokens

    def swap_out(self, seq: int) -> list[Copy]:
        """Move `seq` to the host; a sequence without blocks has nothing to be moved."""
        done = self._swap(seq, self.manager.try_swap_out)
        self.away.add(seq)
        return done

    def swap_in(self, seq: int) -> list[Copy]:
        """Move `seq` back to the device."""
        done = self._swap(seq, self.manager.try_swap_in)
        self.away.discard(seq)
        return done

    def _swap(self, seq: int, move: Any) -> list[Copy]:
        message = self.sequences[seq]
        if not message.num_blocks:  # as SequenceLifecycle.release_paging_resources asks first
            return []
        moved, pairs = move(message)
        if not moved:
            raise OutOfBlocks(f"{move.__name__} of sequence {seq} is refused")
        # CacheEngine.swap_out and swap_in take the dict as it is, in its order.
        return [Copy(int(source), int(target)) for source, target in pairs.items()]

    def block_table(self, seq: int) -> list[int | None]:
        """The device blocks of `seq`, with `None` for each block that its window has left."""
        if seq in self.away:
            return []
        message = self.sequences[seq]
        gone: list[int | None] = [None] * (message.num_ignored_history // message.block_size)
        blocks: list[int] = self.manager.get_block_table(message).tolist()
        return gone + blocks

    def host_block_table(self, seq: int) -> list[int]:
        """The host blocks of `seq`: physical ids go on from the device's to the host's."""
        if seq not in self.away:
            return []
        blocks = self.manager.get_block_table(self.sequences[seq])
        return [int(block) - self.manager.num_gpu_blocks for block in blocks]

    def num_free_blocks(self) -> int:
        """The device blocks that the engine counts as free."""
        return int(self.manager.get_num_free_gpu_blocks())

    def num_free_host_blocks(self) -> int:
        """The host blocks that the engine counts as free."""
        return int(self.manager.get_num_free_cpu_blocks())

    def ref_count(self, block: int) -> int:
        """The references of the logical blocks that lie in device block `block`."""
        memory = self.manager.allocator._log_mem
        return int(memory.ref_count[memory.phy_map == block].sum())

    def free_blocks(self) -> list[int]:
        """The device blocks in the part of its array from which the engine takes the next."""
        device = self.manager.allocator.get_phy_allocator("gpu")
        taken = device._num_blocks - device._free_count
        blocks: list[int] = device._free_blocks[taken:].tolist()
        return blocks

    def _tokens(self, num_tokens: int) -> Any:
        return np.fromiter(self._unknown, dtype=np.int64, count=max(0, num_tokens))

    def _message(self, seq: int, tokens: Any, adapter: str | None = None) -> Any:
        """A new session with one sequence, as `Engine._add_message` has it."""
        session = _messages.SchedulerSession(seq, seq_meta=self.meta, lifecycle=self.lifecycle)
        self.sessions[seq] = session
        self.sequences[seq] = session.add_sequence(tokens, adapter_name=adapter)
        return self.sequences[seq]

    def _end(self, seq: int) -> None:
        message = self.sequences.pop(seq)
        message.state.stop()
        self.sessions.pop(seq).end_sequence(message)

    def _fits(self, message: Any, more: int) -> bool:
        """Whether the engine can make room for the sequence and `more` tokens; none is stopped."""
        return bool(self.eviction.try_make_capacity_for(message, (), more))

    def _grow(self, seq: int, tokens: Any) -> None:
        message = self.sequences[seq]
        if not len(tokens):  # no step of the engine is without tokens
            return
        more = len(tokens) + self.ahead
        if not self._fits(message, more):
            raise self._refusal(seq, len(tokens))
        self.manager.allocate(message, more)
        message.update_token_ids(tokens, mode=_messages.UpdateTokenMode.INPUTS)
        self._forward(message)

    @staticmethod
    def _forward(message: Any) -> None:
        """All tokens have been through the model, and none was generated.

        As `ARSequenceStrategy.update_running` for a request of no new tokens.
        """
        message.update_token_ids(_NO_TOKENS, mode=_messages.UpdateTokenMode.PREFILL)

    def _refusal(self, seq: int, num_tokens: int) -> OutOfBlocks:
        free = self.num_free_blocks()
        return OutOfBlocks(f"no room for {num_tokens} tokens of {seq}: {free} blocks are free")


class LeasedBlockManager(BlockManager):
    """`DefaultBlockManager` under a connector that saves blocks: core, rollback and lease."""

    contract = evolve(
        BlockManager.contract,
        # Not introspection: LogicalAllocator counts the leases' references with the tables'.
        capabilities=("core", "rollback", "lease"),
    )

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.saves = _saves.KVSaveCoordinator(self.manager)
        self._operations = count()

    def begin_transfer(self, seq: int) -> int:
        """Save the blocks of `seq` elsewhere, as `Scheduler.build_connector_meta`."""
        operation = next(self._operations)
        blocks = tuple(map(int, self.sequences[seq].logical_blocks.get_real_blocks()))
        lease = SimpleNamespace(operation_id=operation, logical_block_ids=blocks)
        self.saves.acquire(SimpleNamespace(get_save_block_leases=lambda: [lease]))
        return operation

    def end_transfer(self, lease: int) -> None:
        """The save is complete, as in `Scheduler.update_connector_output`."""
        self.saves.release_completed_leases(frozenset({lease}))


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
        match = _prefill._TentativePrefixMatch(
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
        probe = _messages.SchedulerSession(-1, seq_meta=self.meta, lifecycle=self.lifecycle)
        message = self.meta.strategy.make_sequence(-1, probe, _messages.SamplingParam())
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
        if seq in self.preempted:
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


class WindowBlockManager(BlockManager):
    """`WindowBlockManager`, called as its own `can_allocate` and `allocate` go together."""

    contract = evolve(
        BlockManager.contract,
        # Not lease: the connectors that pin blocks do "not support sliding-window KV caches". Not
        # rollback: truncate counts the blocks that are there, and knows no window. Not swap: the
        # blocks before the window are not in the table that is moved.
        capabilities=("core", "window", "introspection"),
        # _num_blocks_to_drop: the window ends at the last of the tokens that have been computed.
        window_release="late",
    )

    def _fits(self, message: Any, more: int) -> bool:
        """The manager's own answer, which counts the blocks that `allocate` will drop."""
        return bool(self.manager.can_allocate(message, more))


class AheadWindowBlockManager(WindowBlockManager):
    """`WindowBlockManager` as the scheduler calls it: with blocks taken ahead of their need."""

    contract = evolve(
        WindowBlockManager.contract,
        # allocate_msg takes blocks for prealloc_size more tokens, so there may be one more than
        # the length fills. RecomputeEvictionHelper wants all of them to be free, and does not
        # count what the window lets go of.
        reservation=Unspecified(),
    )
    ahead = 1  # the default of Scheduler.schedule_running

    def _fits(self, message: Any, more: int) -> bool:
        return BlockManager._fits(self, message, more)
