"""The example of an engine's own allocator, with two faults, and of its adapters."""

from collections.abc import Iterable

from kvspec import Contract, Copy, Geometries, Geometry, OutOfBlocks


class BlockManager:
    """What an engine has: the first block is padding, and "no" is an answer of allocate."""

    def __init__(self, num_gpu_blocks, block_size):
        self.block_size = block_size
        self.unused = list(range(num_gpu_blocks - 1, 0, -1))
        self.users = [0] * num_gpu_blocks
        self.block_tables = {}

    def can_allocate(self, num_tokens):
        return -(-num_tokens // self.block_size) <= len(self.unused)

    def allocate(self, request_id, num_tokens):
        table = self.block_tables[request_id] = []
        while len(table) * self.block_size < num_tokens:
            if not self.unused:
                return False
            table.append(self._take())
        return True

    def append_slot(self, request_id, context_len):
        table = self.block_tables[request_id]
        if context_len % self.block_size == 0:
            table.append(self._take())
        elif self.users[table[-1]] > 1:
            shared, table[-1] = table[-1], self._take()
            return shared, table[-1]
        return None

    def fork(self, request_id, child_id):
        self.block_tables[child_id] = list(self.block_tables[request_id])
        for block in self.block_tables[child_id]:
            self.users[block] += 1

    def free(self, request_id):
        for block in self.block_tables.pop(request_id, ()):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.unused.append(block)

    def _take(self):
        block = self.unused.pop()
        self.users[block] = 1
        return block


class Adapter:
    """`BlockManager` as a core and sharing allocator."""

    contract = Contract(
        # Nothing looks at an id or a length: allocate and fork overwrite the table of an id in
        # use, and free passes over an unknown one.
        misuse="callers_duty",
        # __init__: range(num_gpu_blocks - 1, 0, -1), so that block 0 is never handed out.
        first_block=1,
        # __init__ takes no limit of a sequence's length.
        geometries=Geometries(max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        self.manager = BlockManager(geometry.num_blocks + 1, geometry.block_size)
        self.lengths: dict[int, int] = {}  # as Request.context_len of the engine's scheduler

    def allocate(self, seq: int, num_tokens: int) -> None:
        if not self.manager.allocate(seq, num_tokens):
            raise OutOfBlocks(f"{num_tokens} tokens")
        self.lengths[seq] = num_tokens

    def append(self, seq: int, num_tokens: int) -> Iterable[Copy]:
        # Scheduler.step: it asks for room for all tokens of the step before the first of them.
        table, size = self.manager.block_tables[seq], self.manager.block_size
        length = self.lengths[seq]
        needed = -(-(length + num_tokens) // size) - len(table)
        if num_tokens and length % size and self.manager.users[table[-1]] > 1:
            needed += 1
        if needed > len(self.manager.unused):
            raise OutOfBlocks(f"{num_tokens} tokens more")
        copies = [self.manager.append_slot(seq, length + i) for i in range(num_tokens)]
        self.lengths[seq] += num_tokens
        return [Copy(*copy) for copy in copies if copy is not None]

    def fork(self, parent: int, child: int) -> None:
        self.manager.fork(parent, child)
        self.lengths[child] = self.lengths[parent]

    def free(self, seq: int) -> None:
        self.manager.free(seq)
        del self.lengths[seq]

    def block_table(self, seq: int) -> list[int]:
        return list(self.manager.block_tables[seq])

    def num_free_blocks(self) -> int:
        return len(self.manager.unused)


class Asking(Adapter):
    """The same, asked for room before each request, so that `allocate` never says no."""

    def allocate(self, seq: int, num_tokens: int) -> None:
        if not self.manager.can_allocate(num_tokens):
            raise OutOfBlocks(f"{num_tokens} tokens")
        super().allocate(seq, num_tokens)
