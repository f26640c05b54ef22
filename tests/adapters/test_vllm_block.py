"""The adapter of the block manager of vLLM's V0: what it translates."""

import pytest

from kvimpls.adapters.engines import folder
from kvspec import Geometry, OutOfBlocks, UnsupportedGeometry

try:
    folder("vllm-block", "0.1.0")
except ModuleNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

from kvimpls.adapters.vllm_block_manager.manager import SelfAttention, SelfAttentionLargeHostPool
from kvimpls.adapters.vllm_block_manager.windows import (
    AskingWindowManager,
    WindowManager,
    WindowTables,
)

GEOMETRY = Geometry(4, 4, num_host_blocks=3)
MANAGERS = [SelfAttention, SelfAttentionLargeHostPool]


@pytest.mark.parametrize("make", MANAGERS)
def test_all_blocks_can_be_used_and_lie_in_range(make: type[SelfAttention]) -> None:
    """One sequence can fill the pool."""
    manager = make(GEOMETRY)
    manager.allocate(0, GEOMETRY.capacity)
    assert sorted(manager.block_table(0)) == [0, 1, 2, 3]
    assert manager.num_free_blocks() == 0


@pytest.mark.parametrize("tokens", [1, 4, 10**12])
def test_a_refusal_is_out_of_blocks_and_changes_nothing(tokens: int) -> None:
    """The manager is asked before each call, and its calls are not made where the answer is no."""
    manager = SelfAttention(GEOMETRY)
    manager.allocate(0, GEOMETRY.capacity)
    before = repr(manager)
    for call in (manager.allocate, manager.append):
        with pytest.raises(OutOfBlocks):
            call(int(call == manager.allocate), tokens)
    with pytest.raises(OutOfBlocks):
        manager.swap_out(0)
    assert repr(manager) == before


def test_an_admission_is_the_manager_s_status() -> None:
    """OK, LATER and NEVER are its own names."""
    manager = SelfAttention(GEOMETRY)
    manager.allocate(0, 4)
    assert [manager.can_allocate(n) for n in (0, 12, 13, 17)] == ["OK", "OK", "LATER", "NEVER"]


def test_a_write_into_a_shared_block_is_preceded_by_a_copy() -> None:
    """The copies are those of `append_slots`."""
    manager = SelfAttention(GEOMETRY)
    manager.allocate(0, 5)
    manager.fork(0, 1)
    (copy,) = manager.append(1, 1)
    assert (copy.source, copy.destination) == (
        manager.block_table(0)[1],
        manager.block_table(1)[1],
    )


def test_the_table_is_a_snapshot() -> None:
    """The manager gives its own list; the caller here gets a copy."""
    manager = SelfAttention(GEOMETRY)
    manager.allocate(0, 4)
    table = manager.block_table(0)
    manager.append(0, 1)
    assert len(table) == 1


def test_host_blocks_are_counted_from_zero() -> None:
    """The engine's ids of host blocks follow the device's, and the interface's do not."""
    manager = SelfAttention(GEOMETRY)
    manager.allocate(0, 8)
    table = manager.block_table(0)
    out = manager.swap_out(0)
    assert [copy.source for copy in out] == table
    assert [copy.destination for copy in out] == manager.host_block_table(0)
    assert set(manager.host_block_table(0)) <= {0, 1, 2}
    assert manager.block_table(0) == []
    back = manager.swap_in(0)
    assert [copy.destination for copy in back] == manager.block_table(0)


def test_the_null_block_is_no_entry() -> None:
    """What the window releases is None, and the null block lies outside the ids."""
    tables = WindowTables(Geometry(3, 1, window=2))
    tables.allocate(0, 2)
    tables.append(0, 1)
    table = tables.block_table(0)
    assert table[0] is None
    assert {*table} - {None} <= {1, 2, 3}
    assert tables.num_free_blocks() == 1


@pytest.mark.parametrize("make", [WindowManager, AskingWindowManager])
def test_the_manager_is_told_a_window_by_which_it_keeps_what_is_asked_for(
    make: type[WindowManager],
) -> None:
    """Three blocks for a window of three, judged by the tokens before the new one."""
    manager = make(Geometry(6, 1, window=3))
    assert manager.manager.sliding_window == 1
    manager.allocate(0, 4)
    manager.append(0, 1)
    assert [block is None for block in manager.block_table(0)] == [True, False, False, False, False]
    assert manager.num_free_blocks() == 2
    for window in (1, 2):
        with pytest.raises(UnsupportedGeometry):
            make(Geometry(6, 1, window=window))


def test_what_cannot_be_built_is_unsupported() -> None:
    """The manager has no bound on lengths, and its window is not exact."""
    for geometry in (Geometry(4, 4, window=4), Geometry(4, 4, max_tokens=8)):
        with pytest.raises(UnsupportedGeometry):
            SelfAttention(geometry)
    with pytest.raises(UnsupportedGeometry):
        WindowTables(Geometry(4, 4, window=4))
