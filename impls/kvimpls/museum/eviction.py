"""Faults of eviction: which cached contents are given up, when, and what for."""

from collections.abc import Iterable, Sequence

from kvimpls.reference import Lease, Reference


class EvictsTheUsed(Reference):
    """Where several blocks are short at once, contents are given up that somebody still reads.

    LMCache/LMCache#3130: removing one key looked at the count, and removing many did not.
    """

    _several: bool = False

    def _take(self, count: int) -> list[int]:
        self._several = count > 1
        try:
            return super()._take(count)
        finally:
            self._several = False

    def _evict(self) -> int:
        used = [b for b in self._supply.cache.contents if b not in self._supply.idle]
        if not (self._several and used):
            return super()._evict()
        self._unpublish(used[0])
        return used[0]


class EvictsManyUnchecked(Reference):
    """Asked for several at once, `evict` frees what somebody still reads if nothing else is left.

    LMCache/LMCache#3130, as it was reported.
    """

    def evict(self, num_blocks: int) -> list[int]:
        """Give up so many cached blocks, or all there are; their ids."""
        given_up = super().evict(num_blocks)
        if num_blocks > 1:
            used = [b for b in self._supply.cache.contents if b not in self._supply.idle]
            for block in used[: num_blocks - len(given_up)]:
                self._unpublish(block)
                self._free.append(block)
                given_up.append(block)
        return given_up


class EvictsFirst(Reference):
    """Cached contents are given up while there are free blocks without any.

    No public report of this is known to us.
    """

    def _take_one(self) -> int:
        if not self._supply.idle:
            return super()._take_one()
        self._checkpoint("take a block")
        block = self._evict()
        self._count(block, +1)
        return block


class HeadFirst(Reference):
    """The blocks of a sequence are queued from its head, which is given up before its tail.

    llm-d/llm-d-inference-sim#709: blocks freed together were of one age, and chance decided.
    """

    def _give_back(self, blocks: Sequence[int]) -> None:
        super()._give_back(blocks[::-1])


class InOrderOfCompletion(Reference):
    """What a transfer had is queued as its blocks complete, from the head on.

    vllm-project/vllm#51787.
    """

    def _end_lease(self, lease: Lease) -> None:
        blocks = self._leases[lease]
        self._journal.delete(self._leases, lease)
        for block in blocks:
            self._give_back([block])


class MostRecentFirst(Reference):
    """The contents that were in use last are given up first.

    No public report of this is known to us.
    """

    def _victim(self) -> int:
        return self._supply.idle[-1]


class GhostInTheQueue(Reference):
    """A hit that nobody used stays in the queue of those that may be given up.

    NVIDIA/TensorRT-LLM#12667, where letting go of it then queued it a second time.
    """

    def _pin(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._checkpoint("share a block")
            self._count(block, +1)


class ForgetsBeforeItFails(Reference):
    """Contents that were given up for a call are not put back when the call fails.

    kvcache-ai/Mooncake#2963: entries were deleted before those who had to agree had been asked.
    """

    def _unpublish(self, block: int) -> None:
        cache = self._supply.cache
        del cache.blocks[cache.contents.pop(block)]
