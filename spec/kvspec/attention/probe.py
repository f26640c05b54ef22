"""What a store must answer to a query, from rows of plain numbers, and how nearly.

The law of attention judges stores that hold float16 or float32 and add up in float32. Its rows
are small and exact in either, so that all that rounds is the attention itself:

* Scores, `exp` and sums are done in float32 or better, in any order: `rounding.bound`, with
  float32's unit roundoff `2**-24` for float64's. The expected output is float64, whose own
  error is the 2**29th part of that.
* With `u` the unit roundoff of the store's dtype and `V` the largest value, the output may be
  rounded to the dtype, which costs `u V`, and so may the weights before they meet the values,
  as kernels on tensor cores do: `u V` more. In float16 small weights are subnormal, with an
  error of up to `2**-25` each: another `u V` covers `2**14` rows of them.

The query and the products in a score may not be rounded to the dtype: at scores of 20, float16
would be out by a percent.
"""

from collections.abc import Sequence

import numpy as np

from kvspec.attention.causal import Array, default_scale, softmax
from kvspec.attention.decode import scores_of, weighted
from kvspec.attention.rounding import bound
from kvspec.kernel.outcome import Heads

FLOAT32_ROUNDOFF = 2.0**-24

Numbers = Sequence[float]


def parted(rows: Sequence[Numbers], heads: Heads) -> tuple[Array, Array]:
    """Keys and values of rows that hold all keys and then all values, head by head."""
    whole = np.array(rows, dtype=np.float64)
    keys = whole[:, : heads.n_kv_heads * heads.d_k]
    values = whole[:, heads.n_kv_heads * heads.d_k :]
    n = len(rows)
    return (
        keys.reshape(n, heads.n_kv_heads, heads.d_k),
        values.reshape(n, heads.n_kv_heads, heads.d_v),
    )


def _stacked(queries: Sequence[Numbers], heads: Heads) -> Array:
    """Several queries as one of more heads: those that share a key-value head lie together."""
    q = np.array(queries, dtype=np.float64)
    group = heads.n_heads // heads.n_kv_heads
    q = q.reshape(len(queries), heads.n_kv_heads, group, heads.d_k).transpose(1, 0, 2, 3)
    return q.reshape(-1, heads.d_k)


def expected(queries: Sequence[Numbers], rows: Sequence[Numbers], heads: Heads) -> Array:
    """The output of each query over all of `rows`, shape `(queries, n_heads * d_v)`.

    A query is `n_heads * d_k` numbers, head by head.
    """
    keys, values = parted(rows, heads)
    outputs = weighted(softmax(scores_of(_stacked(queries, heads), keys)), values)
    return _unstacked(outputs, len(queries), heads)


def _unstacked(outputs: Array, count: int, heads: Heads) -> Array:
    group = heads.n_heads // heads.n_kv_heads
    parts = outputs.reshape(heads.n_kv_heads, count, group, heads.d_v).transpose(1, 0, 2, 3)
    return parts.reshape(count, -1)


def tolerance(query: Numbers, rows: int, heads: Heads, largest: float = 1.0) -> float:
    """How far from `expected` a right output may be, over `rows` keys and values of at most
    1 and `largest` in size.
    """
    sizes = np.abs(np.array(query, dtype=np.float64)).reshape(heads.n_heads, heads.d_k)
    sums = bound(
        terms=heads.d_k,
        scores=float(sizes.sum(axis=-1).max()) * default_scale(heads.d_k),
        values=largest,
        rows=rows,
        unit=FLOAT32_ROUNDOFF,
    )
    return sums + 3 * 2.0**-heads.bits * largest


def excuses(
    query: Numbers, rows: Sequence[Numbers], others: Sequence[Numbers], heads: Heads
) -> tuple[Array, Array, Array]:
    """The outputs of an attention that is wrong about one position.

    The first leave out one of the `rows` (shape `(rows, outputs)`), the second see one of the
    `others` beside them (shape `(others, outputs)`), the third see one of the others in place
    of a row (shape `(rows, others, outputs)`). What has no number is NaN.
    """
    keys, values = parted([*rows, *others], heads)
    scores = scores_of(_stacked([query], heads), keys)
    group, n = heads.n_heads // heads.n_kv_heads, len(rows)
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True)).T[..., None]  # (row, head, 1)
    terms = raised * np.repeat(values, group, axis=1)
    weights, sums = raised[:n].sum(axis=0), terms[:n].sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        short = (sums - terms[:n]) / (weights - raised[:n])
        long = (sums + terms[n:]) / (weights + raised[n:])
        other = (sums - terms[:n, None] + terms[None, n:]) / (
            weights - raised[:n, None] + raised[None, n:]
        )
    flat = heads.n_heads * heads.d_v
    return short.reshape(-1, flat), long.reshape(-1, flat), other.reshape(n, -1, flat)
