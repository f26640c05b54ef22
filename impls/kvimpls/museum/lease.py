"""Faults of leases: blocks reused while something in flight uses them, or never again."""

from collections.abc import Callable
from typing import ClassVar

from kvimpls.reference import Lease, Reference, SequenceState
from kvspec import Contract, Copy, Geometry, OutOfBlocks, UnknownLease, Unspecified


class ReuseWhileLeased(Reference):
    """Freeing a sequence ignores its leases, so that its blocks are reused under the transfer.

    sgl-project/sglang#35049, where an abort freed pages that a remote writer was still filling.
    """

    def free(self, seq: int) -> list[Copy]:
        """End `seq`, and with it every claim of a lease to its blocks."""
        blocks = self._sequence(seq).blocks
        self._leases = {
            lease: [block for block in leased if block not in blocks]
            for lease, leased in self._leases.items()
        }
        return super().free(seq)


class FirstLeaseReleases(Reference):
    """The first lease on a block to end releases it, as if leases were a flag and not a count.

    No public report of this is known to us.
    """

    def end_transfer(self, lease: object) -> list[Copy]:
        """End `lease`, and the claims of all others to its blocks."""
        ended = self._leased_by(lease)
        self._leases = {
            other: leased if other is lease else [block for block in leased if block not in ended]
            for other, leased in self._leases.items()
        }
        return super().end_transfer(lease)


class Unseeing(Reference):
    """What calls that let go of leased blocks have in common: they do not see leases."""

    _unseeing: bool = False

    def _leased(self, block: int | None) -> bool:
        return not self._unseeing and super()._leased(block)


class SwapsUnderTheTransfer(Unseeing):
    """Swapping a sequence out frees its device blocks, whatever is in flight from them.

    sgl-project/sglang#31427, where only the destination of a copy between the tiers was pinned,
    and its source was reused before it had been read.
    """

    def swap_out(self, seq: int) -> list[Copy]:
        """Move `seq` to host blocks, and let its device blocks be reused."""
        self._unseeing = True
        try:
            return super().swap_out(seq)
        finally:
            self._unseeing = False


class SlidesUnderTheTransfer(Unseeing):
    """What the window leaves is free at once, whatever is in flight from it.

    No public report of this is known to us.
    """

    def _release(self, sequence: SequenceState, outside: int) -> None:
        self._unseeing = True
        try:
            super()._release(sequence, outside)
        finally:
            self._unseeing = False


class SplitLosesTheLock(Reference):
    """A prompt that hits blocks under a lease takes them out of the lease.

    sgl-project/sglang#38480: a node of the cache is split where another request leaves it, and
    its first part does not inherit the lock of the write that is in flight.
    """

    def _begin(self, seq: int, sequence: SequenceState, length: int) -> None:
        hit = sequence.held()
        for lease, leased in list(self._leases.items()):
            left = [block for block in leased if block not in hit]
            self._journal.put(self._leases, lease, left)
        super()._begin(seq, sequence, length)


class ReleasedByTwoPaths(Reference):
    """The last block of what was in flight goes back with its lease, and went with its sequence.

    sgl-project/sglang-jax#982: the end of a request frees what its length covers, and the end of
    the step in flight frees the step's slot. sgl-project/mini-sglang#111: the result of a step is
    processed for a request that was aborted meanwhile, and finishes it once more.
    """

    def _end_lease(self, lease: Lease) -> None:
        last = self._leases[lease][-1:]
        super()._end_lease(lease)
        for block in last:
            if block in self._free:
                self._journal.append(self._free, block)


class ListedTwice(Reference):
    """A lease lists a block twice that two tables have, and each mention of it is put back.

    vllm-project/vllm#42571: the counts of all blocks of a batch are lowered first, and then
    every mention is queued whose count has come to zero.
    """

    def _lease(self, seq: int, lease: Lease) -> None:
        super()._lease(seq, lease)
        listed = self._leases[lease]
        listed += [block for block in listed if self._references[block] > 1]


class PinnedTwice(Reference):
    """A second lease on a sequence pins its blocks twice, and its end unpins them once.

    kvcache-ai/Mooncake#1853, where each of two completions of one object pinned it.
    """

    def _lease(self, seq: int, lease: Lease) -> None:
        again = any(map(self._leased, self._sequences[seq].held()))
        super()._lease(seq, lease)
        if again:
            self._journal.put(self._leases, Lease(), list(self._leases[lease]))


class EndsInOrder(Reference):
    """What leases had goes back in the order in which they began, and waits for the oldest.

    pytorch/pytorch#71616, where the queue of pending frees was drained from its head, up to the
    first that had not completed.
    """

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry, checkpoint=checkpoint)
        self._done: dict[Lease, bool] = {}

    def _leased_by(self, lease: object) -> list[int]:
        if lease in self._done:
            raise UnknownLease(f"{lease!r} has ended")
        return super()._leased_by(lease)

    def _end_lease(self, lease: Lease) -> None:
        self._journal.put(self._done, lease, True)
        while self._leases and (oldest := next(iter(self._leases))) in self._done:
            super()._end_lease(oldest)


class SearchesTooEarly(Reference):
    """What a lease had becomes usable by a refusal: it is added after the search, for the next.

    pytorch/pytorch#189504: the failing path waits for pending frees, and does not look again at
    the list to which they went; an identical retry succeeds.
    """

    _pending: int = 0

    def _end_lease(self, lease: Lease) -> None:
        before = self._supply.num_free()
        super()._end_lease(lease)
        self._pending += self._supply.num_free() - before

    def _take(self, count: int) -> list[int]:
        if count and count > self._supply.num_free() - self._pending:
            self._pending = 0
            raise OutOfBlocks(f"{count} blocks are needed, and some are pending")
        return super()._take(count)


class SearchesTooEarlyUnpromised(SearchesTooEarly):
    """The same where the contract lets any call be refused, and still not succeed when repeated.

    pytorch/pytorch#189504.
    """

    contract: ClassVar[Contract] = Contract(
        capabilities=("core", "reservation", "sharing", "lease"), reservation=Unspecified()
    )
