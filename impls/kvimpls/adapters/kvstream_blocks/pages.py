"""`BlockManager`: as it is, and with callers that take away what it breaks first."""

from typing import Any

from kvimpls.adapters.kvstream_blocks.published import BlockManager
from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks, UnsupportedGeometry


class Pages:
    """`BlockManager` as it is: core, sharing, swap and introspection.

    Kept here is what `ContinuousBatchScheduler` keeps: which sequences it has swapped out. The
    engine grows a sequence by one slot a call; more are so many calls, after one question whether
    there is room for them.

    Source: kvstream 0.1.0, memory/block_manager.py; for the calls' surroundings
    scheduler/continuous_batch.py and engine.py.
    """

    contract = Contract(
        # Not admission: can_allocate says yes or no, so a request that must wait and one that can
        # never fit look the same, and the scheduler leaves both at the head of its queue.
        capabilities=("core", "sharing", "swap", "introspection"),
        # Nothing checks an id or a length: allocate and fork overwrite the table of an id in use,
        # free returns for an unknown one, and a negative length takes one page.
        misuse="callers_duty",
        # MemoryConfig.must_be_power_of_two. No length is bounded: SchedulerConfig has
        # max_tokens_per_seq, which nothing reads.
        geometries=Geometries(block_sizes=(1, 2, 4, 8, 16, 32, 64, 128), max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.window is not None or geometry.max_tokens is not None:
            raise UnsupportedGeometry(f"no window and no bound on lengths: {geometry}")
        self.block_size = geometry.block_size
        self.host_offset = geometry.num_blocks
        self.manager = BlockManager(
            geometry.num_blocks, geometry.num_host_blocks, geometry.block_size
        )
        self.swapped: set[int] = set()  # as ContinuousBatchScheduler.swapped

    def __repr__(self) -> str:
        tables = {seq: state.logical_to_physical for seq, state in self._states().items()}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def _states(self) -> dict[str, Any]:
        states: dict[str, Any] = self.manager._seq_states
        return states

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with the pages of a prompt, as step 3 of `schedule` does."""
        if not self.manager.allocate(str(seq), num_tokens):
            raise OutOfBlocks(f"{num_tokens} tokens, and {self.num_free_blocks()} pages are free")

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """`append_slot` for each token, as in `generate`, which copies nothing before."""
        if num_tokens > 1:
            self._ask_for_room(self._pages(seq, num_tokens))
        try:
            for _ in range(num_tokens):
                self.manager.append_slot(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        return []

    def _length(self, seq: int) -> int:
        length: int = self._states()[str(seq)].num_tokens
        return length

    def _pages(self, seq: int, num_tokens: int) -> int:
        length, size = self._length(seq), self.block_size
        return -(-(length + num_tokens) // size) + -length // size

    def _ask_for_room(self, pages: int) -> None:
        # As many questions for one page make a question for several: can_allocate, as in schedule.
        if pages and not self.manager.can_allocate(pages * self.block_size):
            raise OutOfBlocks(f"{pages} pages, and {self.num_free_blocks()} are free")

    def free(self, seq: int) -> None:
        """End `seq`, as `schedule` does with what has finished."""
        self.manager.free(str(seq))
        self.swapped.discard(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child` with all pages of `parent`."""
        self.manager.fork(str(parent), str(child))

    def block_table(self, seq: int) -> list[int]:
        """`get_block_table`, which is empty here for a sequence that is swapped out."""
        table: list[int] = self.manager.get_block_table(str(seq))
        return [] if seq in self.swapped else table

    def num_free_blocks(self) -> int:
        """The pages that `num_free_gpu_blocks` counts."""
        free: int = self.manager.num_free_gpu_blocks()
        return free

    def swap_out(self, seq: int) -> list[Copy]:
        """Move the pages of `seq` to the host, as step 1 of `schedule` does."""
        try:
            mapping = self.manager.swap_out(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        self.swapped.add(seq)
        return [Copy(page, host - self.host_offset) for page, host in mapping.items()]

    def swap_in(self, seq: int) -> list[Copy]:
        """Move the pages of `seq` back, as step 2 of `schedule` does, which asks before."""
        if not self.manager.can_allocate(self._length(seq)):
            raise OutOfBlocks(f"{self.num_free_blocks()} pages are free")
        try:
            mapping = self.manager.swap_in(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        self.swapped.discard(seq)
        return [Copy(host - self.host_offset, page) for host, page in mapping.items()]

    def host_block_table(self, seq: int) -> list[int]:
        """The host pages of a sequence that is swapped out, whose ids follow the device's."""
        if seq not in self.swapped:
            return []
        return [page - self.host_offset for page in self.manager.get_block_table(str(seq))]

    def num_free_host_blocks(self) -> int:
        """The pages that `num_free_cpu_blocks` counts."""
        free: int = self.manager.num_free_cpu_blocks()
        return free

    def ref_count(self, block: int) -> int:
        """The engine's own count of a page."""
        count: int = self.manager._gpu_blocks[block].ref_count
        return count

    def free_blocks(self) -> list[int]:
        """The engine's own list of free pages."""
        return list(self.manager._gpu_free)


class PagesFromFirstToken(Pages):
    """The same, but a sequence of no tokens is not shown to the engine before its first token.

    `BlockManager._pages_for` takes one page for no tokens, and `append_slot` then takes another;
    here is what lies behind that. Empty sequences wait, as in `ContinuousBatchScheduler.waiting`.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.waiting: set[int] = set()

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq`; without tokens it waits for its first one."""
        if num_tokens:
            super().allocate(seq, num_tokens)
        else:
            self.waiting.add(seq)

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq`; the first tokens of one that waits are its prompt."""
        if seq not in self.waiting:
            return super().append(seq, num_tokens)
        if num_tokens:
            super().allocate(seq, num_tokens)
            self.waiting.discard(seq)
        return []

    def free(self, seq: int) -> None:
        """End `seq`, which may still wait, as `abort_request` does."""
        super().free(seq)
        self.waiting.discard(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child`, which waits if `parent` does."""
        if parent in self.waiting:
            self.waiting.add(child)
        else:
            super().fork(parent, child)

    def block_table(self, seq: int) -> list[int]:
        """The engine's table, and none for a sequence that waits."""
        return [] if seq in self.waiting else super().block_table(seq)

    def swap_out(self, seq: int) -> list[Copy]:
        """Swap `seq` out; one that waits has nothing to move."""
        if seq not in self.waiting:
            return super().swap_out(seq)
        self.swapped.add(seq)
        return []

    def swap_in(self, seq: int) -> list[Copy]:
        """Swap `seq` in; one that waits has nothing to move."""
        if seq not in self.waiting:
            return super().swap_in(seq)
        self.swapped.discard(seq)
        return []

    def host_block_table(self, seq: int) -> list[int]:
        """The host pages of a sequence that is swapped out, and none for one that waits."""
        return [] if seq in self.waiting else super().host_block_table(seq)


class CopyingPages(PagesFromFirstToken):
    """The same, but the caller has a shared page copied before it writes into it.

    "Blocks are shared until one of them writes" is what `fork` says, and `cow_write` is the
    engine's function for who writes; its caller copies the contents. No code of the engine calls
    it; here is what lies behind that.
    """

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq`, after `cow_write` for its last page if that is shared and not full."""
        tail = None if seq in self.waiting else self._shared_tail(seq)
        if not num_tokens or tail is None:
            return super().append(seq, num_tokens)
        self._ask_for_room(self._pages(seq, num_tokens) + 1)
        before = self.manager.get_block_table(str(seq))[tail]
        copy = Copy(before, self.manager.cow_write(str(seq), tail))
        return [copy, *super().append(seq, num_tokens)]

    def _shared_tail(self, seq: int) -> int | None:
        index, offset = divmod(self._length(seq), self.block_size)
        table = self.manager.get_block_table(str(seq))
        return index if offset and self.ref_count(table[index]) > 1 else None


class PagesAskingBeforeSwap(CopyingPages):
    """The same, but the caller asks whether the host has room before it swaps out.

    `BlockManager.swap_out` does not keep a sequence whole when the host's pages run out, and its
    caller does not ask; here is what lies behind that. The question is the engine's own.
    """

    def swap_out(self, seq: int) -> list[Copy]:
        """Swap `seq` out if `can_allocate(device="cpu")` says that it fits."""
        tokens = 0 if seq in self.waiting else self._length(seq)
        if tokens and not self.manager.can_allocate(tokens, device="cpu"):
            raise OutOfBlocks(f"{self.num_free_host_blocks()} host pages are free")
        return super().swap_out(seq)
