"""The manager with a sliding window, and the tables below it, of which it takes the width."""

from typing import Any

from kvimpls.adapters.vllm_block_manager.manager import SelfAttention
from kvimpls.adapters.vllm_block_manager.published import (
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    SelfAttnBlockSpaceManager,
    Sequence,
)
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks, UnsupportedGeometry


class WindowManager(SelfAttention):
    """`SelfAttnBlockSpaceManager` with a sliding window: core and window.

    The manager keeps `sliding_window // block_size + 2` blocks before the one that it appends to.
    With one token a block these are two more than its window, so it is told one that is two
    shorter, and keeps what the interface's window asks for.

    Source: vllm-block 0.1.0, core/block_manager.py, core/block/block_table.py.
    """

    contract = Contract(
        # Not admission: num_total_gpu_blocks, by which can_allocate says NEVER, has the null block
        # too, which the engine takes with a window alone. Not sharing, which WindowTables has; not
        # swap and not introspection, which have the null block among a sequence's.
        capabilities=("core", "window"),
        # BlockTable.append_token_ids drops by num_computed_slots, without the new tokens.
        window_release="late",
        # As SelfAttention: ids and lengths are asserted or looked up, and free and fork return for
        # an unknown id.
        misuse="callers_duty",
        # allocate_or_get_null_block takes one block of the pool, once and for all.
        first_block=1,
        # A watermark of 1 percent is 0 blocks below 100, as above; one is the null block.
        geometries=Geometries(block_sizes=(1,), max_blocks=98, max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.max_tokens is not None or geometry.num_host_blocks or geometry.block_size > 1:
            raise UnsupportedGeometry(f"one token a block, no bound and no host: {geometry}")
        if geometry.window is not None and geometry.window < 3:
            raise UnsupportedGeometry(f"the engine's window has at least a token: {geometry}")
        self.block_size = 1
        window = None if geometry.window is None else geometry.window - 2
        self.manager = SelfAttnBlockSpaceManager(
            1, geometry.num_blocks + 1, 0, sliding_window=window
        )
        self.null = self.manager.block_allocator.allocate_or_get_null_block()
        self.sequences = {}
        self.swapped = set()

    def _blocks_for(self, sequence: Sequence, num_tokens: int) -> int:
        kept = self.manager.max_block_sliding_window
        if kept is None:
            return num_tokens
        blocks = self._tables()[sequence.seq_id].blocks
        gone = blocks[: max(0, sequence.num_tokens - kept)]
        return num_tokens - sum(block is not self.null for block in gone)

    def block_table(self, seq: int) -> list[int | None]:
        """The same, where the null block is none of the sequence's."""
        null = self.null.block_id
        return [None if block == null else block for block in super().block_table(seq)]


class AskingWindowManager(WindowManager):
    """The same, but the caller looks whether the whole prompt fits before it allocates.

    `can_allocate` counts at most the blocks of the window; here is what lies behind that.
    """

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` if the pool has a block for each token."""
        if num_tokens > self.num_free_blocks():
            raise OutOfBlocks(f"{num_tokens} blocks, and {self.num_free_blocks()} are free")
        super().allocate(seq, num_tokens)


class WindowTables:
    """`BlockTable` with a sliding window, on `CpuGpuBlockAllocator`: core, sharing and window.

    `SelfAttnBlockSpaceManager` keeps up to two blocks more than a window needs. `BlockTable` is
    told the number of blocks to keep, so that it can be asked for exactly the window: with one
    token a block that is the window less one, next to the one that is being appended to.

    Source: vllm-block 0.1.0, core/block/block_table.py, cpu_gpu_block_allocator.py, naive_block.py.
    """

    contract = Contract(
        capabilities=("core", "sharing", "window"),
        # A table is an object, not an id, so that none is unknown or in use. BlockTable asserts
        # that it is allocated once, and before it grows; it is given tokens, not lengths.
        misuse="callers_duty",
        # allocate_or_get_null_block takes one block of the pool, once and for all.
        first_block=1,
        geometries=Geometries(block_sizes=(1,), max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.max_tokens is not None or geometry.num_host_blocks or geometry.block_size > 1:
            raise UnsupportedGeometry(f"one token a block, no bound and no host: {geometry}")
        self.keep = None if geometry.window is None else geometry.window - 1
        self.allocator = CpuGpuBlockAllocator.create("naive", geometry.num_blocks + 1, 0, 1)
        self.null = self.allocator.allocate_or_get_null_block()
        self.tables: dict[int, Any] = {}  # as SelfAttnBlockSpaceManager.block_tables

    def __repr__(self) -> str:
        tables = {seq: table.physical_block_ids for seq, table in self.tables.items()}
        return f"WindowTables({tables}, free={self.num_free_blocks()})"

    def _need(self, blocks: int) -> None:
        if blocks > self.num_free_blocks():
            raise OutOfBlocks(f"{blocks} blocks, and {self.num_free_blocks()} are free")

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq`, as `_allocate_sequence` does after `can_allocate`."""
        self._need(num_tokens)
        table = BlockTable(1, self.allocator, max_block_sliding_window=self.keep)
        if num_tokens:
            table.allocate(range(num_tokens))
        self.tables[seq] = table

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq`, as `append_slots` does; what the window releases counts for the call."""
        table = self.tables[seq]
        if not table.physical_block_ids:
            self.allocate(seq, num_tokens)
            return []
        if not num_tokens:
            return []
        length = table.num_full_slots
        if self.keep is not None:
            gone = table.blocks[: max(0, length - self.keep)]
            counts = self.allocator._allocators[Device.GPU].refcounter
            own = [b for b in gone if b is not self.null and counts.get(b.block_id) == 1]
            self._need(num_tokens - len(own))
        else:
            self._need(num_tokens)
        table.append_token_ids(range(num_tokens), num_computed_slots=length)
        return [Copy(*pair) for pair in self.allocator.clear_copy_on_writes()]

    def free(self, seq: int) -> None:
        """End `seq`."""
        self.tables.pop(seq).free()

    def fork(self, parent: int, child: int) -> None:
        """Start `child`, as `SelfAttnBlockSpaceManager.fork` does."""
        table = self.tables[parent]
        if table.physical_block_ids:
            self.tables[child] = table.fork()
        else:
            self.allocate(child, 0)

    def block_table(self, seq: int) -> list[int | None]:
        """A copy of the table, where the null block is none of the sequence's."""
        null = self.null.block_id
        ids = self.tables[seq].physical_block_ids
        return [None if block == null else block for block in ids]

    def num_free_blocks(self) -> int:
        """The free blocks of the device."""
        free: int = self.allocator.get_num_free_blocks(Device.GPU)
        return free
