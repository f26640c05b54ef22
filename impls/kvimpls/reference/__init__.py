"""The reference allocator: every capability, in the plainest Python.

It is written to be read, not to be fast. It owns no memory; it only says where tokens go, and
which blocks must be copied; over it lies a store, which has the data. From the ground up:

- `journal`: changes that can be taken back, which makes every call all or nothing;
- `prefix`: when contents are the same, and where they are cached;
- `pool`: the blocks, which of them are free, and who has the others;
- `taking`: getting blocks from a pool, if need be from the cache, and letting go of them;
- `paging`: the block tables of one KV group: growing, sharing, copy-on-write, the window;
- `grouping`: several groups, kept in step, and what is refused as misuse;
- `caching`, `swapping`: finding contents again, and moving sequences to the host;
- `allocator`: the reference itself, and how a call is made of these;
- `store`: the data, in numpy, and the attention over them.

The layout is that of Kwon et al., "Efficient Memory Management for Large Language Model Serving
with PagedAttention", SOSP 2023. The private methods decide one thing each; they are the points
at which `unusual` and `museum` depart from it.
"""

from kvimpls.reference.allocator import Reference
from kvimpls.reference.paging import SequenceState
from kvimpls.reference.pool import Lease
from kvimpls.reference.store import StoredReference

__all__ = ["Lease", "Reference", "SequenceState", "StoredReference"]
