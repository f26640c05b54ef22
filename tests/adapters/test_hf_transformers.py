"""The adapter of transformers' paged cache: what it translates, and that it adds nothing."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from attrs import evolve

from kvspec import Geometry, OutOfBlocks, UnsupportedGeometry

pytest.importorskip("torch", reason="torch is an extra")
pytest.importorskip("transformers", reason="transformers is an extra")

from kvimpls.adapters.hf_transformers import FalliblePagedCache, PagedCache
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
