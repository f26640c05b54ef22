"""Decoding through a block table: the same attention, over rows that lie scattered in a pool.

The keys of a pool are one array of shape `(slots, n_kv_heads, d_k)`, the values one of shape
`(slots, n_kv_heads, d_v)`; position `p` of a sequence lies in slot
`table[p // block_size] * block_size + p % block_size`.

Only the slots of seen positions are ever read. To read more and give it weight 0 would not do:
what nobody wrote may be NaN or infinite, and 0 times either is NaN (sgl-project/sglang#32477).

Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023, section 4.1.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvspec.attention.causal import Array, seen
from kvspec.attention.decode import attend, scores_of, weighted
from kvspec.geometry import slot_of, table_index


def slots(table: Sequence[int | None], positions: range, block_size: int) -> npt.NDArray[np.intp]:
    """The slot of each position, shape `(len(positions),)`.

    Raises `LookupError` for a position whose entry was released (`None`) or is not there.

    >>> slots([None, 7, 2], range(5, 10), 4).tolist()
    [29, 30, 31, 8, 9]
    """
    found = []
    for position in positions:
        index = table_index(position, block_size)
        block = table[index] if index < len(table) else None
        if block is None or block < 0:
            raise LookupError(f"position {position} has no block: entry {index} of {list(table)}")
        found.append(slot_of(block, position, block_size))
    return np.array(found, dtype=np.intp)


def attend_paged(
    q: Array,
    keys: Array,
    values: Array,
    table: Sequence[int | None],
    position: int,
    *,
    block_size: int,
    window: int | None = None,
    scale: float | None = None,
) -> Array:
    """The output of the query at `position`, over the rows that the table leads to.

    Shapes: `q` is `(n_heads, d_k)`, `keys` is `(slots, n_kv_heads, d_k)`, `values` is
    `(slots, n_kv_heads, d_v)`; the result is `(n_heads, d_v)`. Raises `LookupError` where a
    seen position has no block.
    """
    rows = slots(table, seen(position, window), block_size)
    return attend(q, keys[rows], values[rows], scale=scale)


def attend_by_block(
    q: Array,
    keys: Array,
    values: Array,
    table: Sequence[int | None],
    position: int,
    *,
    block_size: int,
    window: int | None = None,
    scale: float | None = None,
) -> Array:
    """What `attend_paged` gives, computed one block after the other, as kernels do.

    The largest score is not known before the last block. So the sums so far are kept relative
    to the largest score so far, and scaled down whenever a larger one comes. Milakov and
    Gimelshein, arXiv 1805.02867, 2018.
    """
    positions = seen(position, window)
    n_heads = len(q)
    largest = np.full((n_heads, 1), -np.inf)
    total = np.zeros((n_heads, 1))
    sums = np.zeros((n_heads, values.shape[-1]))
    first, last = (table_index(p, block_size) for p in (positions.start, position))
    for index in range(first, last + 1):
        start = index * block_size
        inside = range(max(start, positions.start), min(start + block_size, positions.stop))
        rows = slots(table, inside, block_size)
        scores = scores_of(q, keys[rows], scale)
        larger = np.maximum(largest, scores.max(axis=-1, keepdims=True))
        kept, raised = np.exp(largest - larger), np.exp(scores - larger)
        total = total * kept + raised.sum(axis=-1, keepdims=True)
        sums = sums * kept + weighted(raised, values[rows])
        largest = larger
    outputs: Array = sums / total
    return outputs
