"""The adapter of smol-vllm's block manager: what it translates, and that it adds nothing."""

from collections.abc import Callable

import pytest

from kvspec import Geometry, OutOfBlocks

try:
    from kvimpls.adapters.smol_blocks import AskedBlockSpaces, BlockSpaces
except ModuleNotFoundError as error:
    pytest.skip(f"{error}: python -m kvimpls.adapters.fetch", allow_module_level=True)

GEOMETRY = Geometry(6, 4)


@pytest.fixture(params=[BlockSpaces, AskedBlockSpaces])
def spaces(request: pytest.FixtureRequest) -> BlockSpaces:
    return request.param(GEOMETRY)


def test_all_blocks_can_be_used_and_lie_in_range(spaces: BlockSpaces) -> None:
    """One sequence can fill the pool, and its ids are the contract's range."""
    spaces.allocate(0, GEOMETRY.capacity)
    assert sorted(spaces.block_table(0)) == list(range(6))
    assert spaces.num_free_blocks() == 0
    spaces.free(0)
    assert sorted(spaces.free_blocks()) == list(range(6))


def test_tokens_are_appended_one_by_one(spaces: BlockSpaces) -> None:
    """Several at once take the blocks that one after the other would."""
    spaces.allocate(0, 0)
    spaces.append(0, 5)
    spaces.allocate(1, 0)
    for _ in range(5):
        spaces.append(1, 1)
    assert [len(spaces.block_table(seq)) for seq in (0, 1)] == [2, 2]


@pytest.mark.parametrize(
    "call",
    [lambda spaces: spaces.allocate(9, 5), lambda spaces: spaces.append(0, 5)],
    ids=["allocate", "append"],
)
def test_a_refusal_is_out_of_blocks_and_changes_nothing(
    spaces: BlockSpaces, call: Callable[[BlockSpaces], object]
) -> None:
    """The engine's `ValueError`, and the room that is asked for before several tokens."""
    spaces.allocate(0, 16)
    spaces.allocate(1, 1)
    before = repr(spaces)
    for _ in range(2):
        with pytest.raises(OutOfBlocks):
            call(spaces)
        assert repr(spaces) == before


def test_where_the_scheduler_asks_no_append_is_refused_by_the_engine() -> None:
    """So its count of tokens stays right."""
    spaces = AskedBlockSpaces(Geometry(1, 4))
    spaces.allocate(0, 4)
    before = repr(spaces)
    with pytest.raises(OutOfBlocks):
        spaces.append(0, 1)
    assert repr(spaces) == before


def test_a_fork_shares_blocks_and_counts(spaces: BlockSpaces) -> None:
    """The engine's own counts are shown; a block that nobody has is counted 0 times."""
    spaces.allocate(0, 5)
    spaces.fork(0, 1)
    table = spaces.block_table(0)
    assert spaces.block_table(1) == table
    assert [spaces.ref_count(block) for block in (*table, 5)] == [2, 2, 0]


def test_the_table_is_a_snapshot(spaces: BlockSpaces) -> None:
    """Later changes on either side do not show in the other."""
    spaces.allocate(0, 4)
    table = spaces.block_table(0)
    spaces.append(0, 4)
    assert len(table) == 1
    table.clear()
    assert len(spaces.block_table(0)) == 2
