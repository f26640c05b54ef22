"""The reference: one sequence has a table in each KV group, and they are kept in step."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from kvimpls.reference.caching import Caching
from kvimpls.reference.journal import Journal, all_or_nothing
from kvimpls.reference.paging import Entry, Paging, SequenceState, tokens_of
from kvimpls.reference.pool import Lease, Pool
from kvimpls.reference.swapping import Swapping
from kvimpls.reference.taking import Taking
from kvspec import Admission, Contract, Copy, Geometry, InvalidLength, OutOfBlocks


class Reference(Caching, Swapping):
    """The strict paged contract; free blocks are reused last in, first out, cached ones by age.

    A mutator either returns the copies that it needs, or raises and has changed nothing: that
    holds for an `AllocatorError` and for whatever `checkpoint` raises. With KV groups there is no
    prefix cache, no swapping and no resizing: these raise `UnsupportedGeometry` then.

    >>> pool = Reference(Geometry(4, 16))
    >>> pool.allocate(0, 20), pool.fork(0, 1), pool.append(1, 1)
    ([], [], [Copy(source=1, destination=2)])
    >>> pool.block_table(0), pool.block_table(1), pool.num_free_blocks()
    ([0, 1], [0, 2], 1)
    """

    contract: ClassVar[Contract] = Contract(order="lru")
    supports_window: ClassVar[bool] = True
    _first_block: ClassVar[int] = 0

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        journal, fallible = Journal(), checkpoint or _never_fails
        pools = [
            Pool(geometry.ids_of(number, self._first_block))
            for number in range(len(geometry.pools))
        ]
        groups = [
            (group.block_size, group.window, pools[geometry.pool_of(number)], journal, fallible)
            for number, group in enumerate(geometry.layout)
        ]
        # The allocator is itself its first group, which most have no other beside.
        Paging.__init__(self, *groups[0])
        self._groups: list[Paging] = [self, *(Paging(*group) for group in groups[1:])]
        self._pools = pools
        self._host = Taking(Pool(range(geometry.num_host_blocks)), journal, fallible)
        self._geometry = geometry
        self._max_tokens = geometry.max_tokens

    # core, reservation, admission

    @all_or_nothing
    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> list[Copy]:
        """Start `seq` with `num_tokens` reserved slots; `limit` bounds its length from now on."""
        self._require_unused(seq)
        limit = self._max_tokens if limit is None else tokens_of(limit, self._max_tokens)
        length = tokens_of(num_tokens, limit)
        self._begin(seq, SequenceState(limit, epoch=self._supply.epoch), length)
        return self._answer([])

    @all_or_nothing
    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Reserve slots for `num_tokens` more tokens of `seq`, in blocks that it has to itself."""
        return self._answer(self._extend(seq, num_tokens))

    @all_or_nothing
    def free(self, seq: int) -> list[Copy]:
        """End `seq`; its blocks go back, but for those in other tables or under a lease."""
        sequence = self._sequence(seq)
        for group in self._groups:
            group._end(seq)
        self._end_on_host(sequence)
        return self._answer([])

    def block_table(self, seq: int, group: int = 0) -> list[Entry]:
        """A snapshot of the blocks of `seq`, in the order of its positions."""
        return list(self._groups[group]._sequence(seq).blocks)

    def num_free_blocks(self, pool: int = 0) -> int:
        """How many blocks are in no table and under no lease."""
        return self._pools[pool].num_free()

    def can_allocate(self, num_tokens: int) -> Admission:
        """OK exactly if `allocate` would succeed now, NEVER if it could not in an empty pool."""
        length = tokens_of(num_tokens)
        if self._max_tokens is not None and length > self._max_tokens:
            return Admission.NEVER
        needs = self._needs(length)
        if any(need > len(group._supply.ids) for group, need in needs):
            return Admission.NEVER
        return Admission.OK if all(g._fits(need) for g, need in needs) else Admission.LATER

    # sharing, rollback

    @all_or_nothing
    def fork(self, parent: int, child: int) -> list[Copy]:
        """Start `child` with the tokens, the blocks and the limit of `parent`."""
        self._resident(parent)
        self._require_unused(child)
        copies = [copy for group in self._groups for copy in group._share(parent, child)]
        return self._answer(copies)

    @all_or_nothing
    def truncate(self, seq: int, num_tokens: int) -> list[Copy]:
        """Keep the first `num_tokens` tokens of `seq`, and the blocks that those need."""
        length = tokens_of(num_tokens, self._resident(seq).length)
        for group in self._groups:
            group._cut(seq, length)
        return self._answer([])

    # lease

    @all_or_nothing
    def begin_transfer(self, seq: int) -> Lease:
        """Lease the blocks that `seq` has now: nobody else gets them before the lease ends."""
        self._resident(seq)
        lease = Lease()
        for group in self._groups:
            group._lease(seq, lease)
        return lease

    @all_or_nothing
    def end_transfer(self, lease: object) -> list[Copy]:
        """End one lease; its blocks go back, but for those in a table or under another lease."""
        self._leased_by(lease)
        assert isinstance(lease, Lease)  # `_leased_by` has seen to it
        for group in self._groups:
            if lease in group._leases:  # it was ended with another group of the same pool
                group._end_lease(lease)
        return self._answer([])

    # batch

    @all_or_nothing
    def append_batch(self, seqs: Sequence[int], num_tokens: int | Sequence[int]) -> list[Copy]:
        """Append to each of `seqs` in order, one number of tokens or one a sequence, or to none."""
        grown = self._batch(seqs, num_tokens)
        copies = [copy for seq, number in grown for copy in self._extend(seq, number)]
        return self._answer(copies)

    # resize, introspection

    @all_or_nothing
    def resize(self, num_blocks: int) -> list[Copy]:
        """Have `num_blocks` blocks; `OutOfBlocks` if a table or a lease has one beyond them."""
        self._require_one_group("resizing")
        size = tokens_of(num_blocks)
        if size < 1:
            raise InvalidLength("a pool has at least one block")
        ids = range(self._supply.ids.start, self._supply.ids.start + size)
        for block in self._supply.ids[size:]:
            self._remove(block)
        for block in reversed(ids[len(self._supply.ids) :]):
            self._checkpoint("add a block")
            self._journal.append(self._free, block)
        self._journal.set(self._supply, "ids", ids)
        return self._answer([])

    def ref_count(self, block: int) -> int:
        """How many live tables have `block`; leases and the prefix cache are not counted."""
        return sum(pool.references[block] for pool in self._pools)

    def free_blocks(self) -> list[int]:
        """The ids of the blocks that `num_free_blocks` counts, in all pools."""
        return sorted(block for pool in self._pools for block in (*pool.free, *pool.idle))

    def _remove(self, block: int) -> None:
        """Take `block` out of the pool, and give up what is cached in it."""
        queue = self._rest(block)
        if block not in queue:
            raise OutOfBlocks(f"block {block} is in use, and beyond the new end")
        self._checkpoint("remove a block")
        self._journal.remove(queue, block)
        if self._cached(block):
            self._unpublish(block)


def _never_fails(point: str) -> None:
    """The checkpoint of an allocator for which nothing goes wrong."""
