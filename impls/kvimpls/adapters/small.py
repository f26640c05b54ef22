"""What adapters of small engines with tensors share: shapes, threads, and what cannot be set."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from kvspec import Geometry, UnsupportedGeometry

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 4
"""Of a model of one layer, which is small and exact in its sums."""


class SmallHeads:
    """The attributes of a store, and of its attention, for rows of such a model in float32."""

    n_heads, n_kv_heads, d_k, d_v = HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM
    width = KV_HEADS * 2 * HEAD_DIM
    dtype = np.dtype(np.float32)


def blocks_only(geometry: Geometry) -> None:
    """Raise `UnsupportedGeometry` for a window or a limit, for which there is no setting."""
    if geometry.window is not None or geometry.max_tokens is not None:
        raise UnsupportedGeometry(f"only num_blocks and block_size can be chosen: {geometry}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of a few numbers are not shared among threads, which takes a hundred times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
