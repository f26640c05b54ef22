"""The reference allocator: paged blocks, shared copy-on-write, in the plainest Python.

It is written to be read, not to be fast: a free list, a count of tables for each block, and
the leases. It owns no memory; it only says where tokens go, and which blocks must be copied.
The layout is that of Kwon et al., "Efficient Memory Management for Large Language Model
Serving with PagedAttention", SOSP 2023.

The private methods at the end are the points at which `unusual` and `museum` depart from it.
"""

import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import SupportsIndex

from kvspec import (
    Admission,
    Copy,
    Geometry,
    InvalidLength,
    OutOfBlocks,
    SequenceExists,
    UnknownLease,
    UnknownSequence,
    UnsupportedGeometry,
)


@dataclass
class SequenceState:
    """One live sequence: its block table, its length in tokens, and the bound on that length."""

    limit: int | None
    length: int = 0
    blocks: list[int] = field(default_factory=list)


class Lease:
    """One transfer in flight: opaque, and equal to itself alone."""


class Reference:
    """The strict paged contract, on one device tier; free blocks are reused last in, first out.

    A mutator either returns the copies that it needs or raises an `AllocatorError`, and then
    it has changed nothing. Raises `UnsupportedGeometry` for a window, groups or a host tier.

    >>> pool = Reference(Geometry(4, 16))
    >>> pool.allocate(0, 20), pool.fork(0, 1), pool.append(1, 1)
    ([], [], [Copy(source=1, destination=2)])
    >>> pool.block_table(0), pool.block_table(1), pool.num_free_blocks()
    ([0, 1], [0, 2], 1)
    """

    def __init__(self, geometry: Geometry) -> None:
        if geometry.window is not None or geometry.groups is not None or geometry.num_host_blocks:
            raise UnsupportedGeometry(f"one device tier and full attention only, not {geometry}")
        self._geometry = geometry
        self._sequences: dict[int, SequenceState] = {}
        self._references: Counter[int] = Counter()  # block -> the tables that have it
        self._leases: dict[object, list[int]] = {}
        self._free = list(reversed(range(geometry.num_blocks)))  # the next block is the last

    # core, reservation, admission

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> list[Copy]:
        """Start `seq` with `num_tokens` reserved slots; `limit` bounds its length from now on."""
        self._require_unused(seq)
        most = self._geometry.max_tokens
        limit = most if limit is None else _tokens(limit, most)
        length = _tokens(num_tokens, limit)
        blocks = self._take(self._need(length))
        self._sequences[seq] = SequenceState(limit, length, blocks)
        return self._answer([])

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Reserve slots for `num_tokens` more tokens, in blocks that `seq` has to itself."""
        sequence = self._sequence(seq)
        room = None if sequence.limit is None else sequence.limit - sequence.length
        length = sequence.length + _tokens(num_tokens, room)
        to_copy = self._to_copy(sequence, length)
        growth = self._growth(sequence, length)
        # All that is needed is taken at once, so that a refusal has nothing to undo.
        fresh = self._take(len(to_copy) + growth)
        copies = [self._copy_on_write(sequence, index, fresh.pop(0)) for index in to_copy]
        sequence.blocks += fresh
        sequence.length = length
        return self._answer(copies)

    def free(self, seq: int) -> list[Copy]:
        """End `seq`; its blocks go back, but for those in other tables or under a lease."""
        blocks = self._sequence(seq).blocks
        del self._sequences[seq]
        self._references.subtract(blocks)
        self._give_back(blocks)
        return self._answer([])

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`, in the order of its positions."""
        return list(self._sequence(seq).blocks)

    def num_free_blocks(self) -> int:
        """How many blocks are in no table and under no lease."""
        return len(self._free)

    def can_allocate(self, num_tokens: int) -> Admission:
        """OK exactly if `allocate` would succeed now, NEVER if it could not in an empty pool."""
        length = _tokens(num_tokens)
        most = self._geometry.max_tokens
        need = self._need(length)
        if (most is not None and length > most) or need > self._geometry.num_blocks:
            return Admission.NEVER
        return Admission.OK if self._fits(need) else Admission.LATER

    # sharing

    def fork(self, parent: int, child: int) -> list[Copy]:
        """Start `child` with the tokens, the blocks and the limit of `parent`."""
        origin = self._sequence(parent)
        self._require_unused(child)
        to_copy = self._copied_at_fork(origin)
        fresh = self._take(len(to_copy))
        sequence = SequenceState(origin.limit, origin.length, list(origin.blocks))
        self._sequences[child] = sequence
        self._references.update(sequence.blocks)
        copies = [self._copy_on_write(sequence, index, fresh.pop(0)) for index in to_copy]
        return self._answer(copies)

    # lease

    def begin_transfer(self, seq: int) -> Lease:
        """Lease the blocks that `seq` has now: nobody else gets them before the lease ends."""
        lease = Lease()
        self._leases[lease] = list(self._sequence(seq).blocks)
        return lease

    def end_transfer(self, lease: object) -> list[Copy]:
        """End one lease; its blocks go back, but for those in a table or under another lease."""
        blocks = self._leased_by(lease)
        del self._leases[lease]
        self._give_back(blocks)
        return self._answer([])

    # The questions and steps of which the above is made.

    def _need(self, length: int) -> int:
        """The blocks that a sequence of this length holds."""
        return -(-length // self._geometry.block_size)

    def _growth(self, sequence: SequenceState, length: int) -> int:
        """The blocks that `sequence` lacks for this length."""
        return max(0, self._need(length) - len(sequence.blocks))

    def _written(self, sequence: SequenceState, length: int) -> range:
        """The indices of the entries in the table that growing to `length` writes into."""
        if length == sequence.length:
            return range(0)
        first = sequence.length // self._geometry.block_size
        last = (length - 1) // self._geometry.block_size
        return range(first, min(last + 1, len(sequence.blocks)))

    def _to_copy(self, sequence: SequenceState, length: int) -> list[int]:
        """The indices of the entries to be copied before growing to `length`: the shared ones."""
        written = self._written(sequence, length)
        return [index for index in written if self._references[sequence.blocks[index]] > 1]

    def _copied_at_fork(self, origin: SequenceState) -> list[int]:
        """The indices of the entries that a fork copies at once: none, they are shared."""
        return []

    def _copy_on_write(self, sequence: SequenceState, index: int, fresh: int) -> Copy:
        """Give `sequence` the block `fresh` for the one at `index`, which its other users keep."""
        old = sequence.blocks[index]
        sequence.blocks[index] = fresh
        self._references[old] -= 1
        self._give_back([old])
        return Copy(old, fresh)

    def _fits(self, count: int) -> bool:
        """Whether `count` blocks are free."""
        return count <= len(self._free)

    def _take(self, count: int) -> list[int]:
        """Take `count` free blocks for one table, or refuse and take none."""
        if not self._fits(count):
            raise OutOfBlocks(f"{count} blocks are needed, {len(self._free)} are free")
        blocks = [self._pick() for _ in range(count)]
        self._references.update(blocks)
        return blocks

    def _pick(self) -> int:
        """Take the next block off the free list."""
        return self._free.pop()

    def _give_back(self, blocks: list[int]) -> None:
        """Put those of `blocks` that are in no table and under no lease on the free list."""
        # The first entry of a table goes last, so that it is the next to be handed out.
        self._free += [
            block
            for block in reversed(blocks)
            if not self._references[block] and not self._leased(block)
        ]

    def _leased(self, block: int) -> bool:
        """Whether a lease that has not ended has `block`."""
        return any(block in blocks for blocks in self._leases.values())

    def _answer(self, copies: list[Copy]) -> list[Copy]:
        """What a mutator returns when it has succeeded; the last thing that each of them does."""
        return copies

    # What is refused as misuse.

    def _sequence(self, seq: int) -> SequenceState:
        if seq not in self._sequences:
            raise UnknownSequence(f"sequence {seq} is not in use")
        return self._sequences[seq]

    def _require_unused(self, seq: int) -> None:
        if seq in self._sequences:
            raise SequenceExists(f"sequence {seq} is already in use")

    def _leased_by(self, lease: object) -> list[int]:
        if not isinstance(lease, Lease) or lease not in self._leases:
            raise UnknownLease(f"{lease!r} was never begun here, or has ended")
        return self._leases[lease]


def _tokens(number: SupportsIndex, most: int | None = None) -> int:
    """`number` as an int; `InvalidLength` unless it is whole, not negative and at most `most`."""
    try:
        tokens = operator.index(number)
    except TypeError:
        raise InvalidLength(f"{number!r} is not a whole number of tokens") from None
    if tokens < 0:
        raise InvalidLength(f"{tokens} tokens are fewer than none")
    if most is not None and tokens > most:
        raise InvalidLength(f"{tokens} tokens are more than the {most} that are allowed here")
    return tokens
