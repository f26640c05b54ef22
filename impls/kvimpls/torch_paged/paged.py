"""The operations on sequences and blocks, of which contents know nothing."""

from torch import Tensor

from kvimpls.torch_paged.arguments import whole
from kvimpls.torch_paged.base import atomic
from kvimpls.torch_paged.growth import Growing
from kvspec import Admission, AllocatorError, Copy, InvalidLength, UnknownLease


class Lease:
    """The blocks of one transfer in flight, a tensor a group; opaque to the caller.

    It belongs to the allocator that began it and is spent once `blocks` is `None`.
    """

    __slots__ = ("blocks", "owner")

    def __init__(self, owner: "Paged", blocks: tuple[Tensor, ...]) -> None:
        self.owner = owner
        self.blocks: tuple[Tensor, ...] | None = blocks


class Paged(Growing):
    """Capabilities core, sharing, rollback, window, lease, batch, admission, reservation,
    introspection, injection and groups.
    """

    supports_window = True

    # The operations.

    @atomic
    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> tuple[Copy, ...]:
        """Start `seq` with `num_tokens` reserved slots, never to be longer than `limit` tokens.

        Raises `SequenceExists`, `InvalidLength` (also for a limit below `num_tokens` or beyond
        `max_tokens`) or `OutOfBlocks`.
        """
        tokens = whole(num_tokens)
        bound = self._max_tokens
        if limit is not None:
            bound = whole(limit)
            if self._max_tokens is not None and bound > self._max_tokens:
                raise InvalidLength(f"a limit of {bound} tokens is beyond {self._max_tokens}")
        self._check_length(tokens, bound)
        self._check_new(seq)
        needs = [tables.blocks_for(tokens) for tables in self._groups]
        self._check_free(needs)
        state = self._open(seq, tokens, bound)
        for tables, need in zip(self._groups, needs, strict=True):
            self._take(tables, state.row, 0, need)
        return ()

    @atomic
    def truncate(self, seq: int, num_tokens: int) -> tuple[Copy, ...]:
        """Keep the first `num_tokens` tokens of `seq`, and the blocks that those need.

        Raises `UnknownSequence`, `NotResident`, or `InvalidLength`, also where a block has been
        released that the window of so many tokens needs.
        """
        state = self._resident(seq)
        length = whole(num_tokens)
        if length > state.length:
            raise InvalidLength(f"cutting {state.length} tokens to {length}")
        for tables, gone in zip(self._groups, state.gone, strict=True):
            if length and tables.needed_from(length) < gone:
                raise InvalidLength(f"the window of {length} tokens is no longer there")
        for tables, gone in zip(self._groups, state.gone, strict=True):
            first, stop = tables.blocks_for(length), tables.blocks_for(state.length)
            if first < stop:
                self._let_go(tables, state.row, max(first, gone), stop)
        state.cut(length, self._groups[0].block_size)
        if not length:
            state.gone = (0,) * len(self._groups)
        return ()

    @atomic
    def fork(self, parent: int, child: int) -> tuple[Copy, ...]:
        """Start `child` with the tokens, the limit and, shared, the blocks of `parent`.

        Raises `UnknownSequence`, `NotResident` or `SequenceExists`.
        """
        source = self._resident(parent)
        self._check_new(child)
        state = self._enter(child, source.forked(self._open_row()))
        for tables, gone in zip(self._groups, state.gone, strict=True):
            blocks = tables.live(source.row, gone, state.length)
            tables.put(state.row, gone, blocks)
            tables.pool.count("users", blocks, 1)
        return ()

    @atomic
    def free(self, seq: int) -> tuple[Copy, ...]:
        """End `seq`; blocks in no other table and no lease can be handed out again.

        Raises `UnknownSequence`.
        """
        state = self._find(seq)
        for tables, gone in zip(self._groups, state.gone, strict=True):
            pool = self._host if state.swapped else tables.pool
            pool.let_go("users", tables.live(state.row, gone, state.length))
            tables.clear(state.row, gone, tables.blocks_for(state.length))
        self._close(seq)
        return ()

    @atomic
    def begin_transfer(self, seq: int) -> Lease:
        """Lease the blocks that `seq` has now; raises `UnknownSequence` or `NotResident`."""
        state = self._resident(seq)
        lease = Lease(self, tuple(blocks.clone() for blocks in self._blocks_of(state)))
        for tables, blocks in zip(self._groups, lease.blocks or (), strict=True):
            self._may_fail("leasing the blocks of a group")
            tables.pool.count("leases", blocks, 1)
        return lease

    @atomic
    def end_transfer(self, lease: object) -> tuple[Copy, ...]:
        """End one lease; `UnknownLease` for any object that is not an open lease of this pool."""
        if not isinstance(lease, Lease) or lease.owner is not self or lease.blocks is None:
            raise UnknownLease("no lease that this allocator began, or one that has ended")
        for tables, blocks in zip(self._groups, lease.blocks, strict=True):
            tables.pool.let_go("leases", blocks)
        lease.blocks = None
        return ()

    # The questions.

    def block_table(self, seq: int, group: int = 0) -> list[int | None]:
        """The blocks of `seq` in a group, in the order of its positions, a snapshot.

        `None` stands for a block before the window. It is empty while `seq` is swapped out.
        Raises `UnknownSequence`.
        """
        state = self._find(seq)
        if state.swapped:
            return []
        return self._groups[group].shown(state.row, state.gone[group], state.length)

    def num_free_blocks(self, pool: int = 0) -> int:
        """How many blocks of a pool are in no table and no lease."""
        return self._pools[pool].num_free

    def can_allocate(self, num_tokens: int) -> Admission:
        """What `allocate` of a new sequence would do: OK, LATER (not now), or NEVER."""
        tokens = whole(num_tokens)
        if self._max_tokens is not None and tokens > self._max_tokens:
            return Admission.NEVER
        needs = self._by_pool([tables.blocks_for(tokens) for tables in self._groups])
        if any(need > pool.size for pool, need in needs):
            return Admission.NEVER
        fits = all(need <= pool.num_free for pool, need in needs)
        return Admission.OK if fits else Admission.LATER

    def ref_count(self, block: int) -> int:
        """How many tables have a block; `AllocatorError` for one that does not exist."""
        start = 0
        for pool in self._pools:
            if start <= block < start + pool.size:
                return int(pool.users[block - start])
            start += pool.size
        raise AllocatorError(f"there is no block {block}")

    def free_blocks(self) -> list[int]:
        """The blocks that the free counts of all pools count, in no order."""
        free: list[int] = []
        start = 0
        for pool in self._pools:
            free += [block + start for block in pool.free_blocks()]
            start += pool.size
        return free
