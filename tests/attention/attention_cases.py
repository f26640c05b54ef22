"""What the tests of attention draw: sizes by Hypothesis, numbers from a drawn seed."""

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import frozen
from hypothesis import settings
from hypothesis import strategies as st

from kvspec.attention import Array, seen
from kvspec.geometry import blocks_for, table_index

KINDS = {
    "MHA": st.tuples(st.integers(1, 4), st.just(1)),
    "GQA": st.tuples(st.integers(2, 3), st.integers(2, 3)),
    "MQA": st.tuples(st.just(1), st.integers(2, 4)),
}
"""By kind, how many key-value heads there are, and how many query heads share one."""

GARBAGE = np.array([np.nan, np.inf, -np.inf, 1e300, -7.0])

repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=60)


@frozen(eq=False)
class Case:
    """The queries, keys and values of one sequence; `(tokens, heads, width)` each."""

    q: Array
    k: Array
    v: Array
    window: int | None
    block_size: int
    seed: int


@st.composite
def cases(draw: Callable[..., Any], kind: str) -> Case:
    """Sequences of a kind; the largest scores are in the thousands, where a naive `exp` fails.

    In some the keys are nearly alike, so that many rows count however large the scores are: then
    what is rounded off the scores shows in the output.
    """
    n_kv_heads, group = draw(KINDS[kind])
    d_k, d_v, tokens = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(1, 20))
    seed = draw(st.integers(0, 2**32 - 1))
    size = draw(st.sampled_from([1.0, 1e-3, 30.0]))
    random = np.random.default_rng(seed)
    k = size * random.standard_normal((tokens, n_kv_heads, d_k))
    if draw(st.booleans()):
        k = k[:1] + random.standard_normal(k.shape) / max(1.0, size)
    return Case(
        q=size * random.standard_normal((tokens, n_kv_heads * group, d_k)),
        k=k,
        v=random.standard_normal((tokens, n_kv_heads, d_v)),
        window=draw(st.none() | st.integers(1, tokens + 2)),
        block_size=draw(st.integers(1, 7)),
        seed=seed,
    )


@frozen(eq=False)
class Scattered:
    """A block table and the pools that it leads into."""

    table: list[int | None]
    pools: tuple[Array, ...]


def scatter(
    parts: tuple[Array, ...], position: int, block_size: int, window: int | None, seed: int
) -> Scattered:
    """The rows that `position` sees, in blocks in random order; everything else is garbage.

    `parts` are arrays of shape `(tokens, heads, width)`. Entries wholly before the window are
    released. Garbage are other blocks, and in the sequence's own blocks what nobody sees.
    """
    random = np.random.default_rng(seed)
    entries = blocks_for(position + 1, block_size)
    blocks = random.permutation(entries + random.integers(0, 4)).tolist()
    visible = seen(position, window)
    first = table_index(visible.start, block_size)
    table = [block if first <= i else None for i, block in enumerate(blocks[:entries])]
    pools = []
    for part in parts:
        pool = random.choice(GARBAGE, (len(blocks) * block_size, *part.shape[1:]))
        for p in visible:
            pool[blocks[p // block_size] * block_size + p % block_size] = part[p]
        pools.append(pool)
    return Scattered(table, tuple(pools))


def apart(a: Array, b: Array) -> float:
    """The largest difference between two arrays of one shape; NaN where either has one."""
    assert a.shape == b.shape
    return float(np.abs(a - b).max())
