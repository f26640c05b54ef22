"""What decoding costs, in multiply-adds: with a cache, and without.

A multiply-add is one product added to one sum. Counted are the projections to queries, keys
and values and back, the scores, and the sums of values; not counted are exponentials, norms,
and the feed-forward layers, whose cost follows that of the projections.
"""

from attrs import define, field, frozen

from kvspec.attention.causal import group_size


@define
class Tally:
    """Multiply-adds by purpose.

    >>> Tally(projections=3, attention=4).total
    7
    """

    projections: int = field(default=0, kw_only=True)
    attention: int = field(default=0, kw_only=True)

    @property
    def total(self) -> int:
        """All of them."""
        return self.projections + self.attention


@frozen
class Shape:
    """The sizes of a model's attention layers; keys and values are `d_head` wide."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int

    def __attrs_post_init__(self) -> None:
        """Refuse heads that cannot be shared out."""
        group_size(self.n_heads, self.n_kv_heads)

    @property
    def per_token(self) -> int:
        """The projections of one token: query, key, value and output, in every layer."""
        widths = 2 * self.n_heads + 2 * self.n_kv_heads
        return self.n_layers * self.d_model * self.d_head * widths

    @property
    def per_row(self) -> int:
        """One query against one cached row, in every layer: a score and a value's share."""
        return self.n_layers * self.n_heads * 2 * self.d_head


LLAMA_3_8B = Shape(n_layers=32, d_model=4096, n_heads=32, n_kv_heads=8, d_head=128)
"""From the model's `config.json`, meta-llama/Meta-Llama-3-8B."""


def rows_seen(length: int, window: int | None = None) -> int:
    """How many rows the positions of a sequence see, all together.

    >>> rows_seen(4), rows_seen(4, window=2)
    (10, 7)
    """
    full = length if window is None else min(length, window)
    return full * (full + 1) // 2 + (length - full) * full


def cached_step(shape: Shape, length: int, window: int | None = None) -> Tally:
    """The step that makes the sequence `length` tokens long, with a cache: linear in it.

    >>> cached_step(LLAMA_3_8B, 1).projections
    1342177280
    """
    seen = length if window is None else min(length, window)
    return Tally(projections=shape.per_token, attention=shape.per_row * seen)


def recomputed_step(shape: Shape, length: int, window: int | None = None) -> Tally:
    """The same step as a pass over the whole sequence, without a cache: quadratic in it.

    A layer's keys come from the outputs of the layer below at all positions, so a pass
    computes those; only in the last layer could the outputs of earlier positions be left out.
    """
    return Tally(
        projections=shape.per_token * length,
        attention=shape.per_row * rows_seen(length, window),
    )
