"""Decoding with cached keys and values: one query, and the rows that it sees.

A key and a value depend on their own position and what came before it, never on what comes
after. So they can be kept: a step computes one new row and reads the others.
"""

import numpy as np
from attrs import define, field

from kvspec.attention.causal import Array, default_scale, group_size, softmax


def scores_of(q: Array, k: Array, scale: float | None = None) -> Array:
    """The scores of one query against `n` keys, shape `(n_heads, n)`.

    Shapes: `q` is `(n_heads, d_k)`, `k` is `(n, n_kv_heads, d_k)`. The scale is
    `1 / sqrt(d_k)` where none is given.
    """
    n_heads, d_k = q.shape
    n, n_kv_heads, _ = k.shape
    grouped = q.reshape(n_kv_heads, group_size(n_heads, n_kv_heads), d_k)
    scores: Array = np.einsum("gmd,ngd->gmn", grouped, k).reshape(n_heads, n)
    return scores * (default_scale(d_k) if scale is None else scale)


def weighted(weights: Array, v: Array) -> Array:
    """The sum of `n` values by weight, shape `(n_heads, d_v)`.

    Shapes: `weights` is `(n_heads, n)`, `v` is `(n, n_kv_heads, d_v)`.
    """
    n_heads, n = weights.shape
    _, n_kv_heads, d_v = v.shape
    grouped = weights.reshape(n_kv_heads, group_size(n_heads, n_kv_heads), n)
    sums: Array = np.einsum("gmn,ngd->gmd", grouped, v).reshape(n_heads, d_v)
    return sums


def attend(q: Array, k: Array, v: Array, *, scale: float | None = None) -> Array:
    """The output of one query over the `n >= 1` rows that it sees, in any order.

    Shapes: `q` is `(n_heads, d_k)`, `k` is `(n, n_kv_heads, d_k)`, `v` is
    `(n, n_kv_heads, d_v)`; the result is `(n_heads, d_v)`. It takes
    `n_heads * n * (d_k + d_v)` multiply-adds. The scale is `1 / sqrt(d_k)` where none is given.

    >>> k = v = np.array([[[2.0]], [[4.0]]])
    >>> attend(np.zeros((1, 1)), k, v).tolist()
    [[3.0]]
    """
    if len(k) == 0:
        raise ValueError("a query must see at least one row, its own")
    return weighted(softmax(scores_of(q, k, scale)), v)


@define
class KVCache:
    """The keys and values of one sequence, side by side; with a window, only what it sees.

    >>> cache = KVCache(window=2)
    >>> one = np.ones((1, 1))
    >>> [cache.step(one, one, one * value).item() for value in (1, 3, 8)]
    [1.0, 2.0, 5.5]
    >>> [len(rows) for rows in cache.rows]
    [2, 2]
    """

    window: int | None = None
    _keys: list[Array] = field(init=False, factory=list)
    _values: list[Array] = field(init=False, factory=list)

    def append(self, k: Array, v: Array) -> None:
        """Keep the next position's key and value, and drop what no later position sees.

        Shapes: `k` is `(n_kv_heads, d_k)`, `v` is `(n_kv_heads, d_v)`.
        """
        self._keys.append(k)
        self._values.append(v)
        if self.window is not None:
            del self._keys[: -self.window], self._values[: -self.window]

    @property
    def rows(self) -> tuple[Array, Array]:
        """The keys and values kept: `(n, n_kv_heads, d_k)` and `(n, n_kv_heads, d_v)`."""
        return np.array(self._keys), np.array(self._values)

    def step(self, q: Array, k: Array, v: Array) -> Array:
        """Keep the next position's key and value, and give the output of its query.

        Shapes: `q` is `(n_heads, d_k)`, `k` is `(n_kv_heads, d_k)`, `v` is
        `(n_kv_heads, d_v)`; the result is `(n_heads, d_v)`.
        """
        self.append(k, v)
        return attend(q, *self.rows)
