"""Who has a block: the counts, the free stack and the cached blocks of one pool, as tensors.

Of each block one of these is true:

- *used*: a table or a lease has it;
- *idle*: nobody has it, but it is published: its contents can be found again, until they go;
- *free*: on the stack.

Idle blocks are counted as free, and are given up where the stack does not suffice, the one that
has been idle longest first.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from kvimpls.torch_paged.journal import Journal

_NOT_IDLE = -1
_NEVER = torch.iinfo(torch.int64).max


class BlockPool:
    """The blocks `[0, size)` of one pool; all errors are the caller's to find first.

    `evicted` is told of the blocks whose cached contents are given up.

    >>> pool = BlockPool(4, torch.device("cpu"), Journal(), print)
    >>> blocks = pool.take(3)
    >>> blocks.tolist(), pool.num_free
    ([1, 2, 3], 1)
    >>> pool.publish(blocks[:2])
    >>> pool.let_go("users", blocks)
    >>> pool.num_free  # block 3 is free, and 1 and 2 are idle, the tail first
    4
    >>> pool.take(3).tolist()
    [2]
    [0, 3, 2]
    """

    def __init__(
        self,
        size: int,
        device: torch.device,
        journal: Journal,
        evicted: Callable[[list[int]], object],
    ) -> None:
        self.size = size
        self.stack = torch.arange(size, device=device)  # free are the blocks at [:top]
        self.top = size
        self.users = torch.zeros_like(self.stack)  # tables that have the block
        self.leases = torch.zeros_like(self.stack)  # leases on it
        self.published = torch.zeros(size, dtype=torch.bool, device=device)
        self.cached = 0  # how many are published
        self.since = torch.full_like(self.stack, _NOT_IDLE)  # when it became idle
        self.idle = 0  # how many are
        self.clock = 0
        self._one = torch.ones(1, dtype=torch.int64, device=device)
        self._journal = journal
        self._evicted = evicted

    @property
    def num_free(self) -> int:
        """How many blocks can be taken."""
        return self.top + self.idle

    def keep_numbers(self) -> None:
        """Keep in the journal what is a number on the host."""
        self._journal.keep_fields(self, "top", "cached", "idle", "clock")

    def take(self, need: int) -> Tensor:
        """Give `need <= num_free` blocks one user each, cached ones last.

        The answer is a view, good until blocks are let go again.
        """
        if need > self.top:
            self.evict(need - self.top)
        self.top -= need
        fresh = self.stack[self.top : self.top + need]
        if need:
            self._journal.keep(self.users, fresh)
            self.users.index_fill_(0, fresh, 1)
        return fresh

    def count(self, counts: Literal["users", "leases"], blocks: Tensor, by: int) -> None:
        """Add `by` to a count of each of `blocks`."""
        held: Tensor = getattr(self, counts)
        self._journal.keep(held, blocks)
        held.index_add_(0, blocks, self._one.expand(len(blocks)), alpha=by)

    def let_go(self, counts: Literal["users", "leases"], blocks: Tensor) -> None:
        """Take one from a count of each of `blocks`, and free those that nobody holds now.

        Published ones become idle, the last of `blocks` first.
        """
        self.count(counts, blocks, -1)
        idle = blocks[self.users[blocks] + self.leases[blocks] == 0]
        if self.cached:
            known = self.published[idle]
            self._become_idle(idle[known].flip(0))
            idle = idle[~known]
        self._push(idle)

    def leave(self, block: int) -> None:
        """Take one user from a block that has more."""
        self._journal.keep(self.users, block)
        self.users[block] -= 1

    def num_sole(self, blocks: Tensor) -> int:
        """How many of `blocks` can be taken once one user lets go of them."""
        return int((self.users[blocks] + self.leases[blocks] == 1).sum())

    def num_idle(self, blocks: Tensor) -> int:
        """How many of `blocks` are idle."""
        return int((self.since[blocks] != _NOT_IDLE).sum()) if self.idle else 0

    def share(self, blocks: Tensor) -> None:
        """Give `blocks`, used or idle, one more user each."""
        self.idle -= self.num_idle(blocks)
        self._journal.keep(self.since, blocks)
        self.since[blocks] = _NOT_IDLE
        self.count("users", blocks, 1)

    def publish(self, blocks: Tensor) -> None:
        """Keep the contents of `blocks`, which are used and not published, when they are not."""
        self._journal.keep(self.published, blocks)
        self.published[blocks] = True
        self.cached += len(blocks)

    def withdraw(self, blocks: Tensor) -> None:
        """Keep the contents of `blocks`, which are published and not idle, no longer."""
        self._journal.keep(self.published, blocks)
        self.published[blocks] = False
        self.cached -= len(blocks)

    def withdraw_all(self) -> None:
        """Keep no contents any longer: idle blocks become free."""
        self._free_idle(torch.nonzero(self.since != _NOT_IDLE).flatten())
        self.withdraw(torch.nonzero(self.published).flatten())

    def evict(self, need: int) -> Tensor:
        """Free the `need <= idle` blocks that have been idle longest; which they are."""
        waiting = torch.where(self.since == _NOT_IDLE, _NEVER, self.since)
        oldest = waiting.topk(need, largest=False, sorted=True).indices
        self._evicted(oldest.tolist())
        self._free_idle(oldest)
        return oldest

    def free_blocks(self) -> list[int]:
        """The blocks that `num_free` counts."""
        free: list[int] = self.stack[: self.top].tolist()
        if self.idle:
            free += torch.nonzero(self.since != _NOT_IDLE).flatten().tolist()
        return free

    def in_use_from(self, block: int) -> bool:
        """Whether a table or a lease has a block that is not below `block`."""
        return bool((self.users[block:] + self.leases[block:]).any())

    def resize(self, size: int) -> None:
        """Have the blocks `[0, size)`, none that is given up being in use."""
        beyond = torch.nonzero(self.since[size:] != _NOT_IDLE).flatten() + size
        self._evicted(beyond.tolist())
        self._free_idle(beyond)
        free = self.stack[: self.top]
        more = torch.arange(self.size, max(size, self.size), device=free.device)
        free = torch.cat((free[free < size], more))
        self._journal.keep_fields(
            self, "size", "stack", "top", "users", "leases", "published", "since"
        )
        self.stack = resized(free, size, 0)
        self.top = len(free)
        self.users = resized(self.users, size, 0)
        self.leases = resized(self.leases, size, 0)
        self.published = resized(self.published, size, False)
        self.since = resized(self.since, size, _NOT_IDLE)
        self.size = size

    def fingerprint(self) -> tuple[object, ...]:
        """All that decides what comes next.

        That is the order in which blocks became idle, but not when; and nothing above the top of
        the stack, which is overwritten before it is read.
        """
        idle = torch.nonzero(self.since != _NOT_IDLE).flatten()
        return (
            self.size,
            (self.cached, self.idle),
            self.stack[: self.top].tolist(),
            self.users.tolist(),
            self.leases.tolist(),
            self.published.tolist(),
            idle[self.since[idle].argsort()].tolist(),
        )

    def _free_idle(self, blocks: Tensor) -> None:
        """Move idle blocks to the stack, their contents given up."""
        self._journal.keep(self.since, blocks)
        self.since[blocks] = _NOT_IDLE
        self.idle -= len(blocks)
        self.withdraw(blocks)
        self._push(blocks)

    def _become_idle(self, blocks: Tensor) -> None:
        """Stamp blocks with the time, one after the other."""
        self._journal.keep(self.since, blocks)
        self.since[blocks] = torch.arange(
            self.clock, self.clock + len(blocks), device=blocks.device
        )
        self.clock += len(blocks)
        self.idle += len(blocks)

    def _push(self, blocks: Tensor) -> None:
        """Put blocks on the free stack."""
        top = self.top + len(blocks)
        self._journal.keep(self.stack, slice(self.top, top))
        self.stack[self.top : top] = blocks
        self.top = top


def resized(rows: Tensor, size: int, fill: int) -> Tensor:
    """A copy of the first `size` rows, or of all and as many more as lack.

    >>> resized(torch.tensor([1, 2]), 3, -1).tolist(), resized(torch.tensor([1, 2]), 1, 0).tolist()
    ([1, 2, -1], [1])
    """
    kept = rows[:size]
    more = rows.new_full((size - len(kept), *rows.shape[1:]), fill)
    return torch.cat((kept, more))
