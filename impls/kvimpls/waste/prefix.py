"""Prefix hits: how much of the prompts a prefix cache would have had already.

The requests are taken one after the other in file order, each prompt as a whole, without
regard to schemes, batching or the outputs, which have no ids. A prompt of P tokens has
`ceil(P / 512)` blocks; each has 512 tokens, but the last one what is left. An id stands for a
block and everything before it, so a block hits if its id is in the cache when its prompt comes.

- The *infinite* cache has every id that was seen in an earlier prompt.
- The *LRU* cache of C tokens has `floor(C / 512)` blocks. After each prompt all its blocks have
  just been used, the first of them last; then the least recently used go, until it fits. So
  a block is never cached without those before it, and what is cached is a prefix.
"""

from collections import OrderedDict
from collections.abc import Sequence

from attrs import frozen

from kvimpls.waste.readers import PREFIX_BLOCK
from kvimpls.waste.requests import Trace


@frozen
class PrefixHits:
    """Prompt tokens in all, and in blocks that were hit."""

    capacity: int
    """Tokens of the LRU cache."""
    prompt_tokens: int
    infinite: int
    lru: int

    @property
    def infinite_share(self) -> float:
        """The fraction of prompt tokens that an infinite cache has."""
        return self.infinite / self.prompt_tokens

    @property
    def lru_share(self) -> float:
        """The fraction of prompt tokens that the LRU cache has."""
        return self.lru / self.prompt_tokens


def prefix_hits(trace: Trace, capacity: int) -> PrefixHits | None:
    """The hits of an infinite cache and of an LRU cache of `capacity` tokens; `None` without ids.

    >>> trace = Trace("t", "mooncake", (700, 1024, 600), (1, 1, 1), None, ((1, 2), (1, 3), (1, 2)))
    >>> prefix_hits(trace, 1024)
    PrefixHits(capacity=1024, prompt_tokens=2324, infinite=1112, lru=1024)
    """
    if trace.blocks is None:
        return None
    most = capacity // PREFIX_BLOCK
    seen: set[int] = set()
    cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first
    infinite = lru = 0
    for prompt, ids in zip(trace.prompts, trace.blocks, strict=True):
        infinite += _tokens(prompt, ids, [block in seen for block in ids])
        lru += _tokens(prompt, ids, [block in cached for block in ids])
        seen.update(ids)
        for block in reversed(ids):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > most:
            cached.popitem(last=False)
    return PrefixHits(capacity, sum(trace.prompts), infinite, lru)


def _tokens(prompt: int, ids: Sequence[int], hit: Sequence[bool]) -> int:
    """The tokens of the blocks that are hit."""
    last = prompt - (len(ids) - 1) * PREFIX_BLOCK
    return sum(hit[:-1]) * PREFIX_BLOCK + hit[-1] * last
