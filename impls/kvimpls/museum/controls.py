"""What was reported as a fault and is none, or by another convention: no suite may flag these.

The reports are named for what they teach about conventions, not as faults.
"""

from typing import ClassVar

from kvimpls.museum.core import SecondFreeAccepted
from kvimpls.reference import Reference, SequenceState
from kvimpls.reference.prefix import Contents
from kvspec import Contract


class TakesOnArrival(Reference):
    """Takes a block for each new token that is the first in one, by the length that counts it.

    GeeeekExplorer/nano-vllm#240, #150, #30: where the length counts the token already, a
    remainder of one is the right moment, though the same line is a token late where it does not.
    """

    def _growth(self, sequence: SequenceState, length: int) -> int:
        size = self._block_size
        arriving = range(sequence.length + 1, length + 1)
        return sum(counted % size == 1 % size for counted in arriving)


class CountsOnlyTheUncached(Reference):
    """Free are only the blocks without cached contents; the others are to be had all the same.

    ggml-org/llama.cpp#25740: what looked like a leak was the prompt cache, which goes when it is
    in the way. The contract says that the count leaves it out.
    """

    contract: ClassVar[Contract] = Contract(free_counts_cached=False)

    def num_free_blocks(self, pool: int = 0) -> int:
        """How many blocks nobody has and nothing is cached in."""
        return len(self._pools[pool].free)

    def free_blocks(self) -> list[int]:
        """The ids of the blocks that `num_free_blocks` counts."""
        return sorted(block for pool in self._pools for block in pool.free)


class LatestIsFound(Reference):
    """Of two blocks with the same contents the one published last is found, and the other is not.

    vllm-project/vllm#9643: prompts that begin alike and come at once are each computed. That one
    of the two is enough to be found is all that a cache has to do about it.
    """

    def _publish(self, block: int, contents: Contents) -> None:
        earlier = self._supply.cache.blocks.get(contents)
        if earlier is not None and earlier != block:
            self._unpublish(earlier)
            if earlier in self._supply.idle:
                self._journal.remove(self._supply.idle, earlier)
                self._journal.append(self._free, earlier)
        super()._publish(block, contents)


class TrustsTheCaller(SecondFreeAccepted):
    """Freeing what has been freed puts its blocks back once more; not to do so is a duty.

    microsoft/mimalloc#161: an overlap after a second free which the caller should not have made.
    The contract says that misuse is not looked for.
    """

    contract: ClassVar[Contract] = Contract(misuse="callers_duty")


CONTROLS: tuple[type[Reference], ...] = (
    TakesOnArrival,
    CountsOnlyTheUncached,
    LatestIsFound,
    TrustsTheCaller,
)
"""All of them."""
