"""The prefix cache: full blocks of known tokens are published, and found by later prompts.

A published block stays published after its last user has gone, and counts as free: it is taken
like any other once there is no free block without cached contents.
"""

from collections.abc import Sequence
from typing import Any

from kvimpls.reference.grouping import Grouping
from kvimpls.reference.journal import all_or_nothing
from kvimpls.reference.paging import Entry, SequenceState, tokens_of
from kvimpls.reference.prefix import Contents, plain, typed
from kvspec import Copy


class Caching(Grouping):
    """Capabilities `prefix` and `eviction`, for what has one group.

    >>> from kvimpls.reference import Reference
    >>> from kvspec import Geometry
    >>> pool = Reference(Geometry(8, 2))
    >>> pool.allocate_prompt(0, [1, 2, 3, 4, 5]), pool.mark_written(0, 5), pool.free(0)
    (0, [], [])
    >>> pool.lookup([1, 2, 3, 4]), pool.allocate_prompt(1, [1, 2, 3, 4])  # one is left to compute
    (4, 2)
    """

    @all_or_nothing
    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq` with these tokens; how many leading ones were cached, in whole blocks."""
        self._require_one_group("prefix cache")
        self._require_unused(seq)
        prompt = plain(tokens)
        length = tokens_of(len(prompt), self._max_tokens)
        hit = self._hit(prompt, key, self._usable(length))
        cached = len(hit) * self._block_size
        sequence = SequenceState(self._max_tokens, 0, hit, prompt, key, cached, self._supply.epoch)
        # The hits first: what is taken for the rest must be none of them.
        self._pin(block for block in hit if block is not None)
        self._begin(seq, sequence, length)
        self._answer([])
        return cached

    @all_or_nothing
    def append_tokens(self, seq: int, tokens: Sequence[int]) -> list[Copy]:
        """Reserve slots for more tokens of `seq`, known ones."""
        self._require_one_group("prefix cache")
        more = plain(tokens)
        sequence = self._resident(seq)
        known = len(sequence.tokens) == sequence.length
        copies = self._extend(seq, len(more))
        if known:
            self._journal.set(sequence, "tokens", sequence.tokens + more)
        return self._answer(copies)

    @all_or_nothing
    def mark_written(self, seq: int, num_tokens: int) -> list[Copy]:
        """The first `num_tokens` tokens of `seq` are written: publish their full blocks."""
        self._require_one_group("prefix cache")
        sequence = self._resident(seq)
        length = tokens_of(num_tokens, sequence.length)
        if length > sequence.mark:
            self._journal.set(sequence, "mark", length)
            self._publish_up_to(sequence, length)
        return self._answer([])

    def lookup(self, tokens: Sequence[int], key: Any = None) -> int:
        """The length in tokens of the longest cached run of blocks; changes nothing."""
        self._require_one_group("prefix cache")
        wanted = plain(tokens)
        return len(self._hit(wanted, key, len(wanted))) * self._block_size

    @all_or_nothing
    def reset_prefix_cache(self) -> list[Copy]:
        """Forget all cached contents; sequences that are live publish nothing any more."""
        self._require_one_group("prefix cache")
        self._journal.set(self._supply, "epoch", self._supply.epoch + 1)
        for block in list(self._supply.cache.contents):
            self._unpublish(block)
        for block in list(self._supply.idle):
            self._journal.remove(self._supply.idle, block)
            self._journal.append(self._free, block)
        return self._answer([])

    @all_or_nothing
    def evict(self, num_blocks: int) -> list[int]:
        """Give up so many cached blocks that nobody uses, or all there are; their ids."""
        self._require_one_group("prefix cache")
        count = min(tokens_of(num_blocks), len(self._supply.idle))
        given_up = []
        for _ in range(count):
            self._checkpoint("give up a block")
            given_up.append(self._evict())
            self._journal.append(self._free, given_up[-1])
        return given_up

    # Finding.

    def _usable(self, length: int) -> int:
        """How much of a prompt may be a hit: its last token is left, as it must be computed."""
        return max(0, length - 1)

    def _hit(self, tokens: tuple[int, ...], key: Any, most: int) -> list[Entry]:
        """The entries of the longest hit of at most `most` tokens.

        That needs the blocks which the window of a sequence of its length needs, and no others;
        without a window, all.
        """
        blocks = [
            self._supply.cache.blocks.get(self._contents(tokens, key, index))
            for index in range(most // self._block_size)
        ]
        for count in range(len(blocks), 0, -1):
            outside = self._outside(count * self._block_size)
            if None not in blocks[outside:count]:
                return [None] * outside + blocks[outside:count]
        return []

    def _contents(self, tokens: tuple[int, ...], key: Any, index: int) -> Contents:
        """What is in the full block at `index` of a sequence with these tokens."""
        return Contents(typed(key), tokens[: (index + 1) * self._block_size])

    # Publishing.

    def _publish_up_to(self, sequence: SequenceState, length: int) -> None:
        """Publish what can be of the first `length` tokens."""
        if not self._publishes(sequence):
            return
        for index in range(self._full(sequence, length)):
            block = sequence.blocks[index]
            if block is not None:
                self._publish(block, self._contents(sequence.tokens, sequence.key, index))

    def _publishes(self, sequence: SequenceState) -> bool:
        """Whether the cache has not been reset since `sequence`, or its ancestor, began."""
        return sequence.epoch == self._supply.epoch

    def _full(self, sequence: SequenceState, length: int) -> int:
        """How many leading blocks are full of known tokens, of the first `length`."""
        return min(length, len(sequence.tokens)) // self._block_size

    def _publish(self, block: int, contents: Contents) -> None:
        """Let `block` be found by its contents, unless another block is already."""
        cache = self._supply.cache
        if contents in cache.blocks:
            return
        self._checkpoint("publish a block")
        self._journal.put(cache.blocks, contents, block)
        self._journal.put(cache.contents, block, contents)
