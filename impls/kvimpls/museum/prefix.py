"""Faults of the prefix cache: what is found that is not there, and what is not found that is."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvimpls.museum.core import Overdrawing
from kvimpls.reference import Reference, SequenceState
from kvimpls.reference.paging import present
from kvimpls.reference.prefix import Contents, plain, typed
from kvspec import Copy, OutOfBlocks


class StaleIndex(Reference):
    """A block that is taken for other contents can still be found by its old ones.

    GeeeekExplorer/nano-vllm#163: the block is reset, and the entry of its hash stays.
    """

    def _evict(self) -> int:
        block = self._victim()
        self._journal.remove(self._supply.idle, block)
        return block


class InheritsTheMark(Reference):
    """A block that was given up for a prompt counts as computed, as it was for its old contents.

    vllm-project/vllm#5364, where a block from the evictor kept its flag.
    """

    _recycled: tuple[int, ...] = ()

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq`; how many leading tokens are in blocks that some prompt has computed."""
        self._recycled = ()
        cached = super().allocate_prompt(seq, tokens, key)
        most = self._usable(len(tokens)) // self._block_size
        for block in self._sequences[seq].blocks[cached // self._block_size : most]:
            if block not in self._recycled:
                break
            cached += self._block_size
        return cached

    def _evict(self) -> int:
        block = super()._evict()
        self._recycled += (block,)
        return block


class PublishedAtAllocation(Reference):
    """A prompt can be found from its allocation on, before anything of it was written.

    vllm-project/vllm#43569: a request that ends before it is computed leaves its hashes behind.
    """

    def _begin(self, seq: int, sequence: SequenceState, length: int) -> None:
        super()._begin(seq, sequence, length)
        self._publish_up_to(sequence, length)


class PartialTailShared(Reference):
    """A prompt that another sequence has, token by token, is a hit to its partly filled last block.

    Avarok-Cybersecurity/atlas#1193, where the donor was still writing into it.
    """

    def _begin(self, seq: int, sequence: SequenceState, length: int) -> None:
        whole, rest = divmod(length, self._block_size)
        for donor in self._sequences.values():
            same = (donor.tokens, typed(donor.key)) == (sequence.tokens, typed(sequence.key))
            tail = present(donor.blocks[whole:])
            if (
                rest
                and same
                and sequence.tokens
                and len(sequence.blocks) == whole
                and len(tail) == 1
            ):
                self._pin(tail)
                sequence.blocks += tail
                break
        super()._begin(seq, sequence, length)


class IdleHitsUntold(Reference):
    """Of a hit the answer counts the blocks that somebody used before, and the table has all.

    GeeeekExplorer/nano-vllm#211: how much of a resumed sequence is to be computed was decided
    before its blocks were found in the free pool.
    """

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq`; how many leading tokens were cached and in use."""
        idle = list(self._supply.idle)
        cached = super().allocate_prompt(seq, tokens, key)
        hit = self._sequences[seq].blocks[: cached // self._block_size]
        used = next((i for i, block in enumerate(hit) if block in idle), len(hit))
        return used * self._block_size


class NothingLeftToCompute(Reference):
    """A prompt may be a hit to its last token, and the step that follows has no query.

    GeeeekExplorer/nano-vllm#144.
    """

    def _usable(self, length: int) -> int:
        return length


class IdleHitsNotCharged(Overdrawing):
    """A hit that nobody uses counts as free for the rest of the prompt as well.

    ROCm/ATOM#902: what the hits save is set against all free blocks, of which they are some.
    """

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq`, or fail in the middle."""
        hit = self._hit(plain(tokens), key, self._usable(len(tokens)))
        self._unseen = sum(block in self._supply.idle for block in hit)
        try:
            return super().allocate_prompt(seq, tokens, key)
        finally:
            self._unseen = 0


class HitLosesItsHash(Reference):
    """A hit that nobody used is taken as if it were fresh, and cannot be found after that.

    ROCm/ATOM#902.
    """

    def _pin(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        idle = [block for block in blocks if block in self._supply.idle]
        super()._pin(blocks)
        for block in idle:
            self._unpublish(block)


class PinsBeforeItRefuses(Reference):
    """A prompt that is refused leaves its hits counted once more than there are tables.

    vllm-project/vllm#11565: they were touched before the test, and not let go of after it.
    """

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq`, or touch its hits and refuse."""
        try:
            return super().allocate_prompt(seq, tokens, key)
        except OutOfBlocks:
            for block in self._hit(plain(tokens), key, self._usable(len(tokens))):
                if block is not None:
                    self._references[block] += 1
                    self._supply.idle = [other for other in self._supply.idle if other != block]
            raise


class UntaggedKeys(Reference):
    """A key of several parts is found by its only part, since nothing says which it was.

    vllm-project/vllm#44701: an adapter's name and a salt were appended to one tuple, bare.
    """

    def _contents(self, tokens: tuple[int, ...], key: Any, index: int) -> Contents:
        alone = key[0] if isinstance(key, tuple) and len(key) == 1 else key
        return super()._contents(tokens, alone, index)


class UntaggedParts(Reference):
    """The parts of a key that are there are put into one tuple, and nothing says which they are.

    vllm-project/vllm#44701, with an adapter's name and a salt.
    """

    def _contents(self, tokens: tuple[int, ...], key: Any, index: int) -> Contents:
        parts = tuple(part for part in key if part is not None) if isinstance(key, tuple) else key
        return super()._contents(tokens, parts, index)


class KeyDropped(Reference):
    """Contents are known by their tokens alone, and served under any key.

    vllm-project/vllm#54342, in the keys of a second tier. Of the cache that the interface has
    there is one tier, so that it shows at once, and not only when the first has forgotten.
    """

    def _contents(self, tokens: tuple[int, ...], key: Any, index: int) -> Contents:
        return super()._contents(tokens, None, index)


class OwnTokensOnly(Reference):
    """Contents are known by the tokens of their own block, whatever came before them.

    No public report of this is known to us.
    """

    def _contents(self, tokens: tuple[int, ...], key: Any, index: int) -> Contents:
        whole = super()._contents(tokens, key, index)
        return whole._replace(tokens=whole.tokens[-self._block_size :])


class OverwrittenStaysCached(Reference):
    """A cached block that its sequence was cut into is written over, and found by its old tokens.

    sgl-project/sglang#35270, where a page was put into the tree that each step rewrote.
    """

    def _overwrite(self, sequence: SequenceState, written: range) -> None:
        pass


class ResetKeepsTheIndex(Reference):
    """Resetting the cache counts the reset, and what was cached can still be found.

    vllm-project/vllm-omni#6442: the data were thrown away, and the hashes were not.
    """

    def reset_prefix_cache(self) -> list[Copy]:
        """Do as if everything cached were forgotten."""
        self._supply.epoch += 1
        return []


class PublishesAfterTheReset(Reference):
    """Sequences that were there when the cache was reset go on to publish what they have.

    vllm-project/vllm-omni#6442: what was computed with the weights of before is found after.
    """

    def _publishes(self, sequence: SequenceState) -> bool:
        return True


class PublishesLate(Reference):
    """Of what is written the last token is held back, and with it the block that it fills.

    vllm-project/vllm#18668: the border was lowered by drafts that had not been scheduled.
    """

    def _full(self, sequence: SequenceState, length: int) -> int:
        return super()._full(sequence, max(0, length - 1))


class PublishesUnverified(Reference):
    """Whatever tokens are known are published with the first that are written.

    vllm-project/vllm#18668, with the opposite sign.
    """

    def _full(self, sequence: SequenceState, length: int) -> int:
        return super()._full(sequence, sequence.length)


class CountsTheDuplicate(Reference):
    """A block whose contents are cached in another is counted once more, for a cache without it.

    Avarok-Cybersecurity/atlas#373: the node kept its first block, and the reference was taken
    on the sequence's.
    """

    def _publish(self, block: int, contents: Contents) -> None:
        if self._supply.cache.blocks.get(contents, block) != block:
            self._count(block, +1)
        super()._publish(block, contents)


class KeepsTheMark(Reference):
    """A sequence that was cut counts as published as far as before, and what it gets is not.

    No public report of this is known to us.
    """

    def _mark_kept(self, sequence: SequenceState, length: int) -> int:
        return sequence.mark
