"""The adapter of kvboost's pool: what it translates, and that it adds nothing."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from kvspec import Geometry

pytest.importorskip("torch", reason="torch is an extra")
try:
    adapter: Any = import_module("kvimpls.adapters.kvboost_pool")
except ModuleNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

FACTORIES = ["KVBoostPool", "KVBoostAsking", "KVBoostEngine"]
GEOMETRY = Geometry(6, 4)


@pytest.fixture(params=FACTORIES)
def pool(request: pytest.FixtureRequest) -> Any:
    """A fresh pool of each factory."""
    return getattr(adapter, request.param)(GEOMETRY)


def test_a_fork_shares_all_blocks_and_the_first_write_copies() -> None:
    """The engine copies the data itself, when the shared tail is appended to."""
    pool = adapter.KVBoostPool(GEOMETRY)
    pool.allocate(0, 6)
    rows = np.arange(6 * pool.width, dtype=pool.dtype).reshape(6, -1)
    pool.write(0, 0, rows)
    pool.fork(0, 1)
    assert pool.block_table(1) == pool.block_table(0)
    pool.append(1, 1)
    assert pool.block_table(1)[0] == pool.block_table(0)[0]
    assert pool.block_table(1)[1] != pool.block_table(0)[1]
    assert (pool.read(1)[:6] == rows).all()
    assert (pool.read(0) == rows).all()


def test_counts_are_those_of_the_engine() -> None:
    """A block in two tables counts twice, and a free one not at all."""
    pool = adapter.KVBoostPool(GEOMETRY)
    pool.allocate(0, 4)
    pool.fork(0, 1)
    (block,) = pool.block_table(0)
    assert pool.ref_count(block) == 2
    assert sorted({*pool.free_blocks(), block}) == list(range(6))
    assert {pool.ref_count(free) for free in pool.free_blocks()} == {0}
