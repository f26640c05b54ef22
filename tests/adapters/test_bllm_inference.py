"""The adapters of bllm-inference: what they translate, and that they add nothing."""

from collections.abc import Callable

import numpy as np
import pytest

from kvspec import Geometry, OutOfBlocks

pytest.importorskip("torch", reason="torch is an extra")
try:
    from kvimpls.adapters.bllm_blocks.paged import ContiguousSequences, Sequences
    from kvimpls.adapters.bllm_blocks.scheduled import FixedRequests, PlacedRequests, Requests
except ModuleNotFoundError as error:
    pytest.skip(f"{error}: python -m kvimpls.adapters.fetch", allow_module_level=True)

GEOMETRY = Geometry(6, 4, max_tokens=12)
KINDS = [Requests, PlacedRequests, Sequences, ContiguousSequences]
STORES = [PlacedRequests, Sequences, ContiguousSequences]


def rows(count: int) -> np.ndarray:
    """Rows of numbers of which no two are equal."""
    return np.arange(1.0, count * 16 + 1, dtype=np.float32).reshape(count, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_all_blocks_can_be_used_and_lie_in_range(kind: type) -> None:
    """Two sequences of the greatest length fill the pool, and come free again."""
    cache = kind(GEOMETRY)
    for seq in (0, 1):
        cache.allocate(seq, 12)
    assert sorted(cache.block_table(0) + cache.block_table(1)) == list(range(6))
    assert cache.num_free_blocks() == 0
    for seq in (0, 1):
        cache.free(seq)
    assert cache.num_free_blocks() == 6


def test_a_request_takes_all_its_blocks_with_its_first_token() -> None:
    """Without tokens there is no request; with one it has room for `max_seq_len`."""
    cache = Requests(GEOMETRY)
    cache.allocate(0, 0)
    assert cache.block_table(0) == []
    cache.append(0, 1)
    assert len(cache.block_table(0)) == 3
    cache.append(0, 11)
    assert len(cache.block_table(0)) == 3


def test_a_sequence_takes_the_blocks_of_its_limit_or_of_its_length() -> None:
    """A limit is the total that `allocate_sequence` is told; without one the table grows."""
    cache = Sequences(GEOMETRY)
    cache.allocate(0, 1, limit=9)
    cache.allocate(1, 1)
    assert [len(cache.block_table(seq)) for seq in (0, 1)] == [3, 1]
    cache.append(1, 4)
    assert len(cache.block_table(1)) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "call",
    [lambda cache: cache.allocate(9, 12), lambda cache: cache.append(2, 12)],
    ids=["allocate", "append"],
)
def test_a_refusal_is_out_of_blocks_and_changes_nothing(
    kind: type, call: Callable[[object], object]
) -> None:
    """The engine lets the request wait, or says `False`; nothing is taken."""
    cache = kind(GEOMETRY)
    for seq, length in enumerate((12, 9, 0)):
        cache.allocate(seq, length)
    before = repr(cache)
    for _ in range(2):
        with pytest.raises(OutOfBlocks):
            call(cache)
        assert repr(cache) == before


@pytest.mark.parametrize("kind", STORES)
def test_what_is_written_is_read(kind: type) -> None:
    """Keys and values come back in the order in which they were given."""
    cache = kind(GEOMETRY)
    cache.allocate(0, 3)
    cache.allocate(1, 5)
    cache.write(1, 0, -rows(5))
    cache.write(0, 0, rows(3))
    cache.append(0, 3)
    cache.write(0, 3, rows(6)[3:])
    assert np.array_equal(cache.read(0), rows(6))
    assert np.array_equal(cache.read(1), -rows(5))


def test_a_request_s_rows_lie_where_its_scheduler_places_them() -> None:
    """The prompt from 0 on; what is generated where `schedule` says the decode starts."""
    cache = Requests(GEOMETRY)
    cache.allocate(0, 3)
    assert cache.positions[0] == [0, 1, 2]
    cache.append(0, 2)
    request = cache.requests[0]
    assert cache.positions[0][3:] == [
        request.sequence.cache_position - 1,
        request.sequence.cache_position,
    ]


def test_attention_is_over_all_that_was_written() -> None:
    """With equal keys it is the mean of the values."""
    cache = Sequences(GEOMETRY)
    cache.allocate(0, 6)
    values = rows(6)
    values[:, :8] = 0
    cache.write(0, 0, values)
    output = cache.attend(0, np.ones((4, 4), np.float32))
    mean = values[:, 8:].mean(axis=0).reshape(2, 4)
    assert np.allclose(output, mean.repeat(2, axis=0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_a_snapshot(kind: type) -> None:
    """Later changes on either side do not show in the other."""
    cache = kind(GEOMETRY)
    cache.allocate(0, 4)
    table = cache.block_table(0)
    held = len(table)
    table.clear()
    assert len(cache.block_table(0)) == held


def test_a_request_that_asks_for_a_fixed_number_of_tokens_ends_there() -> None:
    """It has blocks for its prompt and a block's tokens more; a refusal changes nothing."""
    cache = FixedRequests(GEOMETRY)
    cache.allocate(0, 5)
    assert len(cache.block_table(0)) == 3
    cache.append(0, 4)
    before = repr(cache)
    with pytest.raises(OutOfBlocks):
        cache.append(0, 1)
    assert repr(cache) == before


def test_what_the_engine_raises_comes_through() -> None:
    """A prompt within `max_seq_len`, whose new tokens are not: no answer of the interface."""
    with pytest.raises(ValueError, match="logical block"):
        FixedRequests(GEOMETRY).allocate(0, 12)
