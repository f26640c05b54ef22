"""`DefaultBlockManager` with blocks that several sequences have, as `BlockTrie` shares them."""

import numpy as np
from attrs import evolve

from kvimpls.adapters.lmdeploy_pytorch.managers import BlockManager
from kvspec import Copy


class SharingBlockManager(BlockManager):
    """`DefaultBlockManager` and a fork made of its own calls: core, sharing and introspection.

    The engine forks nothing itself. A fork shares the full blocks, as a hit does
    (`BlockTrie._match_block_prefix`: `add_ref_count`, and the ids go into the table), and takes a
    block of its own for the partly filled one, whose contents the caller copies.
    """

    contract = evolve(
        BlockManager.contract,
        # Not rollback: truncate is for "blocks appended tentatively", so no caller cuts into a
        # block that others have. Not swap: _can_swap says "don't swap sequence with multiple
        # reference".
        capabilities=("core", "sharing", "introspection"),
        # Whole blocks are all that the engine shares; nothing in it copies one on a write.
        eager_fork="tail",
    )

    def fork(self, parent: int, child: int) -> list[Copy]:
        """Start `child` with the full blocks of `parent`, and a copy of its partly filled one."""
        source = self.sequences[parent]
        num_full = source.num_all_ids // source.block_size
        shared = source.logical_blocks.get_real_blocks()[:num_full].copy()
        message = self._message(child, np.array(source.all_ids))
        if num_full:
            self.manager.allocator.add_ref_count(shared, 1)
            message.logical_blocks.append(shared)
        if not self._fits(message, 0):
            self._end(child)
            raise self._refusal(child, source.num_all_ids)
        self.manager.allocate(message, 0)
        self._forward(message)
        pairs = zip(self._physical(parent), self._physical(child), strict=True)
        return [Copy(old, new) for old, new in pairs if old != new]

    def _physical(self, seq: int) -> list[int]:
        blocks: list[int] = self.manager.get_block_table(self.sequences[seq]).tolist()
        return blocks
