"""The interface that an allocator implements: methods, errors and the values that cross it.

Everything is structural. An allocator need not inherit from a protocol, nor import this
module: errors are matched by class name along their MRO, a copy is any pair of ints, and an
admission is the enum or its name. `CAPABILITIES` lists each capability's methods; an
allocator may claim any set of capabilities that includes `core`.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from kvspec.geometry import Geometry


class Copy(NamedTuple):
    """Before the next write, the contents of block `source` must be copied to `destination`."""

    source: int
    destination: int


class Admission(Enum):
    """What `can_allocate` answers: OK now, LATER (it would fit an empty pool), or NEVER."""

    OK = "OK"
    LATER = "LATER"
    NEVER = "NEVER"


class AllocatorError(Exception):
    """The base of every error that an allocator may raise; whatever raised it changed nothing."""


class OutOfBlocks(AllocatorError):
    """The refusal: not enough blocks. An answer, not a fault."""


class UnknownSequence(AllocatorError):
    """The sequence id is not in use."""


class SequenceExists(AllocatorError):
    """The sequence id is already in use."""


class InvalidLength(AllocatorError):
    """A number of tokens that is negative, not an integer, or beyond a limit."""


class NotResident(AllocatorError):
    """The sequence is swapped out."""


class UnknownLease(AllocatorError):
    """The lease was never begun, or has ended."""


class UnsupportedGeometry(AllocatorError):
    """Raised by a factory that cannot be built with this geometry."""


class InjectedFault(Exception):
    """What the suite raises from `checkpoint`: it must propagate and leave everything as it was."""


class CoreAllocator(Protocol):
    """The methods that every allocator has.

    A mutator returns the copies that it needs, in order (any iterable of pairs), or `None`.
    """

    def allocate(self, seq: int, num_tokens: int) -> Iterable[Copy] | None:
        """Start `seq` with `num_tokens` reserved slots."""
        ...

    def append(self, seq: int, num_tokens: int) -> Iterable[Copy] | None:
        """Reserve slots for `num_tokens` more tokens of `seq`."""
        ...

    def free(self, seq: int) -> Iterable[Copy] | None:
        """End `seq` and let go of its blocks."""
        ...

    def block_table(self, seq: int) -> Sequence[int | None]:
        """A snapshot of the blocks of `seq`, in the order of its positions.

        With `geometry.window` set (capability `window`, which has no methods: the contract or an
        attribute `supports_window = True` claims it), entries wholly before the window are `None`.
        """
        ...

    def num_free_blocks(self) -> int:
        """How many blocks could be handed out now."""
        ...


class SharingAllocator(CoreAllocator, Protocol):
    """Capability `sharing`: sequences may share blocks, copied on write."""

    def fork(self, parent: int, child: int) -> Iterable[Copy] | None:
        """Start `child` with the tokens of `parent`."""
        ...


class RollingBackAllocator(CoreAllocator, Protocol):
    """Capability `rollback`: a sequence gives up its last tokens, as after rejected drafts."""

    def truncate(self, seq: int, num_tokens: int) -> Iterable[Copy] | None:
        """Keep the first `num_tokens` tokens of `seq`, and the blocks that those need."""
        ...


class PrefixCachingAllocator(CoreAllocator, Protocol):
    """Capability `prefix`: full blocks of known tokens are published, and found again.

    `key` is any JSON scalar or tuple: an adapter, an image, a salt. Contents are the same only
    under the same key.
    """

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq` with these tokens; how many leading ones were cached, in whole blocks."""
        ...

    def append_tokens(self, seq: int, tokens: Sequence[int]) -> Iterable[Copy] | None:
        """Reserve slots for more tokens of `seq`, known ones."""
        ...

    def mark_written(self, seq: int, num_tokens: int) -> Iterable[Copy] | None:
        """The first `num_tokens` tokens of `seq` are written: publish their full blocks."""
        ...

    def lookup(self, tokens: Sequence[int], key: Any = None) -> int:
        """The length in tokens of the longest cached run of blocks; changes nothing."""
        ...

    def reset_prefix_cache(self) -> Iterable[Copy] | None:
        """Forget all cached contents; sequences that are live publish nothing any more."""
        ...


class EvictingAllocator(PrefixCachingAllocator, Protocol):
    """Capability `eviction`: the caller can have cached blocks given up that nobody uses.

    Under the contract `eviction = explicit` it must: what takes blocks gives up none.
    """

    def evict(self, num_blocks: int) -> Collection[int]:
        """Give up so many of them, or all there are; the ids of those that were."""
        ...


class SwappingAllocator(CoreAllocator, Protocol):
    """Capability `swap`: a sequence can be moved to host memory and back, as a whole."""

    def swap_out(self, seq: int) -> Iterable[Copy] | None:
        """Move `seq` to host blocks; the copies name (device, host)."""
        ...

    def swap_in(self, seq: int) -> Iterable[Copy] | None:
        """Move `seq` back to device blocks; the copies name (host, device)."""
        ...

    def host_block_table(self, seq: int) -> Sequence[int | None]:
        """A snapshot of the host blocks of `seq`; empty while it is on the device."""
        ...

    def num_free_host_blocks(self) -> int:
        """How many host blocks could be handed out now."""
        ...


class LeasingAllocator(CoreAllocator, Protocol):
    """Capability `lease`: blocks in use by something in flight are not reused until it ends."""

    def begin_transfer(self, seq: int) -> Any:
        """Lease the blocks that `seq` has now; the lease is opaque."""
        ...

    def end_transfer(self, lease: Any) -> Iterable[Copy] | None:
        """End one lease."""
        ...


class BatchingAllocator(CoreAllocator, Protocol):
    """Capability `batch`: several sequences grow in one call, all or none."""

    def append_batch(
        self, seqs: Sequence[int], num_tokens: int | Sequence[int]
    ) -> Iterable[Copy] | None:
        """Append to each of `seqs`, an array, one number of tokens or one a sequence.

        Duplicate or unknown ids, and arguments of unequal lengths, are an `AllocatorError`.
        """
        ...


class AdmittingAllocator(CoreAllocator, Protocol):
    """Capability `admission`: the allocator can tell what `allocate` would do."""

    def can_allocate(self, num_tokens: int) -> Admission | str:
        """OK, LATER or NEVER, in agreement with the deed."""
        ...


class ReservingAllocator(CoreAllocator, Protocol):
    """Capability `reservation`: `allocate` takes the caller's bound on the final length."""

    def allocate(
        self, seq: int, num_tokens: int, *, limit: int | None = None
    ) -> Iterable[Copy] | None:
        """Start `seq`; a length beyond `limit` is `InvalidLength` from now on."""
        ...


class ResizingAllocator(CoreAllocator, Protocol):
    """Capability `resize`: the device pool grows and shrinks while sequences live."""

    def resize(self, num_blocks: int) -> Iterable[Copy] | None:
        """Have `num_blocks` blocks from now on; `OutOfBlocks` where what is in use does not fit."""
        ...


class IntrospectiveAllocator(CoreAllocator, Protocol):
    """Capability `introspection`: the allocator shows its own counts."""

    def ref_count(self, block: int) -> int:
        """How many live tables have `block`; leases and the prefix cache are not counted."""
        ...

    def free_blocks(self) -> Collection[int]:
        """The ids of the blocks that `num_free_blocks` counts."""
        ...


class GroupedAllocator(CoreAllocator, Protocol):
    """Capability `groups`: one sequence has a block table in each KV group.

    Built with `geometry.groups`, it is asked with an index into them, and into `geometry.pools`.
    """

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """A snapshot of the blocks that `seq` has in `group`."""
        ...

    def num_free_blocks(self, pool: int = 0) -> int:
        """How many blocks of `pool` could be handed out now."""
        ...


class StoringAllocator(CoreAllocator, Protocol):
    """Capability `store`: the allocator holds real K/V data and does its own copies."""

    @property
    def width(self) -> int:
        """Values a token."""
        ...

    @property
    def dtype(self) -> Any:
        """Anything that names a numpy dtype: the type of the values."""
        ...

    def write(self, seq: int, start: int, values: Any) -> None:
        """Fill reserved slots from position `start` with `values`, shape `(tokens, width)`."""
        ...

    def read(self, seq: int) -> Any:
        """The values of all positions, shape `(length, width)`."""
        ...


class AttendingAllocator(StoringAllocator, Protocol):
    """Capability `attention`: a store that computes attention itself.

    `width` is `n_kv_heads * (d_k + d_v)`: a row holds the keys of all key-value heads, `d_k`
    numbers each, and then their values, `d_v` numbers each. `dtype` is a float.
    """

    @property
    def n_heads(self) -> int:
        """Query heads, a multiple of `n_kv_heads`."""
        ...

    @property
    def n_kv_heads(self) -> int:
        """Key-value heads; query head `h` reads number `h // (n_heads // n_kv_heads)`."""
        ...

    @property
    def d_k(self) -> int:
        """Numbers in a key, and in the query of one head."""
        ...

    @property
    def d_v(self) -> int:
        """Numbers in a value, and in the output of one head."""
        ...

    def attend(self, seq: int, query: Any) -> Any:
        """The attention of the last written position of `seq`, shape `(n_heads, d_v)`.

        `query`, of shape `(n_heads, d_k)`, sees all positions that are written, or with a
        window the last of them; scores are scaled by `1 / sqrt(d_k)`. Changes nothing. Raises
        `UnknownSequence`, or `InvalidLength` where nothing is written.
        """
        ...


class Factory(Protocol):
    """Makes a fresh allocator; usually simply its class. May raise `UnsupportedGeometry`."""

    def __call__(self, geometry: Geometry, /) -> Any:
        """Build an allocator with this geometry, empty."""
        ...


class FallibleFactory(Protocol):
    """Capability `injection`: what can fail half way in an allocator can be made to.

    `checkpoint(point)` is called wherever the real counterpart of the allocator may fail: `point`
    says where. It may raise `InjectedFault`, which must propagate and leave everything as it was.
    """

    def __call__(
        self, geometry: Geometry, /, *, checkpoint: Callable[[str], None] | None = None
    ) -> Any:
        """Build an allocator with this geometry, empty, that calls `checkpoint` if given."""
        ...
