"""`DefaultBlockManager`, with what the scheduler has around it; and under a saving connector."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
from attrs import evolve

from kvimpls.adapters.lmdeploy_pytorch import published
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks

# engine/config_builder.py: the block that dummy inputs read and write.
RESERVED = 1
# A connector's metadata, of which KVSaveCoordinator.acquire reads nothing else.
NO_TOKENS = np.zeros(0, dtype=np.int64)


class BlockManager:
    """`DefaultBlockManager`: core, rollback, swap and introspection.

    A sequence is a `SchedulerSequenceDefault` whose tokens have all been through the model: between
    two calls `num_history_ids` is its length and `num_token_ids` is 0. A refusal of the engine is
    `OutOfBlocks`; all else that it raises comes through as it is.
    """

    contract = Contract(
        # Not sharing, which SharingBlockManager has: no function forks. Not admission: can_allocate
        # and try_make_capacity_for say yes or no, and nothing tells a request that must wait from
        # one that can never fit. Not lease beside swap: pin_logical_blocks "prevents reuse or
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
        config = published.config.CacheConfig(
            max_batches=256,
            block_size=geometry.block_size,
            num_cpu_blocks=geometry.num_host_blocks,
            num_gpu_blocks=geometry.num_blocks + RESERVED,
            num_reserved_gpu_blocks=RESERVED,
            window_size=-1 if geometry.window is None else geometry.window,
            enable_prefix_caching=self.prefix_caching,
        )
        # From here on as Scheduler.__init__, for a model without recurrent state or connector.
        self.meta = published.messages.SequenceMeta(
            config.block_size,
            strategy=published.strategy.ARSequenceStrategy(),
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self.states = published.states.build_state_manager(config)
        self.manager = published.managers.build_block_manager(config)
        self.trie = published.trie.BlockTrie(
            allocator=self.manager.allocator,
            block_size=config.block_size,
            enabled=config.enable_prefix_caching,
        )
        self.lifecycle = published.lifecycle.SequenceLifecycle(
            seq_manager=published.messages.SequenceManager(self.meta),
            block_manager=self.manager,
            state_manager=self.states,
            state_checkpoints=self.trie.state_checkpoints,
            prefix_cache_enabled=self.trie.enabled,
            is_ssm=False,
            connector=None,
        )
        self.sessions: dict[int, Any] = {}
        self.eviction = published.eviction.RecomputeEvictionHelper(
            block_manager=self.manager,
            block_trie=self.trie,
            state_manager=self.states,
            load_coordinator=published.loads.KVLoadCoordinator(
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
        session = published.messages.SchedulerSession(
            seq, seq_meta=self.meta, lifecycle=self.lifecycle
        )
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
        message.update_token_ids(tokens, mode=published.messages.UpdateTokenMode.INPUTS)
        self._forward(message)

    @staticmethod
    def _forward(message: Any) -> None:
        """All tokens have been through the model, and none was generated.

        As `ARSequenceStrategy.update_running` for a request of no new tokens.
        """
        message.update_token_ids(NO_TOKENS, mode=published.messages.UpdateTokenMode.PREFILL)

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
        self.saves = published.saves.KVSaveCoordinator(self.manager)
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
