"""The prefix cache: what full blocks hold is published, and found again by what it is.

Contents found are shared as by a fork; contents that nobody uses stay until their blocks are
needed. The scheme is vLLM's automatic prefix caching, with the window of its hybrid models.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from kvimpls.torch_paged.arguments import integers, whole
from kvimpls.torch_paged.base import atomic
from kvimpls.torch_paged.paged import Paged
from kvimpls.torch_paged.prefix import Content
from kvspec import Copy, InvalidLength, OutOfBlocks


class Caching(Paged):
    """Capabilities prefix and eviction, without groups: with some, `AllocatorError`."""

    @atomic
    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq` with these tokens; how many leading ones were cached, in whole blocks.

        At least one token is left to compute. Raises `SequenceExists`, `InvalidLength` or
        `OutOfBlocks`.
        """
        tables, _ = self._only_group()
        pool = tables.pool
        known = integers(tokens)
        self._check_length(len(known), self._max_tokens)
        self._check_new(seq)
        chain = self._hit(known[:-1], key)
        hit = len(chain) - 1
        length = hit * tables.block_size
        gone = tables.gone_before(length - 1, 0)
        found = [content.block for content in chain[gone + 1 :]]
        blocks = torch.tensor(found, dtype=torch.int64, device=pool.stack.device)
        need = tables.blocks_for(len(known)) - hit
        revived = pool.num_idle(blocks)
        if need + revived > pool.num_free:
            raise OutOfBlocks(f"{need} + {revived} cached needed, {pool.num_free} free")
        state = self._open(seq, len(known), self._max_tokens)
        if found:
            tables.put(state.row, gone, blocks)
            pool.share(blocks)
        self._take(tables, state.row, hit, need)
        state.gone = (gone,)
        state.written = state.marked = length
        state.tokens, state.chain = known, chain
        return length

    @atomic
    def append_tokens(self, seq: int, tokens: Sequence[int]) -> tuple[Copy, ...]:
        """Reserve slots for more tokens of `seq`, known ones; raises what `append` raises."""
        self._only_group()
        state = self._resident(seq)
        known = integers(tokens)
        self._check_length(state.length + len(known), state.limit)
        if not known:
            return ()
        all_known = len(state.tokens) == state.length
        copies = self._grow(state, len(known))
        if all_known:
            state.tokens += known
        return copies

    @atomic
    def mark_written(self, seq: int, num_tokens: int) -> tuple[Copy, ...]:
        """Publish the full blocks of known tokens among the first `num_tokens` of `seq`.

        Contents that another block has already are not published twice. Raises
        `UnknownSequence`, `NotResident` or `InvalidLength`.
        """
        tables, _ = self._only_group()
        pool = tables.pool
        state = self._resident(seq)
        tokens = whole(num_tokens)
        if tokens > state.length:
            raise InvalidLength(f"{tokens} tokens of {state.length} are written")
        if tokens <= state.marked:
            return ()
        if state.epoch == self._index.epoch:
            size, chain = tables.block_size, state.chain
            ready = len(chain)
            self._journal.keep_way_back(partial(chain.__delitem__, slice(ready, None)))
            chain += self._index.further(chain[-1], state.tokens[(ready - 1) * size : tokens])
            first = max(state.marked // size, state.gone[0])
            full = chain[first + 1 : tokens // size + 1]
            new = [i for i, content in enumerate(full) if content.block is None]
            blocks = tables.entries[state.row, first : first + len(full)][new]
            for i, block in zip(new, blocks.tolist(), strict=True):
                self._may_fail("publishing a block")
                self._index.add(full[i], block)
            pool.publish(blocks)
        state.marked = tokens
        return ()

    def lookup(self, tokens: Sequence[int], key: Any = None) -> int:
        """How many leading tokens are cached, in whole blocks.

        With a window, only the blocks that the window of so many tokens needs have to be.
        """
        tables, _ = self._only_group()
        return (len(self._hit(integers(tokens), key)) - 1) * tables.block_size

    @atomic
    def reset_prefix_cache(self) -> tuple[Copy, ...]:
        """Forget all cached contents; sequences that are live publish nothing any more."""
        tables, _ = self._only_group()
        self._index.reset()
        tables.pool.withdraw_all()
        return ()

    @atomic
    def evict(self, num_blocks: int) -> list[int]:
        """Give up so many cached blocks that nobody uses, or all there are; their ids."""
        tables, _ = self._only_group()
        count = min(whole(num_blocks), tables.pool.idle)
        if not count:
            return []
        oldest: list[int] = tables.pool.evict(count).tolist()
        self._may_fail("giving blocks up")
        return oldest

    def _hit(self, tokens: Sequence[int], key: Any) -> list[Content]:
        """The root and the contents of the blocks of the longest cached run."""
        tables, _ = self._only_group()
        chain = self._index.known(tokens, key)
        best = run = 0  # blocks of the longest hit so far; cached ones in a row up to this one
        for i, content in enumerate(chain[1:], 1):
            run = run + 1 if content.block is not None else 0
            if i - run <= tables.needed_from(i * tables.block_size):
                best = i
        return chain[: best + 1] if chain else [self._index.root(key)]
