"""How far apart two right computations of one attention may be.

The forms do the same sums in different orders, so they agree to rounding and no further. The
bound is worked out from the values, not tuned. With `u = 2**-53` and to first order in `u`:

* A score sums `terms` products. In any order its error is at most `(terms + 3) u S`, where `S`
  is the largest sum of the absolute products, scaled (Higham, "Accuracy and Stability of
  Numerical Algorithms", 2nd edition, 2002, section 3.1); `S` bounds every score as well.
* Taking the largest score off, and the rescaling of a sum that goes block by block, add at
  most `4 u S`, and `exp` a few `u`. A weight is `exp` of the score over a sum of such, so its
  relative error is at most twice that of all these together.
* Summing `n` weights, or values by weight, with a rescaling after each, adds at most `8 n u`.
* An output is a mean of the values: all this is relative to `V`, the largest of them.

Two computations differ by at most twice the error of one.
"""

import numpy as np
from attrs import evolve

from kvspec.attention.causal import Array, default_scale, group_size
from kvspec.attention.latent import LatentAttention

UNIT_ROUNDOFF = 2.0**-53


def bound(
    *, terms: int, scores: float, values: float, rows: int, unit: float = UNIT_ROUNDOFF
) -> float:
    """The largest difference that rounding explains between two outputs, float64 by default.

    `terms` is how many products a score sums (in a sum of sums, the lengths added up),
    `scores` bounds the scaled sum of their absolute values, `values` bounds the absolute
    values, and `rows` is how many rows are seen (with the length of a sum over the outputs, or
    within each value, added). `unit` is the unit roundoff of what they are computed in.

    >>> bound(terms=64, scores=10.0, values=1.0, rows=100) < 1e-12
    True
    """
    return 4 * unit * values * ((terms + 7) * scores + 4 * rows + 8)


def attention_bound(q: Array, k: Array, v: Array) -> float:
    """The bound for queries that see rows of these keys and values.

    Shapes: `q` is `(..., n_heads, d_k)`, `k` is `(n, n_kv_heads, d_k)`, `v` is
    `(n, n_kv_heads, d_v)`.
    """
    d_k = q.shape[-1]
    each = np.repeat(np.abs(k), group_size(q.shape[-2], k.shape[1]), axis=1)
    products = np.einsum("...hd,nhd->...hn", np.abs(q), each)
    return bound(
        terms=d_k,
        scores=float(products.max()) * default_scale(d_k),
        values=float(np.abs(v).max()),
        rows=len(k),
    )


def latent_bound(layer: LatentAttention, q: Array, rows: Array) -> float:
    """The bound for the two forms of latent attention: their sums, nested either way.

    Shapes: `q` is `(n_heads, d_nope + d_rope)`, `rows` is `(n, rank + d_rope)`.
    """
    sizes = evolve(layer, w_uk=np.abs(layer.w_uk), w_uv=np.abs(layer.w_uv))
    keys, values = sizes.expand(np.abs(rows))
    return bound(
        terms=layer.rank + q.shape[-1],
        scores=float(np.einsum("hd,nhd->hn", np.abs(q), keys).max()) * layer.scale,
        values=float(values.max()),
        rows=len(rows) + layer.rank,
    )
