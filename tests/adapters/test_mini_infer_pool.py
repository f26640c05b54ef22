"""The adapter of mini-infer's pool: what it translates, and that it adds nothing."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from kvspec import Geometry

pytest.importorskip("torch", reason="torch is an extra")
try:
    adapter: Any = import_module("kvimpls.adapters.mini_infer_pool")
except ModuleNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

FACTORIES = ["MiniInferPool", "MiniInferChecked", "MiniInferEvicting", "MiniInferTouching"]
GEOMETRY = Geometry(6, 4)


@pytest.fixture(params=FACTORIES)
def pool(request: pytest.FixtureRequest) -> Any:
    """A fresh pool of each factory."""
    return getattr(adapter, request.param)(GEOMETRY)


def test_a_prompt_hits_what_was_marked_under_its_key(pool: Any) -> None:
    """Full blocks are registered up to the mark; another key is other contents."""
    assert pool.allocate_prompt(0, list(range(10)), "a") == 0
    pool.mark_written(0, 6)
    assert pool.lookup(range(10), "a") == 4
    assert pool.lookup(range(10)) == 0
    assert pool.allocate_prompt(1, list(range(10)), "a") == 4
    assert pool.block_table(1)[:1] == pool.block_table(0)[:1]


def test_a_look_up_changes_no_count(pool: Any) -> None:
    """The references that the engine takes for a match are given back."""
    pool.allocate_prompt(0, list(range(8)))
    pool.mark_written(0, 8)
    before = [pool.ref_count(block) for block in range(6)]
    assert pool.lookup(range(8)) == 8
    assert [pool.ref_count(block) for block in range(6)] == before


def test_after_a_reset_nothing_is_found_nor_registered(pool: Any) -> None:
    """The cache is emptied, and a sequence from before does not fill it again."""
    pool.allocate_prompt(0, list(range(8)))
    pool.mark_written(0, 4)
    pool.reset_prefix_cache()
    pool.mark_written(0, 8)
    assert pool.lookup(range(8)) == 0
    pool.free(0)
    assert pool.num_free_blocks() == 6


def test_rows_are_read_as_they_were_written() -> None:
    """A prompt's rows and decoded ones are written in two ways, and read in one."""
    pool = adapter.MiniInferStore(GEOMETRY)
    pool.allocate(0, 5)
    rows = np.arange(6 * pool.width, dtype=pool.dtype).reshape(6, -1)
    pool.write(0, 0, rows[:5])
    pool.append(0, 1)
    pool.write(0, 5, rows[5:])
    assert (pool.read(0) == rows).all()
