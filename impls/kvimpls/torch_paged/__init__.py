"""A paged KV-cache allocator in torch: the blocks, the tables and the K/V data are tensors.

The layout is that of PagedAttention (Kwon et al., SOSP 2023): position `p` of a sequence lies
in slot `table[p // block_size] * block_size + p % block_size` of one pool of slots. Nothing
loops over tokens or blocks, so that the same code runs on an accelerator, where a loop would be
one launch an element; what every decision asks for (lengths, marks, how many are free) are
numbers on the host, since fetching one from the device would be a wait for all that it has yet
to do. Three things only go block by block: the prefix cache, whose index of contents is a
dictionary on the host; the copies of a batch, of which there is one a sequence at most; and an
allocator that was given a `checkpoint`, which is for tests.

To be read in this order: `journal` (what makes a change be whole or nothing), `blocks` (who has
a block), `tables` (which blocks a sequence has), `base` (the checks and the steps that all
operations have), `growth` and `paged` (the operations), `prefix` and `caching` (cached contents),
`store` (the data), `allocator` (all of it together).
"""

from kvimpls.torch_paged.allocator import TorchPaged
from kvimpls.torch_paged.paged import Lease

__all__ = ["Lease", "TorchPaged"]
