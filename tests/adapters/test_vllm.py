"""The adapters of vLLM's manager and pool: what they translate, and that they add nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from kvspec import Geometry, Group, OutOfBlocks, UnsupportedGeometry

pytest.importorskip("torch", reason="torch is an extra")
for library in ("cbor2", "msgspec"):
    pytest.importorskip(library, reason="vllm's own requirements are not installed")
try:
    from kvimpls.adapters.vllm_v1 import managers, pools
except ModuleNotFoundError as missing:
    pytest.skip(f"{missing}", allow_module_level=True)

GEOMETRY = Geometry(6, 4)
MANAGERS = [managers.Manager, managers.WindowManager, managers.HybridManager]
CACHING = [managers.Manager, managers.WindowManager, pools.CachingPool]
ALL = [*MANAGERS, pools.Pool, pools.CachingPool]

Factory = Callable[[Geometry], Any]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (2, 3), (7, 16)])
def test_all_blocks_can_be_used_and_none_is_the_null_block(
    make: Factory, num_blocks: int, block_size: int
) -> None:
    """One sequence can fill the pool, and its ids begin behind block 0."""
    geometry = Geometry(num_blocks, block_size)
    allocator = make(geometry)
    assert allocator.num_free_blocks() == num_blocks
    allocator.allocate(0, geometry.capacity)
    assert sorted(allocator.block_table(0)) == list(range(1, num_blocks + 1))
    assert allocator.num_free_blocks() == 0


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(
    "call",
    [
        lambda allocator: allocator.allocate(9, 5),
        lambda allocator: allocator.append(0, 5),
        lambda allocator: allocator.append(0, 10**12),
    ],
    ids=["allocate", "append", "absurd"],
)
def test_a_refusal_is_out_of_blocks_and_changes_nothing(
    make: Factory, call: Callable[[Any], object]
) -> None:
    """The engine says `None`, or the pool is asked first; nothing is taken."""
    allocator = make(GEOMETRY)
    allocator.allocate(0, 16)
    allocator.allocate(1, 1)
    before = repr(allocator)
    for _ in range(2):
        with pytest.raises(OutOfBlocks, match="are free"):
            call(allocator)
        assert repr(allocator) == before


@pytest.mark.parametrize("make", ALL)
def test_zero_tokens_take_no_block(make: Factory) -> None:
    """The scheduler never asks for them, and neither does the adapter."""
    allocator = make(GEOMETRY)
    allocator.allocate(0, GEOMETRY.capacity)
    allocator.append(0, 0)
    allocator.allocate(1, 0)
    assert list(allocator.block_table(1)) == []
    allocator.free(1)
    allocator.free(0)
    assert allocator.num_free_blocks() == GEOMETRY.num_blocks


@pytest.mark.parametrize("make", ALL)
def test_the_table_is_a_snapshot(make: Factory) -> None:
    """The engine's own list grows; the one that was given does not, nor the other way round."""
    allocator = make(GEOMETRY)
    allocator.allocate(0, 4)
    table = allocator.block_table(0)
    allocator.append(0, 4)
    assert len(table) == 1
    table.clear()
    assert len(allocator.block_table(0)) == 2


@pytest.mark.parametrize("make", CACHING)
def test_only_marked_blocks_of_known_tokens_are_found_under_their_key(make: Factory) -> None:
    """The salt is the key by type and value, and tokens that nobody said end what is hashed."""
    allocator = make(GEOMETRY)
    assert allocator.allocate_prompt(0, range(4), 1) == 0
    allocator.append(0, 1)
    allocator.append_tokens(0, [5, 6, 7])
    assert allocator.lookup(range(4), 1) == 0
    allocator.mark_written(0, 8)
    assert allocator.lookup(range(4), 1) == 4
    assert [allocator.lookup(range(4), key) for key in (True, "1", None)] == [0, 0, 0]
    assert allocator.lookup([0, 1, 2, 3, 0, 5, 6, 7], 1) == 4


@pytest.mark.parametrize("make", CACHING)
def test_a_hit_leaves_the_last_token_and_a_reset_is_refused_while_blocks_are_used(
    make: Factory,
) -> None:
    allocator = make(GEOMETRY)
    allocator.allocate_prompt(0, range(8))
    allocator.mark_written(0, 8)
    assert allocator.allocate_prompt(1, range(8)) == 4
    assert allocator.block_table(1)[0] == allocator.block_table(0)[0]
    with pytest.raises(OutOfBlocks):
        allocator.reset_prefix_cache()
    allocator.free(0)
    allocator.free(1)
    assert allocator.lookup(range(8)) == 8
    allocator.reset_prefix_cache()
    assert allocator.lookup(range(8)) == 0


@pytest.mark.parametrize("make", MANAGERS)
def test_a_lease_holds_the_blocks_of_its_beginning(make: Factory) -> None:
    """What the sequence gets later is not under it."""
    allocator = make(GEOMETRY)
    allocator.allocate(0, 4)
    first, second = allocator.begin_transfer(0), allocator.begin_transfer(0)
    assert first != second
    allocator.append(0, 4)
    allocator.free(0)
    assert allocator.num_free_blocks() == 5
    allocator.end_transfer(first)
    assert allocator.num_free_blocks() == 5
    allocator.end_transfer(second)
    assert allocator.num_free_blocks() == 6


def test_what_the_window_leaves_is_none() -> None:
    """The null block in the engine's table."""
    allocator = managers.WindowManager(Geometry(6, 4, window=4))
    allocator.allocate(0, 7)
    assert None not in allocator.block_table(0)
    allocator.append(0, 1)
    assert [block is None for block in allocator.block_table(0)] == [True, False]
    assert allocator.num_free_blocks() == 5


def test_the_groups_of_a_hybrid_model_share_the_pool() -> None:
    """Each has its block size and its window, and what one cannot have none gets."""
    geometry = Geometry(7, 4, groups=[Group(4), Group(2, window=2)])
    allocator = managers.HybridManager(geometry)
    allocator.allocate(0, 8)
    assert [len(allocator.block_table(0, group)) for group in (0, 1)] == [2, 4]
    with pytest.raises(OutOfBlocks):
        allocator.allocate(1, 5)
    assert allocator.num_free_blocks() == 1
    allocator.append(0, 1)
    assert [block is None for block in allocator.block_table(0, 1)] == [True] * 3 + [False] * 2
    lease = allocator.begin_transfer(0)
    allocator.free(0)
    assert allocator.num_free_blocks() == 2
    allocator.end_transfer(lease)
    assert allocator.num_free_blocks() == 7


def test_a_fork_of_the_pool_shares_full_blocks_and_copies_the_tail() -> None:
    """The contract's eager_fork is `tail`; the counts are the engine's."""
    pool = pools.Pool(GEOMETRY)
    pool.allocate(0, 10)
    copies = pool.fork(0, 1)
    parent, child = pool.block_table(0), pool.block_table(1)
    assert copies == [(parent[2], child[2])]
    assert parent[:2] == child[:2]
    assert [pool.ref_count(block) for block in parent] == [2, 2, 1]
    assert sorted(pool.free_blocks()) == sorted({*range(1, 7)} - {*parent, *child})


@pytest.mark.parametrize(
    ("make", "geometry"),
    [
        (managers.Manager, Geometry(6, 4, num_host_blocks=1)),
        (managers.WindowManager, Geometry(6, 4, window=1)),
        (managers.HybridManager, Geometry(6, 4, groups=[Group(4), Group(2, num_blocks=3)])),
        (pools.Pool, Geometry(6, 4, window=4)),
    ],
)
def test_what_the_engine_cannot_be_built_with_is_unsupported(
    make: Factory, geometry: Geometry
) -> None:
    with pytest.raises(UnsupportedGeometry):
        make(geometry)
