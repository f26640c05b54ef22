"""The block manager of vLLM's V0, as vllm-block 0.1.0 has it, behind the interface.

The engine is `vllm.core`: `SelfAttnBlockSpaceManager` (block_manager.py) on `CpuGpuBlockAllocator`
and `BlockTable` (block/). The distribution's package is published as `vllm_block` and imports
itself as `vllm`. It is vLLM's V0 of early 2025; what its scheduler (core/scheduler.py) does around
the calls is followed here by name. Nothing is repaired.

Licence: the distribution says MIT; the files say Apache-2.0.
"""

from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from attrs import define

from kvimpls.adapters.engines import engine
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks, UnsupportedGeometry

VERSION = "0.1.0"

STAND_INS = (
    "torch",
    "cloudpickle",
    "zmq",
    # Only annotations and the statuses by which `_Group` is asked for its sequence are used.
    "vllm.sequence",
    "vllm.platforms",
)

with engine("vllm-block", VERSION, bare=("vllm",), stand_ins=STAND_INS, alias="vllm"):
    _manager: Any = import_module("vllm.core.block_manager")
    _allocator: Any = import_module("vllm.core.block.cpu_gpu_block_allocator")
    _table: Any = import_module("vllm.core.block.block_table")
    Device: Any = import_module("vllm.utils").Device
    NoFreeBlocksError: Any = import_module(
        "vllm.core.block.interfaces"
    ).BlockAllocator.NoFreeBlocksError

# CpuGpuBlockAllocator.create keeps block 0 for padding on one platform, and asks which one this is.
_allocator.current_platform = SimpleNamespace(is_hpu=lambda: False)


@define
class _Sequence:
    """What the manager asks of a `vllm.sequence.Sequence`, which needs the whole package."""

    seq_id: int
    num_tokens: int = 0

    @property
    def data(self) -> "_Sequence":
        """Itself."""
        return self

    def get_token_ids(self) -> Sequence[int]:
        """Any tokens: nothing looks at them where nothing is cached."""
        return range(self.num_tokens)

    def get_num_computed_tokens(self) -> int:
        """What was reserved before; nothing asks without a sliding window."""
        return self.num_tokens

    def extra_hash(self) -> None:
        """No adapter."""


@define
class _Group:
    """What the manager asks of a `vllm.sequence.SequenceGroup`, with one sequence."""

    sequence: _Sequence

    @property
    def request_id(self) -> str:
        """A request a sequence."""
        return str(self.sequence.seq_id)

    def get_seqs(self, status: Any = None) -> list[_Sequence]:
        """The one sequence, which has the status that is asked for."""
        return [self.sequence]

    def is_encoder_decoder(self) -> bool:
        """It is not."""
        return False


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
        self.manager = _manager.SelfAttnBlockSpaceManager(
            geometry.block_size, geometry.num_blocks, geometry.num_host_blocks
        )
        self.sequences: dict[int, _Sequence] = {}  # as the scheduler's queues
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
        status: str = self.manager.can_allocate(_Group(_Sequence(-1, num_tokens))).name
        return status

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` if `can_allocate` is OK, as `Scheduler._schedule_prefills` does.

        A sequence of no tokens has no table before its first one: `BlockTable` asserts that there
        are tokens, and the engine takes no empty prompt.
        """
        sequence = _Sequence(seq, num_tokens)
        if self.can_allocate(num_tokens) != "OK":
            raise OutOfBlocks(f"{num_tokens} tokens, and {self.num_free_blocks()} blocks are free")
        if num_tokens:
            self.manager.allocate(_Group(sequence))
        self.sequences[seq] = sequence

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq`, as `Scheduler._append_slots` does."""
        sequence = self.sequences[seq]
        if seq not in self._tables():
            self.allocate(seq, num_tokens)
            return []
        if self._blocks_for(sequence, num_tokens) > self.num_free_blocks():
            raise OutOfBlocks(f"{num_tokens} tokens, and {self.num_free_blocks()} blocks are free")
        sequence.num_tokens += num_tokens
        return [Copy(*pair) for pair in self.manager.append_slots(sequence, 0)]

    def _blocks_for(self, sequence: _Sequence, num_tokens: int) -> int:
        length, size = sequence.num_tokens, self.block_size
        blocks = -(-(length + num_tokens) // size) + -length // size
        if num_tokens and length % size:
            tail = self._tables()[sequence.seq_id].physical_block_ids[length // size]
            blocks += self.ref_count(tail) > 1
        return blocks

    def free(self, seq: int) -> None:
        """End `seq`, as `Scheduler.free_seq` does."""
        self.manager.free(self.sequences.pop(seq))
        self.swapped.discard(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child` with the blocks of `parent`, as `Scheduler.fork_seq` does."""
        sequence = _Sequence(child, self.sequences[parent].num_tokens)
        self.manager.fork(self.sequences[parent], sequence)
        self.sequences[child] = sequence

    def block_table(self, seq: int) -> list[int]:
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
            group = _Group(self.sequences[seq])
            if not self.manager.can_swap_out(group):
                raise OutOfBlocks(f"{self.num_free_host_blocks()} host blocks are free")
            copies = [Copy(*pair) for pair in self.manager.swap_out(group)]
        self.swapped.add(seq)
        return copies

    def swap_in(self, seq: int) -> list[Copy]:
        """Swap `seq` in if `can_swap_in` is OK, as `Scheduler._schedule_swapped` does."""
        copies = []
        if seq in self._tables():
            group = _Group(self.sequences[seq])
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


class WindowTables:
    """`BlockTable` with a sliding window, on `CpuGpuBlockAllocator`: core, sharing and window.

    `SelfAttnBlockSpaceManager` keeps up to two blocks more than a window needs. `BlockTable` is
    told the number of blocks to keep, so that it can be asked for exactly the window: with one
    token a block that is the window less one, next to the one that is being appended to.

    Source: vllm-block 0.1.0, core/block/block_table.py, cpu_gpu_block_allocator.py, naive_block.py.
    """

    contract = Contract(
        capabilities=("core", "sharing", "window"),
        misuse="callers_duty",
        # allocate_or_get_null_block takes one block of the pool, once and for all.
        first_block=1,
        geometries=Geometries(block_sizes=(1,), max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.max_tokens is not None or geometry.num_host_blocks or geometry.block_size > 1:
            raise UnsupportedGeometry(f"one token a block, no bound and no host: {geometry}")
        self.keep = None if geometry.window is None else geometry.window - 1
        self.allocator = _allocator.CpuGpuBlockAllocator.create(
            "naive", geometry.num_blocks + 1, 0, 1
        )
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
        table = _table.BlockTable(1, self.allocator, max_block_sliding_window=self.keep)
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
