"""The adapter of llm-infer's pool: what it translates, and that it adds nothing."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from kvspec import Geometry

pytest.importorskip("torch", reason="torch is an extra")
try:
    adapter: Any = import_module("kvimpls.adapters.llm_infer_pool")
except ModuleNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

FACTORIES = ["LlmInferPool", "LlmInferAsking", "LlmInferBatch"]
GEOMETRY = Geometry(6, 4)


@pytest.fixture(params=FACTORIES)
def pool(request: pytest.FixtureRequest) -> Any:
    """A fresh pool of each factory."""
    return getattr(adapter, request.param)(GEOMETRY)


def test_what_never_fits_is_told_from_what_does_not_fit_now(pool: Any) -> None:
    """The engine says yes or no; the pool's size says which no it is."""
    pool.allocate(0, 4)
    answers = [pool.can_allocate(tokens).name for tokens in (20, 21, 25)]
    assert answers == ["OK", "LATER", "NEVER"]


def test_rows_are_read_as_they_were_written(pool: Any) -> None:
    """A row is the keys of all heads and then the values; blocks lie anywhere."""
    pool.allocate(0, 6)
    rows = np.arange(6 * pool.width, dtype=pool.dtype).reshape(6, -1)
    pool.write(0, 0, rows[:5])
    pool.write(0, 5, rows[5:])
    assert (pool.read(0) == rows).all()


def test_a_batch_of_one_token_each_appends_to_all() -> None:
    """One number is for all of them, and several are one for each."""
    pool = adapter.LlmInferBatch(GEOMETRY)
    pool.allocate(0, 4)
    pool.allocate(1, 3)
    pool.append_batch([0, 1], 1)
    pool.append_batch([0, 1], [0, 1])
    assert [len(pool.block_table(seq)) for seq in (0, 1)] == [2, 2]
