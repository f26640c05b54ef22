"""The forms of attention agree: over the whole sequence, with a cache, through a block table.

Agreement is to `rounding.attention_bound`, which is worked out from the values: the forms sum
in different orders, and nothing else may tell them apart. Warnings are errors, so a garbage
slot that is read fails even where it would have had weight 0.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from attention_cases import KINDS, Case, apart, cases, repeatable, scatter
from hypothesis import given
from hypothesis import strategies as st

from kvspec.attention import (
    Array,
    KVCache,
    attend,
    attend_by_block,
    attend_paged,
    attention_bound,
    causal_attention,
    seen,
    slots,
    softmax,
)
from kvspec.geometry import blocks_for

of_every_kind = pytest.mark.parametrize("kind", KINDS)


def transcribed(case: Case) -> Array:
    """The formula read out in plain Python, every sum exact but for its last rounding."""
    tokens, n_heads, d_k = case.q.shape
    q, k, v = case.q.tolist(), case.k.tolist(), case.v.tolist()
    window = tokens if case.window is None else case.window
    outputs = np.empty((tokens, n_heads, case.v.shape[2]))
    for i in range(tokens):
        for h in range(n_heads):
            g = h * case.k.shape[1] // n_heads
            js = [j for j in range(tokens) if j <= i and i - window < j]
            products = {j: [a * b for a, b in zip(q[i][h], k[j][g], strict=True)] for j in js}
            scores = {j: math.fsum(products[j]) / math.sqrt(d_k) for j in js}
            raised = {j: math.exp(scores[j] - max(scores.values())) for j in js}
            for c in range(case.v.shape[2]):
                above = math.fsum(raised[j] * v[j][g][c] for j in js)
                outputs[i, h, c] = above / math.fsum(raised.values())
    return outputs


@of_every_kind
@repeatable
@given(st.data())
def test_full_attention_is_the_formula(kind: str, data: st.DataObject) -> None:
    """It agrees with a transcription that shares no code and no order of sums with it."""
    case = data.draw(cases(kind))
    outputs = causal_attention(case.q, case.k, case.v, window=case.window)
    assert apart(outputs, transcribed(case)) <= attention_bound(case.q, case.k, case.v)


@of_every_kind
@repeatable
@given(st.data())
def test_decoding_with_a_cache_is_full_attention(kind: str, data: st.DataObject) -> None:
    """Each step gives the row of its position, and the cache keeps no more than is seen."""
    case = data.draw(cases(kind))
    outputs = causal_attention(case.q, case.k, case.v, window=case.window)
    cache = KVCache(case.window)
    for i, (q, k, v) in enumerate(zip(case.q, case.k, case.v, strict=True)):
        assert apart(cache.step(q, k, v), outputs[i]) <= attention_bound(q, case.k, case.v)
        assert len(cache.rows[0]) == len(seen(i, case.window))


@of_every_kind
@pytest.mark.parametrize("through", [attend_paged, attend_by_block])
@repeatable
@given(st.data())
def test_decoding_through_a_block_table_is_full_attention(
    through: Callable[..., Array], kind: str, data: st.DataObject
) -> None:
    """For every position: blocks in any order, garbage around them, released entries."""
    case = data.draw(cases(kind))
    outputs = causal_attention(case.q, case.k, case.v, window=case.window)
    for i, q in enumerate(case.q):
        laid = scatter((case.k, case.v), i, case.block_size, case.window, case.seed + i)
        output = through(
            q, *laid.pools, laid.table, i, block_size=case.block_size, window=case.window
        )
        assert apart(output, outputs[i]) <= attention_bound(q, case.k, case.v)


@repeatable
@given(cases("GQA"), st.integers(0, 19), st.integers(0, 19))
def test_a_wrong_table_shows(case: Case, one: int, other: int) -> None:
    """Two entries exchanged give another output, by far more than rounding explains."""
    laid = scatter((case.k, case.v), len(case.q) - 1, 1, None, case.seed)
    one, other = one % len(case.q), other % len(case.q)
    laid.table[one], laid.table[other] = laid.table[other], laid.table[one]
    q, position = case.q[-1], min(one, other)  # sees only one of the two
    keys, values = laid.pools
    output = attend_paged(q, keys, values, laid.table, position, block_size=1)
    right = attend(q, case.k[: position + 1], case.v[: position + 1])
    bound = attention_bound(q, case.k, case.v)
    if one == other:
        assert apart(output, right) <= bound
    elif np.abs(case.k).max() < 10:  # with larger keys a row may have no weight at all
        assert apart(output, right) > 100 * bound


@repeatable
@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 7))
def test_the_entries_released_before_an_append_are_those_that_no_new_token_sees(
    length: int, window: int, block_size: int
) -> None:
    """The convention of the interface for windows is what attention can spare, and all of it."""
    table: list[int | None] = list(range(blocks_for(length + 1, block_size)))
    released = [i for i in table if i is not None and (i + 1) * block_size <= length + 1 - window]
    for i in released:
        table[i] = None
    needed = slots(table, seen(length, window), block_size) // block_size
    assert set(needed.tolist()) == {entry for entry in table if entry is not None}


@pytest.mark.parametrize("table", [[0, None, 2], [0], [0, -1, 2]])
def test_a_seen_position_without_a_block_is_an_error(table: list[int | None]) -> None:
    """A table that is released, short or padded there neither shortens what is seen nor wraps."""
    pool = np.ones((12, 1, 1))
    for through in (attend_paged, attend_by_block):
        with pytest.raises(LookupError, match="position 4 has no block: entry 1"):
            through(pool[0], pool, pool, table, 5, block_size=4, window=2)


@of_every_kind
@repeatable
@given(st.data())
def test_later_tokens_change_nothing_earlier(kind: str, data: st.DataObject) -> None:
    """Causality, without which nothing could be cached."""
    case = data.draw(cases(kind))
    until = data.draw(st.integers(1, len(case.q)))
    whole = causal_attention(case.q, case.k, case.v, window=case.window)[:until]
    part = causal_attention(case.q[:until], case.k[:until], case.v[:until], window=case.window)
    assert apart(whole, part) <= attention_bound(case.q, case.k, case.v)


@repeatable
@given(cases("GQA"))
def test_shared_heads_are_multi_head_attention_with_the_heads_repeated(case: Case) -> None:
    """Grouped-query attention saves memory and computes nothing else."""
    group = case.q.shape[1] // case.k.shape[1]
    k, v = np.repeat(case.k, group, axis=1), np.repeat(case.v, group, axis=1)
    assert apart(attend(case.q[-1], case.k, case.v), attend(case.q[-1], k, v)) <= attention_bound(
        case.q[-1], k, v
    )


@repeatable
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.floats(-1e4, 1e4))
def test_softmax_is_stable(seed: int, n: int, shift: float) -> None:
    """No overflow; positive weights that sum to 1, and do not change when all scores shift."""
    scores = 1e4 * np.random.default_rng(seed).standard_normal((2, n))
    weights = softmax(scores)
    assert (weights >= 0).all()
    assert np.abs(weights.sum(axis=-1) - 1).max() <= (n + 2) * 2.0**-53
    # The shift is rounded into scores of up to some 1e5, whose last bit is worth 2**-36.
    assert apart(softmax(scores + shift), weights) <= 2.0**-33


def test_the_bound_is_tight_enough_to_tell_rows_apart() -> None:
    """It is above what rounding does, and 12 orders of magnitude below ordinary values."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((100, 4, 64)) for _ in range(3))
    outputs = causal_attention(q, k, v)
    worst = max(apart(attend(q[i], k[: i + 1], v[: i + 1]), outputs[i]) for i in range(100))
    assert 0 < worst <= attention_bound(q, k, v) < 2e-12


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(3, 2), (2, 4), (1, 0)])
def test_heads_that_cannot_be_shared_out_are_refused(n_heads: int, n_kv_heads: int) -> None:
    """Every key-value head serves the same whole number of query heads."""
    q, k = np.ones((1, n_heads, 2)), np.ones((1, n_kv_heads, 2))
    for call in (lambda: causal_attention(q, k, k), lambda: attend(q[0], k, k)):
        with pytest.raises(ValueError, match="cannot share"):
            call()


def test_a_query_that_sees_nothing_is_refused() -> None:
    """There is no mean of no values."""
    with pytest.raises(ValueError, match="at least one row"):
        attend(np.ones((1, 2)), np.ones((0, 1, 2)), np.ones((0, 1, 2)))
