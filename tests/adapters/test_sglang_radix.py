"""The adapter of sglang's paged allocator and radix cache: what it translates, and no more."""

from random import Random

import pytest

from kvspec import Geometry, OutOfBlocks

pytest.importorskip("torch", reason="torch is an extra")

try:
    from kvimpls.adapters.sglang_radix import (
        PagedAllocator,
        RadixCache,
        SortingPagedAllocator,
        StrippingRadixCache,
    )
except ModuleNotFoundError as missing:
    pytest.skip(f"{missing}", allow_module_level=True)

GEOMETRY = Geometry(6, 4)
FACTORIES = (PagedAllocator, SortingPagedAllocator, RadixCache, StrippingRadixCache)


@pytest.mark.parametrize("make", FACTORIES)
@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 2), (2, 16), (7, 3)])
def test_all_blocks_can_be_used_and_lie_in_range(
    make: type[PagedAllocator], num_blocks: int, block_size: int
) -> None:
    """One sequence can fill the pool, and its ids begin after the page for padding."""
    allocator = make(Geometry(num_blocks, block_size))
    allocator.allocate(0, num_blocks * block_size)
    assert sorted(allocator.block_table(0)) == list(range(1, num_blocks + 1))
    assert allocator.num_free_blocks() == 0
    allocator.free(0)
    assert allocator.num_free_blocks() == num_blocks


@pytest.mark.parametrize("make", FACTORIES)
def test_a_refusal_is_out_of_blocks_and_changes_nothing(make: type[PagedAllocator]) -> None:
    """Nothing is taken for a sequence, a batch or a part of it, nor is a row of the pool."""
    allocator = make(GEOMETRY)
    allocator.allocate(0, 13)
    allocator.allocate(1, 4)
    before, rows = repr(allocator), allocator.pool.available_size()
    for _ in range(2):
        with pytest.raises(OutOfBlocks, match="pages are free"):
            allocator.allocate(2, 5)
        with pytest.raises(OutOfBlocks, match="pages are free"):
            allocator.append(0, 8)
        with pytest.raises(OutOfBlocks, match="pages are free"):
            allocator.append_batch([0, 1], [4, 1])
        assert repr(allocator) == before
        assert allocator.pool.available_size() == rows
    allocator.append_batch([0, 1], [3, 1])
    assert [len(allocator.block_table(seq)) for seq in (0, 1)] == [4, 2]


def test_a_sequence_takes_a_page_when_its_last_one_is_full() -> None:
    """Single tokens are decode steps, more are an extension, and none are nothing."""
    allocator = PagedAllocator(GEOMETRY)
    allocator.allocate(0, 0)
    taken = []
    for num_tokens in (0, 1, 3, 1, 0, 4, 3, 1):
        allocator.append(0, num_tokens)
        taken.append(len(allocator.block_table(0)))
    assert taken == [0, 1, 1, 2, 2, 3, 3, 4]


def test_the_table_is_a_snapshot() -> None:
    """Later changes on either side do not show in the other."""
    allocator = PagedAllocator(GEOMETRY)
    allocator.allocate(0, 4)
    table = allocator.block_table(0)
    allocator.append(0, 4)
    assert len(table) == 1
    table.clear()
    assert len(allocator.block_table(0)) == 2


def test_only_what_is_marked_is_found_and_only_under_its_key() -> None:
    """A prompt's last token is left to compute; free and evictable pages are free."""
    allocator = RadixCache(GEOMETRY)
    tokens = list(range(8))
    assert allocator.allocate_prompt(0, tokens, "a") == 0
    assert allocator.lookup(tokens, "a") == 0
    allocator.mark_written(0, 7)
    assert allocator.lookup(tokens, "a") == 4
    allocator.mark_written(0, 8)
    assert [allocator.lookup(tokens, key) for key in ("a", None, 0, False, "0")] == [8, 0, 0, 0, 0]
    assert allocator.allocate_prompt(1, tokens, "a") == 4
    assert allocator.block_table(1)[0] == allocator.block_table(0)[0]
    allocator.free(0)
    allocator.free(1)
    assert allocator.num_free_blocks() == 6


def test_tokens_that_nobody_knows_are_not_published() -> None:
    """After `allocate` and `append` nothing is published, nor what comes later."""
    allocator = RadixCache(GEOMETRY)
    allocator.allocate_prompt(0, [1, 2, 3, 4])
    allocator.append(0, 4)
    allocator.append_tokens(0, [5, 6, 7, 8])
    allocator.mark_written(0, 12)
    assert allocator.tree.total_size() == 4


def test_all_that_was_published_is_found_where_pages_are_not_short() -> None:
    """The contract may forget, so that this is not asked by the suite: it is asked here."""
    allocator, random, hits = RadixCache(Geometry(400, 4)), Random(0), 0
    published: set[tuple[int, ...]] = set()
    for seq in range(60):
        known = random.choice(sorted(published)) if published and random.randrange(2) else ()
        tokens = (*known, *(random.randrange(2) for _ in range(random.randrange(1, 17))))
        expected = max(
            (len(one) for one in published if one == tokens[: len(one)] and len(one) < len(tokens)),
            default=0,
        )
        assert allocator.allocate_prompt(seq, tokens) == expected
        hits += expected > 0
        mark = random.randrange(len(tokens) + 1)
        allocator.mark_written(seq, mark)
        published |= {tokens[: n * 4] for n in range(1, max(mark, expected) // 4 + 1)}
        if random.randrange(2):
            allocator.free(seq)
        assert all(allocator.lookup(one) == len(one) for one in published)
    assert hits


def test_an_eviction_takes_no_more_than_a_leaf_beyond_what_is_short() -> None:
    """Three prompts of two pages are cached; one page is short, and the last used ones stay."""
    allocator = RadixCache(Geometry(8, 4))
    prompts = [[n] * 8 for n in range(3)]
    for seq, prompt in enumerate(prompts):
        allocator.allocate_prompt(seq, prompt)
        allocator.mark_written(seq, 8)
        allocator.free(seq)
    allocator.allocate(3, 8)
    assert [allocator.lookup(prompt) for prompt in prompts] == [0, 8, 8]


def test_the_cache_is_flushed_where_nothing_runs() -> None:
    """Otherwise the reset is refused, and nothing is lost."""
    allocator = RadixCache(GEOMETRY)
    allocator.allocate_prompt(0, [1, 2, 3, 4])
    allocator.mark_written(0, 4)
    with pytest.raises(OutOfBlocks):
        allocator.reset_prefix_cache()
    assert allocator.lookup([1, 2, 3, 4]) == 4
    allocator.free(0)
    allocator.reset_prefix_cache()
    assert allocator.lookup([1, 2, 3, 4]) == 0
    assert allocator.num_free_blocks() == 6
