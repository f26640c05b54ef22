"""The block manager and the prefix cache of kvstream 0.1.0, behind the interface.

The engine is `kvstream.memory`: `BlockManager` (block_manager.py) and `PrefixKVCache`
(prefix_cache.py). They are pure Python and need no model. What their callers do around them is in
`ContinuousBatchScheduler` (scheduler/continuous_batch.py) and `KVStreamEngine.generate`
(engine.py), and is followed here by name. Nothing is checked and nothing is repaired.

Licence: the file LICENSE of the distribution is MIT (Copyright (c) Microsoft Corporation); its
classifier and its README say Apache-2.0.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from operator import index
from typing import Any, TypeVar

from attrs import define, evolve

from kvimpls.adapters.engines import engine
from kvspec import (
    Contract,
    Copy,
    Geometries,
    Geometry,
    InvalidLength,
    NotResident,
    OutOfBlocks,
    SequenceExists,
    UnknownSequence,
    UnsupportedGeometry,
)

VERSION = "0.1.0"

T = TypeVar("T")

with engine("kvstream", VERSION, bare=("kvstream",)):
    BlockManager: Any = import_module("kvstream.memory.block_manager").BlockManager
    PrefixKVCache: Any = import_module("kvstream.memory.prefix_cache").PrefixKVCache


class Pages:
    """`BlockManager` as it is: core, sharing, swap and introspection.

    Kept here is what `ContinuousBatchScheduler` keeps: which sequences it has swapped out. The
    engine grows a sequence by one slot a call; more are so many calls, after one question whether
    there is room for them.

    Source: kvstream 0.1.0, memory/block_manager.py; for the calls' surroundings
    scheduler/continuous_batch.py and engine.py.
    """

    contract = Contract(
        # Not admission: can_allocate says yes or no, so a request that must wait and one that can
        # never fit look the same, and the scheduler leaves both at the head of its queue.
        capabilities=("core", "sharing", "swap", "introspection"),
        # Nothing checks an id or a length: allocate and fork overwrite the table of an id in use,
        # free returns for an unknown one, and a negative length takes one page.
        misuse="callers_duty",
        # MemoryConfig.must_be_power_of_two. No length is bounded: SchedulerConfig has
        # max_tokens_per_seq, which nothing reads.
        geometries=Geometries(block_sizes=(1, 2, 4, 8, 16, 32, 64, 128), max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.window is not None or geometry.max_tokens is not None:
            raise UnsupportedGeometry(f"no window and no bound on lengths: {geometry}")
        self.block_size = geometry.block_size
        self.host_offset = geometry.num_blocks
        self.manager = BlockManager(
            geometry.num_blocks, geometry.num_host_blocks, geometry.block_size
        )
        self.swapped: set[int] = set()  # as ContinuousBatchScheduler.swapped

    def __repr__(self) -> str:
        tables = {seq: state.logical_to_physical for seq, state in self._states().items()}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def _states(self) -> dict[str, Any]:
        states: dict[str, Any] = self.manager._seq_states
        return states

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with the pages of a prompt, as step 3 of `schedule` does."""
        if not self.manager.allocate(str(seq), num_tokens):
            raise OutOfBlocks(f"{num_tokens} tokens, and {self.num_free_blocks()} pages are free")

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """`append_slot` for each token, as in `generate`, and `cow_write` before a shared page.

        "Copy-on-write: blocks are shared until one of them writes" is what `fork` says, and
        `cow_write` is the engine's function for who writes; its caller copies the contents.
        """
        if not num_tokens:
            return []
        copies = []
        length = self._states()[str(seq)].num_tokens
        tail = length // self.block_size if length % self.block_size else None
        try:
            if num_tokens > 1:
                self._ask_for_room(seq, length, num_tokens, tail)
            if tail is not None:
                before = self.manager.get_block_table(str(seq))[tail]
                after = self.manager.cow_write(str(seq), tail)
                if after != before:
                    copies.append(Copy(before, after))
            for _ in range(num_tokens):
                self.manager.append_slot(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        return copies

    def _ask_for_room(self, seq: int, length: int, num_tokens: int, tail: int | None) -> None:
        # As many questions for one page make a question for several: can_allocate, as in schedule.
        size = self.block_size
        pages = -(-(length + num_tokens) // size) + -length // size
        if tail is not None:
            pages += self.ref_count(self.manager.get_block_table(str(seq))[tail]) > 1
        if pages and not self.manager.can_allocate(pages * self.block_size):
            raise MemoryError(f"{pages} pages, and {self.num_free_blocks()} are free")

    def free(self, seq: int) -> None:
        """End `seq`, as `schedule` does with what has finished."""
        self.manager.free(str(seq))
        self.swapped.discard(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child` with all pages of `parent`."""
        self.manager.fork(str(parent), str(child))

    def block_table(self, seq: int) -> list[int]:
        """`get_block_table`, which is empty here for a sequence that is swapped out."""
        table: list[int] = self.manager.get_block_table(str(seq))
        return [] if seq in self.swapped else table

    def num_free_blocks(self) -> int:
        """The pages that `num_free_gpu_blocks` counts."""
        free: int = self.manager.num_free_gpu_blocks()
        return free

    def swap_out(self, seq: int) -> list[Copy]:
        """Move the pages of `seq` to the host, as step 1 of `schedule` does."""
        try:
            mapping = self.manager.swap_out(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        self.swapped.add(seq)
        return [Copy(page, host - self.host_offset) for page, host in mapping.items()]

    def swap_in(self, seq: int) -> list[Copy]:
        """Move the pages of `seq` back, as step 2 of `schedule` does, which asks before."""
        if not self.manager.can_allocate(self._states()[str(seq)].num_tokens):
            raise OutOfBlocks(f"{self.num_free_blocks()} pages are free")
        try:
            mapping = self.manager.swap_in(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        self.swapped.discard(seq)
        return [Copy(host - self.host_offset, page) for host, page in mapping.items()]

    def host_block_table(self, seq: int) -> list[int]:
        """The host pages of a sequence that is swapped out, whose ids follow the device's."""
        if seq not in self.swapped:
            return []
        return [page - self.host_offset for page in self.manager.get_block_table(str(seq))]

    def num_free_host_blocks(self) -> int:
        """The pages that `num_free_cpu_blocks` counts."""
        free: int = self.manager.num_free_cpu_blocks()
        return free

    def ref_count(self, block: int) -> int:
        """The engine's own count of a page."""
        count: int = self.manager._gpu_blocks[block].ref_count
        return count

    def free_blocks(self) -> list[int]:
        """The engine's own list of free pages."""
        return list(self.manager._gpu_free)


class PagesFromFirstToken(Pages):
    """The same, but a sequence of no tokens is not shown to the engine before its first token.

    `BlockManager._pages_for` takes one page for no tokens, and `append_slot` then takes another;
    here is what lies behind that. Empty sequences wait, as in `ContinuousBatchScheduler.waiting`.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.waiting: set[int] = set()

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq`; without tokens it waits for its first one."""
        if num_tokens:
            super().allocate(seq, num_tokens)
        else:
            self.waiting.add(seq)

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq`; the first tokens of one that waits are its prompt."""
        if seq not in self.waiting:
            return super().append(seq, num_tokens)
        if num_tokens:
            super().allocate(seq, num_tokens)
            self.waiting.discard(seq)
        return []

    def free(self, seq: int) -> None:
        """End `seq`, which may still wait, as `abort_request` does."""
        super().free(seq)
        self.waiting.discard(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child`, which waits if `parent` does."""
        if parent in self.waiting:
            self.waiting.add(child)
        else:
            super().fork(parent, child)

    def block_table(self, seq: int) -> list[int]:
        """The engine's table, and none for a sequence that waits."""
        return [] if seq in self.waiting else super().block_table(seq)

    def swap_out(self, seq: int) -> list[Copy]:
        """Swap `seq` out; one that waits has nothing to move."""
        if seq not in self.waiting:
            return super().swap_out(seq)
        self.swapped.add(seq)
        return []

    def swap_in(self, seq: int) -> list[Copy]:
        """Swap `seq` in; one that waits has nothing to move."""
        if seq not in self.waiting:
            return super().swap_in(seq)
        self.swapped.discard(seq)
        return []

    def host_block_table(self, seq: int) -> list[int]:
        """The host pages of a sequence that is swapped out, and none for one that waits."""
        return [] if seq in self.waiting else super().host_block_table(seq)


class PagesAskingBeforeSwap(PagesFromFirstToken):
    """The same, but the caller asks whether the host has room before it swaps out.

    `BlockManager.swap_out` does not keep a sequence whole when the host's pages run out, and its
    caller does not ask; here is what lies behind that. The question is the engine's own.
    """

    def swap_out(self, seq: int) -> list[Copy]:
        """Swap `seq` out if `can_allocate(device="cpu")` says that it fits."""
        if seq not in self.waiting:
            length = self._states()[str(seq)].num_tokens
            if not self.manager.can_allocate(length, device="cpu"):
                raise OutOfBlocks(f"{self.num_free_host_blocks()} host pages are free")
        return super().swap_out(seq)


class StreamingPages(PagesAskingBeforeSwap):
    """The same, with a caller that is asked for nothing but what the engine's own callers see to.

    Ids are uuid4 and lengths are those of lists in `generate`, and the scheduler's queues say which
    sequences may be swapped; so the adapter answers for wrong calls of that kind. What is left is
    `generate`'s own: each token of the backend's stream is an `append_slot`, also while the
    scheduler has the sequence swapped out ("except KeyError: pass" is for one that has no table).
    """

    contract = evolve(PagesAskingBeforeSwap.contract, misuse="raises")

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq`, whose id is new."""
        if self._has(seq):
            raise SequenceExists(seq)
        super().allocate(seq, _length(num_tokens))

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow `seq`, wherever its pages are; what has no page or no new token does not stream."""
        if not _length(num_tokens) or seq in self.waiting:
            self._must_run(seq)
        self._must_have(seq)
        return super().append(seq, _length(num_tokens))

    def free(self, seq: int) -> None:
        """End `seq`, which is in one of the queues."""
        self._must_have(seq)
        super().free(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child`, whose id is new, from one that runs."""
        self._must_have(parent)
        if self._has(child):
            raise SequenceExists(child)
        self._must_run(parent)
        super().fork(parent, child)

    def swap_out(self, seq: int) -> list[Copy]:
        """Swap out one that runs, as `ContinuousBatchScheduler.running` has it."""
        self._must_run(seq)
        return super().swap_out(seq)

    def swap_in(self, seq: int) -> list[Copy]:
        """Swap in one that `ContinuousBatchScheduler.swapped` has."""
        self._must_have(seq)
        return super().swap_in(seq)

    def block_table(self, seq: int) -> list[int]:
        """The pages of one that is in the queues."""
        self._must_have(seq)
        return super().block_table(seq)

    def host_block_table(self, seq: int) -> list[int]:
        """The host pages of one that is in the queues."""
        self._must_have(seq)
        return super().host_block_table(seq)

    def _has(self, seq: int) -> bool:
        return seq in self.waiting or bool(self.manager.has_sequence(str(seq)))

    def _must_have(self, seq: int) -> None:
        if not self._has(seq):
            raise UnknownSequence(seq)

    def _must_run(self, seq: int) -> None:
        self._must_have(seq)
        if seq in self.swapped:
            raise NotResident(seq)


def _length(num_tokens: int) -> int:
    try:
        length = index(num_tokens)
    except TypeError as error:
        raise InvalidLength(num_tokens) from error
    if length < 0:
        raise InvalidLength(num_tokens)
    return length


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
        Pages.append(self, seq, num_tokens)


class ExpiringPrefixPages(FilledPrefixPages):
    """The same, but where pages are short the caller lets all entries expire and asks again.

    In the engine entries go with their age alone; here is what lies behind that.
    """

    contract = evolve(
        FilledPrefixPages.contract,
        # Whatever is asked for while pages are short may empty the cache, also if it is refused.
        forgets=True,
        eviction="any",
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
