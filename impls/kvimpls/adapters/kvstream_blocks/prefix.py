"""`BlockManager` with `PrefixKVCache`: pages of prompts that were served are found again."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from attrs import define, evolve

from kvimpls.adapters.kvstream_blocks.pages import Pages, PagesAskingBeforeSwap
from kvimpls.adapters.kvstream_blocks.published import PrefixKVCache
from kvspec import Copy, Geometry, OutOfBlocks

T = TypeVar("T")


class PrefixPages(PagesAskingBeforeSwap):
    """`BlockManager` with `PrefixKVCache`, used as `KVStreamEngine.generate` uses them.

    A prompt that hits gets the pages of its hit and, as in the engine, no others. A sequence is
    registered with `PrefixKVCache.register` up to its mark.

    Source: kvstream 0.1.0, memory/prefix_cache.py; engine.py, scheduler/continuous_batch.py.
    """

    contract = evolve(
        Pages.contract,
        # Not introspection: the counts of the pages include those of the "prefix:" sequences.
        capabilities=("core", "sharing", "swap", "prefix"),
        # PrefixKVCache.match: the lengths go up to len(tokens).
        leave_one=False,
        # PrefixKVCache.register: "forked into a canonical sequence so the pages survive after the
        # donor is freed", so BlockManager counts them as used.
        free_counts_cached=False,
    )

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.cache = PrefixKVCache(self.manager, min_match_tokens=geometry.block_size)
        self.prompts: dict[int, _Prompt] = {}  # as SequenceGroup.prompt_tokens
        self.vocabulary: dict[tuple[str, int], int] = {}

    def _encoded(self, tokens: Iterable[int], key: str) -> list[int]:
        # One model and one tokenizer are all that the engine knows, so it has no key: a key and a
        # token together are a token here.
        pairs = [(key, int(token)) for token in tokens]
        return [self.vocabulary.setdefault(pair, len(self.vocabulary)) for pair in pairs]

    def allocate_prompt(self, seq: int, tokens: Iterable[int], key: object = None) -> int:
        """Start `seq` as `generate` does, and then step 3 of `schedule`."""
        prompt = _Prompt(repr(key), self._encoded(tokens, repr(key)))
        cached: int = 0
        if match := self.cache.match(prompt.tokens):
            cached = self.cache.fork_prefix(match, str(seq))
        self._admit(seq, cached, len(prompt.tokens))
        prompt.mark = cached
        self.prompts[seq] = prompt
        return cached

    def _admit(self, seq: int, cached: int, num_tokens: int) -> None:
        # "A sequence that already holds pages (forked from a cached prefix) is admitted without
        # re-allocating."
        if not self.manager.has_sequence(str(seq)):
            self.allocate(seq, num_tokens)

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq` by tokens that are not told, after which none can be registered."""
        copies = super().append(seq, num_tokens)
        if num_tokens and seq in self.prompts:
            self.prompts[seq].open = False
        return copies

    def append_tokens(self, seq: int, tokens: Iterable[int]) -> list[Copy]:
        """Grow `seq` by these tokens."""
        new = list(tokens)
        copies = super().append(seq, len(new))
        prompt = self.prompts.get(seq)
        if prompt is not None and prompt.open:
            prompt.tokens += self._encoded(new, prompt.key)
        return copies

    def mark_written(self, seq: int, num_tokens: int) -> None:
        """Register the first tokens of `seq`, as `generate` does when a request ends."""
        prompt = self.prompts.get(seq)
        if prompt is not None and num_tokens > prompt.mark:
            self.cache.register(str(seq), prompt.tokens[:num_tokens])
            prompt.mark = num_tokens

    def lookup(self, tokens: Iterable[int], key: object = None) -> int:
        """The length of the entry that `match` finds."""
        match = self.cache.match(self._encoded(tokens, repr(key)))
        return match.num_tokens if match else 0

    def reset_prefix_cache(self) -> None:
        """Let every entry expire, as `_eviction_loop` does with the old ones.

        The engine has no reset; that requests which run are not registered any more is its
        caller's part.
        """
        self._expire()
        for prompt in self.prompts.values():
            prompt.tokens.clear()
            prompt.open = False

    def _expire(self) -> None:
        ttl, self.cache.ttl_seconds = self.cache.ttl_seconds, -1
        self.cache.evict_expired()
        self.cache.ttl_seconds = ttl

    def fork(self, parent: int, child: int) -> None:
        """Start `child` with the pages and the tokens of `parent`."""
        super().fork(parent, child)
        if prompt := self.prompts.get(parent):
            self.prompts[child] = evolve(prompt, tokens=list(prompt.tokens))

    def swap_out(self, seq: int) -> list[Copy]:
        """Swap `seq` out, after which its marks count anew."""
        copies = super().swap_out(seq)
        if seq in self.prompts:
            self.prompts[seq].mark = 0
        return copies

    def free(self, seq: int) -> None:
        """End `seq`."""
        super().free(seq)
        self.prompts.pop(seq, None)


@define
class _Prompt:
    """The tokens of a sequence that are known, whether more can follow, and how many are marked."""

    key: str
    tokens: list[int]
    open: bool = True
    mark: int = 0


class FilledPrefixPages(PrefixPages):
    """The same, but a prompt that hits gets pages for the rest of its tokens too.

    Where the rest does not fit, the caller frees the sequence, as `abort_request` does. Here is
    what lies behind the prompts that stay short of pages.
    """

    def _admit(self, seq: int, cached: int, num_tokens: int) -> None:
        super()._admit(seq, cached, num_tokens)
        if cached:
            try:
                self._fill(seq, num_tokens - cached)
            except OutOfBlocks:
                self.manager.free(str(seq))
                raise

    def _fill(self, seq: int, num_tokens: int) -> None:
        PagesAskingBeforeSwap.append(self, seq, num_tokens)


class ExpiringPrefixPages(FilledPrefixPages):
    """The same, but where pages are short the caller lets all entries expire and asks again.

    In the engine entries go with their age alone; here is what lies behind that.
    """

    contract = evolve(
        FilledPrefixPages.contract,
        # PrefixKVCache.evict_expired: "Remove stale entries and release their pages", all of them,
        # however few are short; so what is refused may have emptied the cache too.
        forgets=True,
    )

    def _fill(self, seq: int, num_tokens: int) -> None:
        self._in_need(lambda: super(ExpiringPrefixPages, self)._fill(seq, num_tokens))

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq`, at the cost of the cache if need be."""
        self._in_need(lambda: super(ExpiringPrefixPages, self).allocate(seq, num_tokens))

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq`, at the cost of the cache if need be."""
        return self._in_need(lambda: super(ExpiringPrefixPages, self).append(seq, num_tokens))

    def append_tokens(self, seq: int, tokens: Iterable[int]) -> list[Copy]:
        """Grow `seq`, at the cost of the cache if need be."""
        new = list(tokens)
        return self._in_need(lambda: super(ExpiringPrefixPages, self).append_tokens(seq, new))

    def swap_in(self, seq: int) -> list[Copy]:
        """Swap `seq` in, at the cost of the cache if need be."""
        return self._in_need(lambda: super(ExpiringPrefixPages, self).swap_in(seq))

    def _in_need(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except OutOfBlocks:
            self._expire()
        return call()
