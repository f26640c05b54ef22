"""Allocators that are right and unusual: the specification must accept every one of them.

Each departs from the reference at one point: which block it hands out, who gets the copy,
when it copies, how much it reserves, or in which types it answers.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar

import numpy as np

from kvimpls.reference import Reference, SequenceState
from kvspec import Contract, Copy, Geometries, Geometry, Granular, ToMax, UnsupportedGeometry

WITHOUT_MORE = ("core", "reservation", "admission", "sharing", "lease")
"""What is claimed by those whose departure would break another capability's strict contract."""


class Fifo(Reference):
    """Hands out the block that has been free for longest."""

    def _pick(self) -> int:
        return self._free.pop(0)


class LowestAddress(Reference):
    """Hands out the free block with the lowest id."""

    def _pick(self) -> int:
        block = min(self._free)
        self._free.remove(block)
        return block


class RandomOrder(Reference):
    """Hands out any free block, drawn from a generator of its own, always seeded alike."""

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry, checkpoint=checkpoint)
        self._random = Random(0)

    def _pick(self) -> int:
        return self._free.pop(self._random.randrange(len(self._free)))


class Relocating(Reference):
    """Compacts: whatever succeeds may move blocks of any sequence to lower ids that are free."""

    contract: ClassVar[Contract] = Contract(capabilities=WITHOUT_MORE, relocates=True)

    def _answer(self, copies: list[Copy]) -> list[Copy]:
        used = {block for sequence in self._sequences.values() for block in sequence.held()}
        for block in sorted(used, reverse=True):
            lowest = min(self._free, default=block)
            # Something in flight knows a leased block by its id, so it stays where it is.
            if lowest < block and not self._leased(block):
                self._move(block, lowest)
                copies = [*copies, Copy(block, lowest)]
        return copies

    def _move(self, block: int, to: int) -> None:
        for sequence in self._sequences.values():
            sequence.blocks = [to if entry == block else entry for entry in sequence.blocks]
        self._references[to] = self._references.pop(block)
        self._free[self._free.index(to)] = block


class EagerTail(Reference):
    """Copies a partly filled tail when it forks, and is refused if it has no block for that."""

    contract: ClassVar[Contract] = Contract(capabilities=WITHOUT_MORE, eager_fork="tail")

    def _copied_at_fork(self, origin: SequenceState) -> list[int]:
        whole, rest = divmod(origin.length, self._geometry.block_size)
        return [whole] if rest else []


class EagerAll(Reference):
    """Copies every block when it forks, so that nothing is ever shared."""

    contract: ClassVar[Contract] = Contract(capabilities=WITHOUT_MORE, eager_fork="all")

    def _copied_at_fork(self, origin: SequenceState) -> list[int]:
        return list(range(len(origin.blocks)))


class OtherSideCopies(Reference):
    """Lets the one that appends keep a shared block, and all its other users move to the copy."""

    def _copy_on_write(self, sequence: SequenceState, index: int, fresh: int) -> Copy:
        kept = sequence.blocks[index]
        assert kept is not None  # nothing is written into what the window has left
        others = [
            other
            for other in self._sequences.values()
            if other is not sequence and kept in other.blocks
        ]
        for other in others:
            # Sequences share only what they have in common from the beginning, so the block
            # lies at the same index in each.
            self._journal.replace(other.blocks, index, fresh)
        self._journal.put(self._references, kept, 1)
        self._journal.put(self._references, fresh, len(others))
        return Copy(kept, fresh)


class CopiesUnderLease(Reference):
    """Copies a leased block rather than append into it, if it can spare one; else in place."""

    # In a batch, what one sequence can spare another may need.
    contract: ClassVar[Contract] = Contract(capabilities=WITHOUT_MORE)

    def _to_copy(self, sequence: SequenceState, length: int) -> list[int]:
        shared = super()._to_copy(sequence, length)
        leased = [
            index
            for index in self._written(sequence, length)
            if index not in shared and self._leased(sequence.blocks[index])
        ]
        # Copying is allowed but must not be what makes the append fail.
        need = len(shared) + len(leased) + self._growth(sequence, length)
        return sorted(shared + leased) if self._fits(need) else shared


class NumpyIds(Reference):
    """Answers in other types: arrays of ids, numpy ints, a lazy stream of plain pairs, a name."""

    # `Any`, because none of these is a subtype of what the reference returns; all of them
    # are what the interface allows.

    def block_table(self, seq: int, group: int = 0) -> Any:
        """A snapshot of the blocks of `seq`, as an int64 array if all of them are there."""
        return self._array(super().block_table(seq, group))

    def host_block_table(self, seq: int) -> Any:
        """A snapshot of the host blocks of `seq`, as an int64 array if all of them are there."""
        return self._array(super().host_block_table(seq))

    def num_free_blocks(self, pool: int = 0) -> Any:
        """How many blocks are in no table and under no lease, as an int64."""
        return np.int64(super().num_free_blocks(pool))

    def num_free_host_blocks(self) -> Any:
        """How many host blocks are in no table, as an int64."""
        return np.int64(super().num_free_host_blocks())

    def ref_count(self, block: int) -> Any:
        """How many live tables have `block`, as an int64."""
        return np.int64(super().ref_count(block))

    def free_blocks(self) -> Any:
        """The ids of the blocks that are free, as a set."""
        return set(super().free_blocks())

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> Any:
        """Start `seq` with these tokens; how many leading ones were cached, as an int64."""
        return np.int64(super().allocate_prompt(seq, tokens, key))

    def lookup(self, tokens: Sequence[int], key: Any = None) -> Any:
        """The length in tokens of the longest cached run of blocks, as an int64."""
        return np.int64(super().lookup(tokens, key))

    def evict(self, num_blocks: int) -> Any:
        """Give up so many cached blocks; their ids as an int64 array."""
        return np.array(super().evict(num_blocks), dtype=np.int64)

    def can_allocate(self, num_tokens: int) -> Any:
        """The name of the admission."""
        return super().can_allocate(num_tokens).name

    def _answer(self, copies: list[Copy]) -> Any:
        return ((copy.source, copy.destination) for copy in copies)

    @staticmethod
    def _array(table: list[int | None]) -> Any:
        return tuple(table) if None in table else np.array(table, dtype=np.int64)


class FirstBlockOne(Reference):
    """Numbers its blocks from 1, as an engine does that keeps block 0 for padding."""

    contract: ClassVar[Contract] = Contract(first_block=1)
    _first_block: ClassVar[int] = 1


class EvictsOnRequest(Reference):
    """Keeps what is cached until the caller has it evicted, and is refused till then."""

    contract: ClassVar[Contract] = Contract(order="lru", eviction="explicit")

    def _to_be_had(self) -> int:
        return len(self._free)


class Deduplicates(Reference):
    """Gives up a block for another that is cached with the same contents, as it publishes."""

    contract: ClassVar[Contract] = Contract(order="lru", deduplicates=True)

    def _publish_up_to(self, sequence: SequenceState, length: int) -> None:
        super()._publish_up_to(sequence, length)
        if not self._publishes(sequence):
            return
        for index in range(self._full(sequence, length)):
            block = sequence.blocks[index]
            contents = self._contents(sequence.tokens, sequence.key, index)
            other = self._supply.cache.blocks.get(contents)
            if block is not None and other is not None and other != block:
                self._pin([other])
                self._journal.replace(sequence.blocks, index, other)
                self._let_go([block])


class Granules(Reference):
    """Takes memory in granules of 6 tokens, each of whole blocks, whatever the block size."""

    contract: ClassVar[Contract] = Contract(
        capabilities=WITHOUT_MORE, reservation=Granular(tokens=6)
    )

    def _need(self, length: int) -> int:
        granules = -(-length // 6)
        return granules * -(-6 // self._geometry.block_size)


class Prealloc(Reference):
    """Takes room for `max_tokens` with the first token; appending then needs no more.

    Raises `UnsupportedGeometry` without a `max_tokens`.
    """

    contract: ClassVar[Contract] = Contract(
        capabilities=WITHOUT_MORE,
        reservation=ToMax(),
        geometries=Geometries(max_tokens="required"),
    )

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        if geometry.max_tokens is None:
            raise UnsupportedGeometry(f"preallocation needs max_tokens, not {geometry}")
        self._room = -(-geometry.max_tokens // geometry.block_size)

    def _need(self, length: int) -> int:
        return self._room if length else 0
