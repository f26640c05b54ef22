"""The adapter of transformers' paged cache: what it translates, and that it adds nothing."""

import subprocess
import sys
from collections.abc import Callable
from random import Random

import pytest
from attrs import evolve

from kvspec import Geometry, OutOfBlocks, UnsupportedGeometry

pytest.importorskip("torch", reason="torch is an extra")
pytest.importorskip("transformers", reason="transformers is an extra")

from kvimpls.adapters.hf_transformers import (
    EvictingPrefixSharingCache,
    FalliblePagedCache,
    PagedCache,
    PrefixSharingCache,
)
from kvspec.suite.check import check_allocator

GEOMETRY = Geometry(6, 4)
FIRST = PagedCache.contract.first_block


@pytest.fixture
def cache() -> PagedCache:
    return PagedCache(GEOMETRY)


@pytest.mark.parametrize("block_size", PagedCache.contract.geometries.block_sizes or ())
@pytest.mark.parametrize("num_blocks", [1, 2, 7])
def test_all_blocks_can_be_used_and_lie_in_range(num_blocks: int, block_size: int) -> None:
    """One sequence can fill the pool, and its ids are the contract's range."""
    geometry = Geometry(num_blocks, block_size)
    cache = PagedCache(geometry)
    assert PagedCache.contract.geometries.admits(geometry)
    assert cache.num_free_blocks() == num_blocks
    cache.allocate(0, geometry.capacity)
    assert sorted(cache.block_table(0)) == list(range(FIRST, FIRST + num_blocks))
    assert cache.num_free_blocks() == 0


def test_a_sequence_takes_a_block_when_its_last_one_is_full(cache: PagedCache) -> None:
    """The lengths that the caller must keep are kept: blocks follow them one to one."""
    cache.allocate(0, 0)
    taken = [len(cache.block_table(0))]
    for _ in range(9):
        cache.append(0, 1)
        taken.append(len(cache.block_table(0)))
    assert taken == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_zero_tokens_take_no_block(cache: PagedCache) -> None:
    """Zero tokens are allowed for a new sequence, for one that has some, and in a full pool."""
    cache.allocate(0, GEOMETRY.capacity)
    cache.append(0, 0)
    cache.allocate(1, 0)
    cache.fork(1, 2)
    assert cache.block_table(1) == cache.block_table(2) == []
    assert cache.num_free_blocks() == 0


def test_freed_blocks_can_be_used_again(cache: PagedCache) -> None:
    """What a sequence held is free when it ends."""
    cache.allocate(0, GEOMETRY.capacity)
    cache.free(0)
    assert cache.num_free_blocks() == GEOMETRY.num_blocks
    cache.allocate(1, GEOMETRY.capacity)


@pytest.mark.parametrize(
    ("tokens", "call"),
    [
        (16, lambda cache: cache.allocate(9, 5)),
        (16, lambda cache: cache.append(0, 5)),
        (20, lambda cache: cache.append(0, 10**12)),
        (20, lambda cache: cache.fork(1, 9)),
    ],
    ids=["allocate", "append", "absurd", "fork"],
)
def test_a_refusal_is_out_of_blocks_and_changes_nothing(
    cache: PagedCache, tokens: int, call: Callable[[PagedCache], object]
) -> None:
    """The engine says `False`, or leaves the child out of its answer; nothing is taken."""
    cache.allocate(0, tokens)
    cache.allocate(1, 1)
    before = repr(cache)
    for _ in range(2):
        with pytest.raises(OutOfBlocks, match="blocks are free"):
            call(cache)
        assert repr(cache) == before


def test_a_fork_shares_full_blocks_and_copies_the_tail(cache: PagedCache) -> None:
    """The contract's eager_fork is `tail`: one copy, reported, and none later."""
    cache.allocate(0, 10)
    copies = cache.fork(0, 1)
    parent, child = cache.block_table(0), cache.block_table(1)
    assert parent[:2] == child[:2]
    assert copies == [(parent[2], child[2])]
    assert cache.num_free_blocks() == 2
    cache.append(0, 1)
    cache.append(1, 3)
    assert cache.block_table(0) == parent
    assert cache.block_table(1)[:3] == child


def test_a_fork_without_a_tail_takes_no_block(cache: PagedCache) -> None:
    """Whole blocks are shared, so a fork fits into a full pool."""
    cache.allocate(0, GEOMETRY.capacity)
    assert cache.fork(0, 1) == []
    assert cache.block_table(1) == cache.block_table(0)
    cache.free(0)
    assert cache.num_free_blocks() == 0
    cache.free(1)
    assert cache.num_free_blocks() == GEOMETRY.num_blocks


def test_the_table_is_a_snapshot(cache: PagedCache) -> None:
    """Later changes on either side do not show in the other."""
    cache.allocate(0, 4)
    table = cache.block_table(0)
    cache.append(0, 4)
    assert len(table) == 1
    table.clear()
    assert len(cache.block_table(0)) == 2


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(6, 3),
        Geometry(6, 4, window=8),
        Geometry(6, 4, max_tokens=8),
        Geometry(6, 4, num_host_blocks=1),
        Geometry(2**50, 4),
    ],
    ids=["page too small", "window", "limit", "host blocks", "more than the memory"],
)
def test_what_the_engine_cannot_be_built_with_is_unsupported(geometry: Geometry) -> None:
    """The engine's own bounds, and the sizes that it has no setting for."""
    with pytest.raises(UnsupportedGeometry):
        PagedCache(geometry)


def test_each_instance_is_fresh(cache: PagedCache) -> None:
    """Instances share the model's configuration, never a pool."""
    cache.allocate(0, 24)
    assert PagedCache(GEOMETRY).num_free_blocks() == GEOMETRY.num_blocks


def test_the_module_needs_the_engine_and_says_so_by_import_error() -> None:
    """Without transformers, importing the adapter is `ModuleNotFoundError`; the package imports."""
    script = """
import sys
sys.modules["transformers"] = None
import kvimpls.adapters
try:
    import kvimpls.adapters.hf_transformers
except ModuleNotFoundError:
    print("not found")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "not found\n"


@pytest.mark.parametrize("num_tokens", [1, 8, 24])
def test_a_failing_source_of_blocks_leaves_everything_as_it_was(num_tokens: int) -> None:
    """Whichever of the engine's own calls fails, the table and the count are those of before."""
    calls: list[str] = []
    failing = 0

    def checkpoint(point: str) -> None:
        calls.append(point)
        if len(calls) == failing:
            raise RuntimeError(point)

    cache = FalliblePagedCache(GEOMETRY, checkpoint=checkpoint)
    cache.allocate(0, num_tokens)
    reached, before = len(calls), cache.num_free_blocks()
    assert reached >= 2
    cache.free(0)
    for number in range(1, reached + 1):
        calls.clear()
        failing = number
        with pytest.raises(RuntimeError):
            cache.allocate(0, num_tokens)
        assert cache.num_free_blocks() == GEOMETRY.num_blocks
    failing = 0
    cache.allocate(0, num_tokens)
    assert cache.num_free_blocks() == before


def test_a_fork_whose_source_of_blocks_fails_keeps_the_counts_that_it_raised() -> None:
    """The engine's fork is not claimed under injection, and this is why."""
    contract = evolve(FalliblePagedCache.contract, capabilities=("core", "sharing", "injection"))
    report = check_allocator(FalliblePagedCache, contract=contract)
    assert report.trace is not None
    assert report.trace.law == "conservation"
    methods = [step.operation.method for step in report.trace.steps]
    assert methods == ["allocate", "fork", "free"]
    assert [step.fault > 0 for step in report.trace.steps] == [False, True, False]


# ------------------------------------------------------------------------ prefix sharing


@pytest.fixture
def sharing() -> PrefixSharingCache:
    return PrefixSharingCache(GEOMETRY)


def _publish(cache: PrefixSharingCache, seq: int, tokens: range, key: object = None) -> int:
    """Prefill a prompt; how much of it was cached."""
    cached = cache.allocate_prompt(seq, tokens, key)
    cache.mark_written(seq, len(tokens))
    return cached


def _ledger(cache: PrefixSharingCache) -> dict[int, int]:
    return dict(cache.allocator.ledger.hash_to_block)


def test_a_block_is_found_once_it_was_marked_and_is_whole(sharing: PrefixSharingCache) -> None:
    """Allocating publishes nothing, and a mark publishes the whole blocks below it, no more."""
    tokens = range(12)
    assert sharing.allocate_prompt(0, tokens) == 0
    found = [sharing.lookup(tokens)]
    for mark in (3, 4, 7, 8, 12):
        sharing.mark_written(0, mark)
        found.append(sharing.lookup(tokens))
    assert found == [0, 0, 4, 4, 8, 12]
    assert [sharing.lookup(tokens[:n]) for n in (3, 4, 5, 11)] == [0, 4, 4, 8]


def test_a_mark_that_is_not_above_the_last_does_nothing(sharing: PrefixSharingCache) -> None:
    """A forward pass has tokens; the engine's function would publish a block too many."""
    sharing.allocate_prompt(0, range(12))
    sharing.mark_written(0, 4)
    before = _ledger(sharing)
    for mark in (4, 2, 0):
        sharing.mark_written(0, mark)
    assert _ledger(sharing) == before


def test_a_prompt_shares_what_is_cached_but_for_its_last_token(
    sharing: PrefixSharingCache,
) -> None:
    """The same blocks, whole ones, and one token at least is left to prefill."""
    assert _publish(sharing, 0, range(8)) == 0
    assert sharing.allocate_prompt(1, range(8)) == 4
    assert sharing.allocate_prompt(2, range(9)) == 8
    first = sharing.block_table(0)
    assert sharing.block_table(1)[:1] == first[:1]
    assert sharing.block_table(1)[1] not in first
    assert sharing.block_table(2)[:2] == first
    assert sharing.num_free_blocks() == GEOMETRY.num_blocks - 4


def test_a_hit_is_marked_already(sharing: PrefixSharingCache) -> None:
    """A mark counts the blocks since the hit: the next one is published, and none beyond."""
    _publish(sharing, 0, range(8))
    sharing.free(0)
    assert sharing.allocate_prompt(1, range(16)) == 8
    sharing.mark_written(1, 12)
    assert sharing.lookup(range(16)) == 12


def test_equal_contents_become_one_block(sharing: PrefixSharingCache) -> None:
    """Of two prompts in one batch the second adopts the first one's block, and frees its own."""
    for seq in (0, 1):
        sharing.allocate_prompt(seq, range(5))
    assert sharing.num_free_blocks() == 2
    for seq in (0, 1):
        sharing.mark_written(seq, 5)
    first, second = sharing.block_table(0), sharing.block_table(1)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert sharing.num_free_blocks() == 3


def test_keys_keep_equal_tokens_apart(sharing: PrefixSharingCache) -> None:
    """The engine knows tokens alone: under another key they are other ones."""
    _publish(sharing, 0, range(4), "0")
    assert sharing.lookup(range(4), "0") == 4
    assert [sharing.lookup(range(4), key) for key in (None, 0, False, ("0",))] == [0] * 4


def test_what_has_ended_stays_cached_until_blocks_are_short(sharing: PrefixSharingCache) -> None:
    """Cached blocks are not free to the engine, and all of them go at once when one is missing."""
    _publish(sharing, 0, range(8))
    sharing.allocate(1, 4)
    sharing.free(0)
    assert sharing.num_free_blocks() == 3
    sharing.append(1, 12)
    assert sharing.lookup(range(8)) == 8
    sharing.append(1, 1)
    assert sharing.lookup(range(8)) == 0
    assert sharing.num_free_blocks() == 1


def test_what_is_in_use_is_not_evicted(sharing: PrefixSharingCache) -> None:
    """Only blocks without a user go, and those of a running request are found afterwards."""
    _publish(sharing, 0, range(8))
    _publish(sharing, 1, range(100, 108))
    sharing.free(1)
    sharing.allocate(2, 12)
    assert sharing.lookup(range(100, 108)) == 0
    assert sharing.lookup(range(8)) == 8


def test_a_prompt_that_is_refused_leaves_its_hit_uncached(sharing: PrefixSharingCache) -> None:
    """As the engine offloads a starved request: no block is lost, and nothing stays cached."""
    _publish(sharing, 0, range(8))
    sharing.free(0)
    sharing.allocate(1, 4)
    with pytest.raises(OutOfBlocks, match="blocks are free"):
        sharing.allocate_prompt(2, range(21 + 4))
    assert sharing.num_free_blocks() == GEOMETRY.num_blocks - 1
    assert sharing.lookup(range(8)) == 0
    assert sharing.allocate_prompt(2, range(20)) == 0


def test_tokens_after_unknown_ones_are_not_published(sharing: PrefixSharingCache) -> None:
    """A block is known by all tokens from the first one on."""
    sharing.allocate(0, 4)
    sharing.append_tokens(0, range(4))
    sharing.mark_written(0, 8)
    sharing.allocate_prompt(1, range(3))
    sharing.append(1, 1)
    sharing.append_tokens(1, range(4))
    sharing.mark_written(1, 8)
    assert _ledger(sharing) == {}


def test_appended_tokens_are_published(sharing: PrefixSharingCache) -> None:
    """Generated tokens come after the prompt's, under its key."""
    _publish(sharing, 0, range(3), 7)
    sharing.append_tokens(0, range(3, 9))
    sharing.mark_written(0, 9)
    assert sharing.lookup(range(9), 7) == 8
    assert sharing.lookup(range(9)) == 0


def test_a_child_publishes_what_its_parent_did_not(sharing: PrefixSharingCache) -> None:
    """It has the parent's tokens, key and mark."""
    _publish(sharing, 0, range(6), 7)
    sharing.fork(0, 1)
    sharing.append_tokens(1, range(6, 8))
    sharing.mark_written(1, 8)
    sharing.free(0)
    sharing.free(1)
    assert sharing.lookup(range(8), 7) == 8
    assert sharing.num_free_blocks() == GEOMETRY.num_blocks - 2


def test_the_reset_empties_the_cache_when_nothing_is_in_use(sharing: PrefixSharingCache) -> None:
    """It is refused before; a sequence without a block is no user."""
    _publish(sharing, 0, range(8))
    sharing.allocate_prompt(1, ())
    with pytest.raises(OutOfBlocks, match="in use"):
        sharing.reset_prefix_cache()
    assert sharing.lookup(range(8)) == 8
    sharing.free(0)
    sharing.reset_prefix_cache()
    assert sharing.lookup(range(8)) == 0
    assert sharing.num_free_blocks() == GEOMETRY.num_blocks
    sharing.append_tokens(1, range(4))
    sharing.mark_written(1, 4)
    assert sharing.lookup(range(4)) == 4


def test_all_that_was_published_is_found_where_blocks_are_not_short() -> None:
    """The contract may forget, so that this is not asked by the suite: it is asked here."""
    cache, random = PrefixSharingCache(Geometry(400, 4)), Random(0)
    published: set[tuple[int, ...]] = set()
    for seq in range(60):
        tokens = tuple(random.randrange(2) for _ in range(random.randrange(20)))
        most = (len(tokens) - 1) // 4
        known = [n for n in range(1, most + 1) if tokens[: n * 4] in published]
        assert cache.allocate_prompt(seq, tokens) == 4 * len(known)
        mark = random.randrange(len(tokens) + 1)
        cache.mark_written(seq, mark)
        cached = max(mark // 4, len(known))
        published |= {tokens[: n * 4] for n in range(1, cached + 1)}
        if random.randrange(2):
            cache.free(seq)
        assert all(cache.lookup(one) == len(one) for one in published)
    blocks = [block for seq in range(60) for block in cache.allocator.block_table.get(str(seq), ())]
    assert len(_ledger(cache)) == len(published)
    assert len(set(blocks) | set(_ledger(cache).values())) == 400 - cache.num_free_blocks()


@pytest.mark.parametrize("make", [PrefixSharingCache, EvictingPrefixSharingCache])
def test_a_fork_finds_room_only_where_its_caller_makes_some(
    make: type[PrefixSharingCache],
) -> None:
    """The engine forks into what is free, and cached blocks are not; the other caller evicts."""
    cache = make(GEOMETRY)
    cache.allocate(0, 1)
    _publish(cache, 1, range(20))
    blocks = cache.block_table(1)
    cache.free(1)
    with pytest.raises(OutOfBlocks, match="0 blocks are free"):
        cache.fork(0, 2)
    assert cache.lookup(range(20)) == 20
    if isinstance(cache, EvictingPrefixSharingCache):
        with pytest.raises(OutOfBlocks, match="0 blocks are free"):
            cache.append(0, 4)
        assert sorted(cache.evict(1)) == sorted(blocks)  # all of them, whatever was asked
        assert len(cache.fork(0, 2)) == 1
        assert cache.lookup(range(20)) == 0
