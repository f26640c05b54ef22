"""Multi-head latent attention: the cache is one latent row a token, in two forms that agree.

A token's input `x` is projected down to a latent `c` of `rank` numbers, and to one rotary key
that all heads share; only these two are cached. The *expanded* form makes each head's key and
value out of the latent. The *absorbed* form moves both up-projections over to the query's
side of the sums, and works on the cached rows as they are:

    q · (W_uk c) = (W_uk^T q) · c
    sum over j of weight(j) (W_uv c_j) = W_uv (sum over j of weight(j) c_j)

A rotation by position between the two would stop that, for it would differ from row to row:
hence the rotary key of its own. DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, 2024, section
2.1; their norm of the latent and the low rank of their queries change neither form and are
left out. The rotation is that of Su et al., "RoFormer", arXiv 2104.09864, 2021.
"""

import numpy as np
from attrs import frozen

from kvspec.attention.causal import Array, default_scale
from kvspec.attention.decode import attend


def rotary(x: Array, position: int, base: float = 10000.0) -> Array:
    """`x` with each pair of neighbours on its last axis turned by an angle of its own.

    Shape: `(..., d)` with `d` even, and so is the result. Pair `i` turns by
    `position * base ** (-2 i / d)`, so that the product of a turned query and a turned key
    depends on how far apart they are and on nothing else of their positions.
    """
    d = x.shape[-1]
    if d % 2:
        raise ValueError(f"rotary positions turn pairs, and {d} numbers are not pairs")
    angles = position * base ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles), np.sin(angles)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1)
    return turned.reshape(x.shape)


@frozen(eq=False)
class LatentAttention:
    """The projections of one layer of latent attention.

    Shapes: `w_q` is `(n_heads, d_nope + d_rope, d_model)`, `w_dkv` is `(rank, d_model)`,
    `w_kr` is `(d_rope, d_model)`, `w_uk` is `(n_heads, d_nope, rank)` and `w_uv` is
    `(n_heads, d_v, rank)`.
    """

    w_q: Array
    w_dkv: Array
    w_kr: Array
    w_uk: Array
    w_uv: Array

    @property
    def rank(self) -> int:
        """How many numbers a latent has."""
        return len(self.w_dkv)

    @property
    def row_width(self) -> int:
        """How many numbers are cached for a token; for MHA it is `2 * n_heads * d_head`."""
        return self.rank + len(self.w_kr)

    @property
    def scale(self) -> float:
        """The factor on every score: one over the root of a whole key's width."""
        return default_scale(self.w_q.shape[1])

    def row(self, x: Array, position: int) -> Array:
        """What is cached for a token: its latent, then its rotary key.

        Shapes: `x` is `(d_model,)`; the result is `(rank + d_rope,)`.
        """
        return np.concatenate((self.w_dkv @ x, rotary(self.w_kr @ x, position)))

    def query(self, x: Array, position: int) -> Array:
        """The query of a token, its rotary part turned.

        Shapes: `x` is `(d_model,)`; the result is `(n_heads, d_nope + d_rope)`.
        """
        q: Array = self.w_q @ x
        d_nope = self.w_uk.shape[1]
        return np.concatenate((q[:, :d_nope], rotary(q[:, d_nope:], position)), axis=-1)

    def expand(self, rows: Array) -> tuple[Array, Array]:
        """The keys and values of every head, as multi-head attention would cache them.

        Shapes: `rows` is `(n, rank + d_rope)`; the keys are `(n, n_heads, d_nope + d_rope)`,
        the values `(n, n_heads, d_v)`.
        """
        latents, turned = rows[:, : self.rank], rows[:, self.rank :]
        own = np.einsum("hdr,nr->nhd", self.w_uk, latents)
        shared = np.repeat(turned[:, None, :], len(self.w_uk), axis=1)
        values: Array = np.einsum("hdr,nr->nhd", self.w_uv, latents)
        return np.concatenate((own, shared), axis=-1), values

    def expanded(self, q: Array, rows: Array) -> Array:
        """The output of one query by multi-head attention over expanded keys and values.

        Shapes: `q` is `(n_heads, d_nope + d_rope)`, `rows` is `(n, rank + d_rope)`; the result
        is `(n_heads, d_v)`.
        """
        return attend(q, *self.expand(rows))

    def absorb(self, q: Array) -> Array:
        """The query as it meets the cached rows: its plain part taken into the latent space.

        Shapes: `q` is `(n_heads, d_nope + d_rope)`; the result is `(n_heads, rank + d_rope)`.
        """
        d_nope = self.w_uk.shape[1]
        latent = np.einsum("hdr,hd->hr", self.w_uk, q[:, :d_nope])
        return np.concatenate((latent, q[:, d_nope:]), axis=-1)

    def absorbed(self, q: Array, rows: Array) -> Array:
        """The same output, by multi-query attention over the cached rows themselves.

        The one key that all heads share is the row, and the one value is the latent in it.
        Shapes as in `expanded`.
        """
        keys, latents = rows[:, None, :], rows[:, None, : self.rank]
        mixed = attend(self.absorb(q), keys, latents, scale=self.scale)
        outputs: Array = np.einsum("hdr,hr->hd", self.w_uv, mixed)
        return outputs
