"""Latent attention: the latent rows that are cached give what expanded keys and values give."""

from collections.abc import Callable

import numpy as np
import pytest
from attention_cases import apart, repeatable, scatter
from hypothesis import given
from hypothesis import strategies as st

from kvspec.attention import (
    Array,
    LatentAttention,
    attend_by_block,
    attend_paged,
    attention_bound,
    causal_attention,
    latent_bound,
    rotary,
    seen,
)


@st.composite
def layers(draw: Callable[..., int]) -> tuple[LatentAttention, Array, int]:
    """A layer, the inputs of a sequence of shape `(tokens, d_model)`, and a seed."""
    heads, d_nope, d_v = (draw(st.integers(1, n)) for n in (4, 6, 6))
    rank, d_rope, d_model = draw(st.integers(1, 8)), 2 * draw(st.integers(0, 3)), 8
    tokens, seed = draw(st.integers(1, 12)), draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    layer = LatentAttention(
        w_q=random.standard_normal((heads, d_nope + d_rope, d_model)),
        w_dkv=random.standard_normal((rank, d_model)),
        w_kr=random.standard_normal((d_rope, d_model)),
        w_uk=random.standard_normal((heads, d_nope, rank)),
        w_uv=random.standard_normal((heads, d_v, rank)),
    )
    return layer, random.standard_normal((tokens, d_model)), seed


def computed(layer: LatentAttention, xs: Array) -> tuple[Array, Array]:
    """The queries and the cached rows of a sequence."""
    queries = [layer.query(x, i) for i, x in enumerate(xs)]
    return np.array(queries), np.array([layer.row(x, i) for i, x in enumerate(xs)])


@repeatable
@given(layers())
def test_the_latent_cache_agrees_with_its_expanded_form(
    drawn: tuple[LatentAttention, Array, int],
) -> None:
    """At each position: absorbed, expanded, and full causal attention over expanded rows."""
    layer, xs, _ = drawn
    queries, rows = computed(layer, xs)
    keys, values = layer.expand(rows)
    outputs = causal_attention(queries, keys, values)
    for i, q in enumerate(queries):
        expanded = layer.expanded(q, rows[: i + 1])
        absorbed = layer.absorbed(q, rows[: i + 1])
        assert apart(expanded, outputs[i]) <= attention_bound(q, keys, values)
        assert apart(absorbed, expanded) <= latent_bound(layer, q, rows[: i + 1])


@repeatable
@given(layers(), st.integers(1, 5), st.none() | st.integers(1, 14))
def test_latent_rows_are_found_through_a_block_table(
    drawn: tuple[LatentAttention, Array, int], block_size: int, window: int | None
) -> None:
    """One pool of latent rows is enough: it is the keys, and its first columns the values."""
    layer, xs, seed = drawn
    queries, rows = computed(layer, xs)
    position = len(xs) - 1
    visible = seen(position, window)
    expanded = layer.expanded(queries[-1], rows[visible.start :])
    laid = scatter((rows[:, None, :],), position, block_size, window, seed)
    (pool,) = laid.pools
    for through in (attend_paged, attend_by_block):
        mixed = through(
            layer.absorb(queries[-1]),
            pool,
            pool[..., : layer.rank],
            laid.table,
            position,
            block_size=block_size,
            window=window,
            scale=layer.scale,
        )
        output = np.einsum("hdr,hr->hd", layer.w_uv, mixed)
        assert apart(output, expanded) <= latent_bound(layer, queries[-1], rows)


@repeatable
@given(layers())
def test_keys_and_values_are_the_projections_of_the_paper(
    drawn: tuple[LatentAttention, Array, int],
) -> None:
    """Equations 9 to 11, 15 and 17 of the paper, head by head, in plain matrix products."""
    layer, xs, _ = drawn
    _, rows = computed(layer, xs)
    keys, values = layer.expand(rows)
    for j, x in enumerate(xs):
        c = layer.w_dkv @ x
        for h in range(len(layer.w_uk)):
            key = [*(layer.w_uk[h] @ c), *rotary(layer.w_kr @ x, j)]
            assert np.allclose(keys[j, h], key, rtol=0, atol=1e-12)
            assert np.allclose(values[j, h], layer.w_uv[h] @ c, rtol=0, atol=1e-12)
    assert rows.shape == (len(xs), layer.row_width)


@repeatable
@given(st.integers(0, 2**32 - 1), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_rotary_products_depend_on_the_distance_alone(
    seed: int, i: int, j: int, shift: int
) -> None:
    """Which is what makes the rotation a position, and keeps it out of the latent."""
    q, k = np.random.default_rng(seed).standard_normal((2, 6))
    here = rotary(q, i) @ rotary(k, j)
    there = rotary(q, i + shift) @ rotary(k, j + shift)
    # An angle of up to 100 is off by 2**-47, and products of a few numbers by not much more.
    assert abs(here - there) < 1e-11


def test_without_the_rotation_of_the_shared_key_positions_would_be_lost() -> None:
    """Two tokens exchanged are noticed only through the rotary part."""
    random = np.random.default_rng(1)
    for d_rope, noticed in ((0, False), (2, True)):
        layer = LatentAttention(
            w_q=random.standard_normal((2, 3 + d_rope, 4)),
            w_dkv=random.standard_normal((5, 4)),
            w_kr=random.standard_normal((d_rope, 4)),
            w_uk=random.standard_normal((2, 3, 5)),
            w_uv=random.standard_normal((2, 3, 5)),
        )
        xs = random.standard_normal((3, 4))
        q = layer.query(xs[2], 2)
        outputs = [layer.absorbed(q, computed(layer, order)[1]) for order in (xs, xs[[1, 0, 2]])]
        assert (apart(*outputs) > 1e-3) == noticed


def test_rotary_positions_turn_pairs() -> None:
    """An odd width has no pairs."""
    with pytest.raises(ValueError, match="3 numbers are not pairs"):
        rotary(np.ones(3), 1)
