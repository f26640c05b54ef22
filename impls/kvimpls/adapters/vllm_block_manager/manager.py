"""The manager without prefix caching and without a window."""

from typing import Any

from kvimpls.adapters.vllm_block_manager.published import (
    Device,
    Group,
    SelfAttnBlockSpaceManager,
    Sequence,
)
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks, UnsupportedGeometry


class SelfAttention:
    """`SelfAttnBlockSpaceManager` without prefix caching: core, sharing, swap and admission.

    The manager's answer for `append_slots` is a worst case ("assume each touched block will
    require a new allocation"), so the caller here counts the blocks that the append really takes,
    with the manager's own tables and counts, and asks whether they are free.

    Source: vllm-block 0.1.0, core/block_manager.py, core/block/block_table.py, naive_block.py and
    cpu_gpu_block_allocator.py; for the calls' surroundings core/scheduler.py.
    """

    contract = Contract(
        capabilities=("core", "sharing", "swap", "admission", "introspection"),
        # Ids and lengths are asserted or looked up; free and fork return for an unknown id.
        misuse="callers_duty",
        # Scheduler and config bound a sequence, not the manager. A watermark of 1 percent is 0
        # blocks below 100, and what it keeps back above is not asked for here.
        geometries=Geometries(max_blocks=99, max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.window is not None or geometry.max_tokens is not None:
            raise UnsupportedGeometry(f"no window and no bound on lengths: {geometry}")
        self.block_size = geometry.block_size
        self.host_offset = geometry.num_blocks
        self.manager = SelfAttnBlockSpaceManager(
            geometry.block_size, geometry.num_blocks, geometry.num_host_blocks
        )
        self.sequences: dict[int, Sequence] = {}  # as the scheduler's queues
        self.swapped: set[int] = set()  # as Scheduler.swapped

    def __repr__(self) -> str:
        tables = {seq: table.physical_block_ids for seq, table in self._tables().items()}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def _tables(self) -> dict[int, Any]:
        tables: dict[int, Any] = self.manager.block_tables
        return tables

    def _device(self) -> Any:
        return self.manager.block_allocator._allocators[Device.GPU]

    def can_allocate(self, num_tokens: int) -> str:
        """The manager's `AllocStatus`, by name."""
        status: str = self.manager.can_allocate(Group(Sequence(-1, num_tokens))).name
        return status

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` if `can_allocate` is OK, as `Scheduler._schedule_prefills` does.

        A sequence of no tokens has no table before its first one: `BlockTable` asserts that there
        are tokens, and the engine takes no empty prompt.
        """
        sequence = Sequence(seq, num_tokens)
        if self.can_allocate(num_tokens) != "OK":
            raise OutOfBlocks(f"{num_tokens} tokens, and {self.num_free_blocks()} blocks are free")
        if num_tokens:
            self.manager.allocate(Group(sequence))
        self.sequences[seq] = sequence

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq`, as `Scheduler._append_slots` does; no step of it is without tokens."""
        sequence = self.sequences[seq]
        if not num_tokens:
            return []
        if seq not in self._tables():
            self.allocate(seq, num_tokens)
            return []
        if self._blocks_for(sequence, num_tokens) > self.num_free_blocks():
            raise OutOfBlocks(f"{num_tokens} tokens, and {self.num_free_blocks()} blocks are free")
        sequence.num_computed_tokens = sequence.num_tokens
        sequence.num_tokens += num_tokens
        return [Copy(*pair) for pair in self.manager.append_slots(sequence, 0)]

    def _blocks_for(self, sequence: Sequence, num_tokens: int) -> int:
        length, size = sequence.num_tokens, self.block_size
        blocks = -(-(length + num_tokens) // size) + -length // size
        if length % size:
            tail = self._tables()[sequence.seq_id].physical_block_ids[length // size]
            blocks += self.ref_count(tail) > 1
        return blocks

    def free(self, seq: int) -> None:
        """End `seq`, as `Scheduler.free_seq` does."""
        self.manager.free(self.sequences.pop(seq))
        self.swapped.discard(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child` with the blocks of `parent`, as `Scheduler.fork_seq` does."""
        sequence = Sequence(child, self.sequences[parent].num_tokens)
        self.manager.fork(self.sequences[parent], sequence)
        self.sequences[child] = sequence

    def block_table(self, seq: int) -> list[int | None]:
        """A copy of `get_block_table`, which is the table's own list, as the scheduler sends it."""
        if seq in self.swapped or (seq in self.sequences and seq not in self._tables()):
            return []
        return list(self.manager.get_block_table(self.sequences[seq]))

    def num_free_blocks(self) -> int:
        """The blocks that `get_num_free_gpu_blocks` counts."""
        free: int = self.manager.get_num_free_gpu_blocks()
        return free

    def swap_out(self, seq: int) -> list[Copy]:
        """Swap `seq` out if `can_swap_out`, as `Scheduler._swap_out` does."""
        copies = []
        if seq in self._tables():
            group = Group(self.sequences[seq])
            if not self.manager.can_swap_out(group):
                raise OutOfBlocks(f"{self.num_free_host_blocks()} host blocks are free")
            copies = [Copy(*pair) for pair in self.manager.swap_out(group)]
        self.swapped.add(seq)
        return copies

    def swap_in(self, seq: int) -> list[Copy]:
        """Swap `seq` in if `can_swap_in` is OK, as `Scheduler._schedule_swapped` does."""
        copies = []
        if seq in self._tables():
            group = Group(self.sequences[seq])
            if self.manager.can_swap_in(group, 0).name != "OK":
                raise OutOfBlocks(f"{self.num_free_blocks()} blocks are free")
            copies = [Copy(*pair) for pair in self.manager.swap_in(group)]
        self.swapped.discard(seq)
        return copies

    def host_block_table(self, seq: int) -> list[int]:
        """The host blocks of a sequence that is swapped out, whose ids follow the device's."""
        if seq not in self.swapped or seq not in self._tables():
            return []
        return [b - self.host_offset for b in self._tables()[seq].physical_block_ids]

    def num_free_host_blocks(self) -> int:
        """The blocks that `get_num_free_cpu_blocks` counts."""
        free: int = self.manager.get_num_free_cpu_blocks()
        return free

    def ref_count(self, block: int) -> int:
        """The engine's own count of a block."""
        count: int = self._device().refcounter.get(block)
        return count

    def free_blocks(self) -> list[int]:
        """The engine's own free list."""
        return list(self._device()._free_block_indices)


class SelfAttentionLargeHostPool(SelfAttention):
    """The same, but the host's `BlockPool` has as many objects as the device's, and more.

    `CpuGpuBlockAllocator.free` gives the object of a block that is swapped out to the pool of the
    host, with the number that it has in the device's; here is what lies behind that.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        if geometry.num_host_blocks:
            pool = self.manager.block_allocator._allocators[Device.CPU]._block_pool
            while pool._pool_size < 64 * geometry.num_blocks:
                pool.increase_pool()
