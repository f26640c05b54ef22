"""`WindowBlockManager`: blocks that the window has left are dropped."""

from typing import Any

from attrs import evolve

from kvimpls.adapters.lmdeploy_pytorch.managers import BlockManager
from kvspec import Unspecified


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
