"""Causal attention over a whole sequence: the definition by which the other forms are judged.

For each head, with the positions `j` that position `i` sees:

    score(i, j)  = q_i · k_j / sqrt(d_k)
    weight(i, j) = exp(score(i, j)) / (sum over the seen m of exp(score(i, m)))
    output(i)    = sum over the seen j of weight(i, j) v_j

A position sees itself and all before it; with a window of `w` tokens, the last `w` of those.
Everything is float64. Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.
"""

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def seen(position: int, window: int | None = None) -> range:
    """The positions that `position` sees: the `j` with `position - window < j <= position`.

    >>> seen(5), seen(5, window=2), seen(1, window=4)
    (range(0, 6), range(4, 6), range(0, 2))
    """
    first = 0 if window is None else max(0, position - window + 1)
    return range(first, position + 1)


def softmax(scores: Array) -> Array:
    """Weights that are positive, sum to 1 along the last axis, and grow as `exp(score)`.

    The largest score is taken off first, which changes no weight and keeps `exp` from
    overflowing. A score of `-inf` has weight 0; one score of each row must be finite.

    >>> softmax(np.array([1000.0, 1000.0, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    raised: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Array = raised / raised.sum(axis=-1, keepdims=True)
    return weights


def group_size(n_heads: int, n_kv_heads: int) -> int:
    """How many query heads share one key-value head: the head `h` reads `h // group_size`.

    It is 1 in multi-head attention, `n_heads` in multi-query attention, and between in
    grouped-query attention. Raises `ValueError` where the heads cannot be shared out evenly.
    Shazeer, arXiv 1911.02150, 2019; Ainslie et al., EMNLP 2023.

    >>> [group_size(8, n) for n in (8, 2, 1)]
    [1, 4, 8]
    """
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads cannot share {n_kv_heads} key-value heads evenly")
    return n_heads // n_kv_heads


def default_scale(d_k: int) -> float:
    """The factor on every score, `1 / sqrt(d_k)`."""
    return 1 / math.sqrt(d_k)


def causal_attention(q: Array, k: Array, v: Array, *, window: int | None = None) -> Array:
    """The outputs of all positions at once, from the whole matrix of scores.

    Shapes: `q` is `(tokens, n_heads, d_k)`, `k` is `(tokens, n_kv_heads, d_k)`, `v` is
    `(tokens, n_kv_heads, d_v)`; the result is `(tokens, n_heads, d_v)`.

    >>> ones = np.ones((3, 1, 4))
    >>> v = np.array([1.0, 3.0, 8.0]).reshape(3, 1, 1)
    >>> causal_attention(ones, ones, v).ravel().tolist()
    [1.0, 2.0, 4.0]
    >>> causal_attention(ones, ones, v, window=2).ravel().tolist()
    [1.0, 2.0, 5.5]
    """
    tokens, n_heads, d_k = q.shape
    shared = np.arange(n_heads) // group_size(n_heads, k.shape[1])
    scores = np.einsum("ihd,jhd->hij", q, k[:, shared]) * default_scale(d_k)
    i, j = np.arange(tokens)[:, None], np.arange(tokens)
    visible = j <= i if window is None else (j <= i) & (i - window < j)
    weights = softmax(np.where(visible, scores, -np.inf))
    outputs: Array = np.einsum("hij,jhd->ihd", weights, v[:, shared])
    return outputs
