"""The adapter of lmdeploy's paging: what it translates, and that it adds nothing."""

import pytest

from kvspec import Copy, Geometry, OutOfBlocks

try:
    from kvimpls.adapters.lmdeploy_pytorch.managers import BlockManager, LeasedBlockManager
    from kvimpls.adapters.lmdeploy_pytorch.prefix import (
        PatientPrefixCache,
        PreemptedPrefixCache,
        PrefixCache,
    )
    from kvimpls.adapters.lmdeploy_pytorch.sharing import SharingBlockManager
    from kvimpls.adapters.lmdeploy_pytorch.windows import (
        AheadWindowBlockManager,
        WindowBlockManager,
    )
except ModuleNotFoundError as missing:
    pytest.skip(f"{missing}", allow_module_level=True)

GEOMETRY = Geometry(6, 4, num_host_blocks=3)
FACTORIES = (
    BlockManager,
    LeasedBlockManager,
    PrefixCache,
    PatientPrefixCache,
    PreemptedPrefixCache,
    SharingBlockManager,
    WindowBlockManager,
)


@pytest.mark.parametrize("make", FACTORIES)
@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (2, 16), (7, 3)])
def test_all_blocks_can_be_used_and_lie_in_range(
    make: type[BlockManager], num_blocks: int, block_size: int
) -> None:
    """One sequence can fill the pool, and its ids begin after the reserved block."""
    allocator = make(Geometry(num_blocks, block_size))
    assert allocator.num_free_blocks() == num_blocks
    allocator.allocate(0, num_blocks * block_size)
    assert sorted(allocator.block_table(0), key=str) == sorted(range(1, num_blocks + 1), key=str)
    assert allocator.num_free_blocks() == 0
    allocator.free(0)
    assert allocator.num_free_blocks() == num_blocks


@pytest.mark.parametrize("make", FACTORIES)
def test_a_refusal_is_out_of_blocks_and_changes_nothing(make: type[BlockManager]) -> None:
    """The engine says no; the new sequence is gone again, and the old one is as it was."""
    allocator = make(GEOMETRY)
    allocator.allocate(0, 17)
    before = repr(allocator)
    for _ in range(2):
        with pytest.raises(OutOfBlocks, match="blocks are free"):
            allocator.allocate(1, 5)
        with pytest.raises(OutOfBlocks, match="blocks are free"):
            allocator.append(0, 8)
        assert repr(allocator) == before
    allocator.allocate(1, 4)


def test_the_table_is_a_snapshot() -> None:
    """Later changes on either side do not show in the other."""
    allocator = BlockManager(GEOMETRY)
    allocator.allocate(0, 4)
    table = allocator.block_table(0)
    allocator.append(0, 4)
    assert len(table) == 1
    table.clear()
    assert len(allocator.block_table(0)) == 2


def test_a_truncated_sequence_has_the_blocks_of_its_length() -> None:
    """Length and blocks are cut together, and grow together again."""
    allocator = BlockManager(GEOMETRY)
    allocator.allocate(0, 15)
    table = allocator.block_table(0)
    allocator.truncate(0, 5)
    assert allocator.block_table(0) == table[:2]
    allocator.append(0, 3)
    assert allocator.block_table(0) == table[:2]
    allocator.truncate(0, 0)
    assert allocator.num_free_blocks() == GEOMETRY.num_blocks


def test_swapped_out_a_sequence_is_on_the_host_and_nowhere_else() -> None:
    """Host ids begin at 0, and the copies name both tiers."""
    allocator = BlockManager(GEOMETRY)
    allocator.allocate(0, 8)
    here = allocator.block_table(0)
    copies = allocator.swap_out(0)
    there = allocator.host_block_table(0)
    assert copies == [Copy(old, new) for old, new in zip(here, there, strict=True) if old]
    assert set(there) <= set(range(3))
    assert allocator.block_table(0) == []
    assert (allocator.num_free_blocks(), allocator.num_free_host_blocks()) == (6, 1)
    allocator.swap_in(0)
    assert len(allocator.block_table(0)) == 2
    assert allocator.num_free_host_blocks() == 3


def test_a_swap_that_does_not_fit_is_out_of_blocks() -> None:
    """The engine's `False`; nothing has moved."""
    allocator = BlockManager(GEOMETRY)
    allocator.allocate(0, 16)
    with pytest.raises(OutOfBlocks, match="try_swap_out"):
        allocator.swap_out(0)
    assert len(allocator.block_table(0)) == 4


def test_a_sequence_without_blocks_is_swapped_without_the_engine() -> None:
    """`try_swap_out` refuses such a sequence, so it is not asked."""
    allocator = BlockManager(GEOMETRY)
    allocator.allocate(0, 0)
    assert allocator.swap_out(0) == allocator.swap_in(0) == []


def test_a_lease_keeps_the_blocks_of_a_sequence_that_ended() -> None:
    """They are free when the last lease has ended."""
    allocator = LeasedBlockManager(GEOMETRY)
    allocator.allocate(0, 8)
    first, second = allocator.begin_transfer(0), allocator.begin_transfer(0)
    allocator.free(0)
    assert allocator.num_free_blocks() == 4
    allocator.end_transfer(second)
    assert allocator.num_free_blocks() == 4
    allocator.end_transfer(first)
    assert allocator.num_free_blocks() == 6


def test_a_fork_shares_full_blocks_and_copies_the_tail() -> None:
    """Full blocks have two users then; the child's own block is named in the copy."""
    allocator = SharingBlockManager(GEOMETRY)
    allocator.allocate(0, 9)
    copies = allocator.fork(0, 1)
    (first, second, tail), (*shared, own) = (allocator.block_table(seq) for seq in (0, 1))
    assert shared == [first, second]
    assert copies == [Copy(tail, own)]
    assert [allocator.ref_count(block) for block in (first, second, tail, own)] == [2, 2, 1, 1]
    allocator.free(0)
    assert [allocator.ref_count(block) for block in (first, second, tail, own)] == [1, 1, 0, 1]


def test_a_fork_that_does_not_fit_leaves_the_counts_as_they_were() -> None:
    """The shared blocks are given back with the child."""
    allocator = SharingBlockManager(Geometry(3, 4))
    allocator.allocate(0, 9)
    with pytest.raises(OutOfBlocks, match="blocks are free"):
        allocator.fork(0, 1)
    assert [allocator.ref_count(block) for block in allocator.block_table(0)] == [1, 1, 1]
    allocator.free(0)
    assert allocator.num_free_blocks() == 3


def test_only_what_is_marked_is_found_and_only_under_its_key() -> None:
    """Keys are adapters; a prompt's last token is left to compute."""
    allocator = PrefixCache(GEOMETRY)
    tokens = list(range(8))
    assert allocator.allocate_prompt(0, tokens, "a") == 0
    assert allocator.lookup(tokens, "a") == 0
    allocator.mark_written(0, 7)
    assert allocator.lookup(tokens, "a") == 4
    allocator.mark_written(0, 8)
    assert [allocator.lookup(tokens, key) for key in ("a", None, 0, False, "0")] == [8, 0, 0, 0, 0]
    assert allocator.allocate_prompt(1, tokens, "a") == 4
    assert allocator.block_table(1)[0] == allocator.block_table(0)[0]


def test_tokens_that_nobody_knows_are_not_published() -> None:
    """After `allocate` and `append` nothing is attached, nor what comes later."""
    allocator = PrefixCache(GEOMETRY)
    allocator.allocate_prompt(0, [1, 2, 3, 4])
    allocator.append(0, 4)
    allocator.append_tokens(0, [5, 6, 7, 8])
    allocator.mark_written(0, 12)
    allocator.free(0)
    assert allocator.num_free_blocks() == 5  # one is cached


def test_the_cache_is_emptied_where_nothing_is_in_use() -> None:
    """Otherwise the reset is refused, and nothing is lost."""
    allocator = PrefixCache(GEOMETRY)
    allocator.allocate_prompt(0, [1, 2, 3, 4])
    allocator.mark_written(0, 4)
    with pytest.raises(OutOfBlocks):
        allocator.reset_prefix_cache()
    assert allocator.lookup([1, 2, 3, 4]) == 4
    allocator.free(0)
    allocator.reset_prefix_cache()
    assert allocator.lookup([1, 2, 3, 4]) == 0
    assert allocator.num_free_blocks() == 6


def test_blocks_before_the_window_are_none() -> None:
    """The engine counts the tokens that it ignores; their entries stay in the table."""
    allocator = WindowBlockManager(Geometry(6, 2, window=2))
    allocator.allocate(0, 6)
    allocator.append(0, 0)
    assert None not in allocator.block_table(0)
    allocator.append(0, 1)
    assert allocator.block_table(0)[:2] == [None, None]
    assert len(allocator.block_table(0)) == 4


def test_blocks_are_taken_ahead() -> None:
    """As many as one more token needs: the scheduler's default."""
    allocator = AheadWindowBlockManager(Geometry(6, 2, window=20))
    allocator.allocate(0, 2)
    assert len(allocator.block_table(0)) == 2
