"""What a cache saves: counted as the layers run, and the same as the formulas say."""

import numpy as np
import pytest
from attention_cases import apart, repeatable
from hypothesis import given
from hypothesis import strategies as st

from kvspec.attention import (
    LLAMA_3_8B,
    Decoder,
    Shape,
    Tally,
    cached_step,
    random_layers,
    recompute,
    recomputed_step,
    seen,
)
from kvspec.attention.cost import rows_seen

shapes = st.builds(
    lambda layers, d_model, kv, group, d_head: Shape(layers, d_model, kv * group, kv, d_head),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 4),
)


@repeatable
@given(shapes, st.integers(1, 10), st.none() | st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_step_with_a_cache_is_the_pass_over_the_whole_sequence(
    shape: Shape, tokens: int, window: int | None, seed: int
) -> None:
    """The last output agrees at every length, through all layers, and both counts are exact.

    The forms agree to a bound within one layer. Here the differences of a layer go through the
    softmax of the next, for which no bound is claimed: with numbers of about 1 throughout and
    at most 3 layers, 1e-10 leaves rounding a factor of some 1e5.
    """
    layers = random_layers(shape, seed)
    x = np.random.default_rng(seed + 1).standard_normal((tokens, shape.d_model))
    decoder, before = Decoder(layers, window), Tally()
    for length in range(1, tokens + 1):
        output = decoder.step(x[length - 1])
        counted = Tally(
            projections=decoder.tally.projections - before.projections,
            attention=decoder.tally.attention - before.attention,
        )
        before = Tally(projections=decoder.tally.projections, attention=decoder.tally.attention)
        whole = Tally()
        outputs = recompute(layers, x[:length], whole, window=window)
        assert apart(output, outputs[-1]) <= 1e-10 * max(1, np.abs(outputs).max())
        assert counted == cached_step(shape, length, window)
        assert whole == recomputed_step(shape, length, window)


@repeatable
@given(st.integers(0, 60), st.none() | st.integers(1, 70))
def test_the_rows_seen_are_those_that_each_position_sees(length: int, window: int | None) -> None:
    """The closed formula is the sum."""
    assert rows_seen(length, window) == sum(len(seen(i, window)) for i in range(length))


def test_a_step_costs_linearly_with_a_cache_and_quadratically_without() -> None:
    """Of a full-sized model: exactly so, as differences of the first and second order show."""
    lengths = range(1, 50)
    cached = np.array([cached_step(LLAMA_3_8B, n).total for n in lengths])
    recomputed = np.array([recomputed_step(LLAMA_3_8B, n).total for n in lengths])
    assert set(np.diff(cached).tolist()) == {LLAMA_3_8B.per_row}
    assert set(np.diff(recomputed, 2).tolist()) == {LLAMA_3_8B.per_row}


def test_a_window_bounds_the_cost_of_a_step() -> None:
    """Beyond it, every step with a cache costs the same."""
    steps = [cached_step(LLAMA_3_8B, n, window=100) for n in (99, 100, 101, 10**6)]
    assert steps[0] != steps[1]
    assert steps[1] == steps[2] == steps[3]


def test_a_shape_with_heads_that_cannot_be_shared_out_is_refused() -> None:
    """The same rule as for the arrays."""
    with pytest.raises(ValueError, match="cannot share"):
        Shape(1, 8, 3, 2, 4)
