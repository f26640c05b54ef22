"""`BlockPool`, with the tables that its callers keep."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from kvimpls.adapters.vllm_v1 import published
from kvimpls.adapters.vllm_v1.managers import Manager
from kvimpls.adapters.vllm_v1.requests import Sequences, block_ids
from kvspec import Contract, Copy, Geometry, OutOfBlocks, UnsupportedGeometry


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
        self.pool = published.pools.BlockPool(geometry.num_blocks + 1, True, geometry.block_size)
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
        return block_ids(self.req_to_blocks[seq])

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
        self.sequences = Sequences(geometry.block_size)
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
