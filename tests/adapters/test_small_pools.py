"""What the adapters of the small engines' pools translate in the same way, each for itself."""

from importlib import import_module
from typing import Any

import pytest

from kvspec import Geometry, OutOfBlocks, UnsupportedGeometry

pytest.importorskip("torch", reason="torch is an extra")

FACTORIES = [
    "kvboost_pool:KVBoostPool",
    "kvboost_pool:KVBoostAsking",
    "kvboost_pool:KVBoostEngine",
    "llm_infer_pool:LlmInferPool",
    "llm_infer_pool:LlmInferAsking",
    "llm_infer_pool:LlmInferBatch",
    "mini_infer_pool:MiniInferPool",
    "mini_infer_pool:MiniInferChecked",
    "mini_infer_pool:MiniInferEvicting",
]
GEOMETRY = Geometry(6, 4)


@pytest.fixture(params=FACTORIES)
def make(request: pytest.FixtureRequest) -> Any:
    """Each factory; skipped where its engine is not there."""
    module, name = request.param.split(":")
    try:
        return getattr(import_module(f"kvimpls.adapters.{module}"), name)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def pool(make: Any) -> Any:
    """A fresh pool of each factory."""
    return make(GEOMETRY)


def test_all_blocks_can_be_used_and_lie_in_range(pool: Any) -> None:
    """One sequence can fill the pool, with the ids from 0 on."""
    assert pool.num_free_blocks() == 6
    pool.allocate(0, 24)
    assert sorted(pool.block_table(0)) == list(range(6))
    assert pool.num_free_blocks() == 0


def test_a_sequence_takes_a_block_when_its_last_one_is_full(pool: Any) -> None:
    """Blocks follow the lengths one to one."""
    pool.allocate(0, 0)
    taken = [len(pool.block_table(0))]
    for _ in range(9):
        pool.append(0, 1)
        taken.append(len(pool.block_table(0)))
    assert taken == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_what_was_appended_is_free_when_the_sequence_ends(pool: Any) -> None:
    """The blocks of an ended sequence are used again."""
    pool.allocate(0, 0)
    pool.append(0, 24)
    pool.free(0)
    assert pool.num_free_blocks() == 6
    pool.allocate(1, 24)


def test_a_refusal_is_out_of_blocks(pool: Any) -> None:
    """The engine's own error is translated; a single token that is refused changes nothing."""
    pool.allocate(0, 20)
    pool.allocate(1, 4)
    before = repr(pool)
    for _ in range(2):
        with pytest.raises(OutOfBlocks):
            pool.append(1, 1)
        assert repr(pool) == before


def test_the_table_is_a_snapshot(pool: Any) -> None:
    """Later changes on either side do not show in the other."""
    pool.allocate(0, 4)
    table = pool.block_table(0)
    pool.append(0, 4)
    assert len(table) == 1
    table.clear()
    assert len(pool.block_table(0)) == 2


@pytest.mark.parametrize("options", [{"window": 8}, {"max_tokens": 8}])
def test_what_the_engine_has_no_setting_for_is_unsupported(
    make: Any, options: dict[str, int]
) -> None:
    """Neither a window nor a limit can be chosen."""
    with pytest.raises(UnsupportedGeometry):
        make(Geometry(6, 4, **options))
