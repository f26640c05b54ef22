"""The block tables of one KV group: growing, sharing, copy-on-write, and the window.

Position `p` lies in entry `p // block_size` of the table. All lengths are in tokens.
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex

from kvimpls.reference.journal import Journal
from kvimpls.reference.pool import Lease, Pool
from kvimpls.reference.taking import Checkpoint, Taking
from kvspec import Copy, InvalidLength, UnknownSequence

Entry = int | None
"""A block id; `None` where a block was released, since the window has left it."""


@dataclass
class SequenceState:
    """One live sequence in one group: its table, its length in tokens, and the bound on that.

    The rest is of the first group alone. `tokens` are those that are known, from the first on;
    they are under `key`, and published up to `mark` if the cache was last reset in `epoch`.
    While the sequence is swapped out, `blocks` is empty and `host` is its table.
    """

    limit: int | None
    length: int = 0
    blocks: list[Entry] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    key: Any = None
    mark: int = 0
    epoch: int = 0
    host: list[Entry] | None = None

    def held(self) -> list[int]:
        """The blocks of the table, without those that the window has left."""
        return present(self.blocks)


class Paging(Taking):
    """The tables of all sequences in one group, over a pool that it may share with others."""

    def __init__(
        self,
        block_size: int,
        window: int | None,
        pool: Pool,
        journal: Journal,
        checkpoint: Checkpoint,
    ) -> None:
        Taking.__init__(self, pool, journal, checkpoint)
        self._block_size = block_size
        self._window = window
        self._sequences: dict[int, SequenceState] = {}

    # What happens to a sequence in this group.

    def _start(self, seq: int, sequence: SequenceState, length: int) -> None:
        """Begin `seq` with `length` tokens, some of which may be in `sequence.blocks` already."""
        sequence.blocks += self._take(self._need(length) - len(sequence.blocks))
        sequence.length = length
        self._journal.put(self._sequences, seq, sequence)

    def _slide(self, seq: int, length: int) -> None:
        """Let go of what the window leaves when `seq` grows to `length`."""
        sequence = self._sequences[seq]
        if self._window is not None and length > sequence.length:
            self._release(sequence, self._outside(self._judged_at(sequence, length)))

    def _grow(self, seq: int, length: int) -> list[Copy]:
        """Make room for `length` tokens, in blocks that `seq` has to itself."""
        sequence = self._sequences[seq]
        to_copy = self._to_copy(sequence, length)
        # All that is needed is taken at once, so that a refusal has nothing more to undo.
        fresh = self._take(len(to_copy) + self._growth(sequence, length))
        copies = [self._copy_on_write(sequence, index, fresh.pop(0)) for index in to_copy]
        if self._supply.cache.contents:
            self._overwrite(sequence, self._written(sequence, length))
        for block in fresh:
            self._journal.append(sequence.blocks, block)
        self._journal.set(sequence, "length", length)
        return copies

    def _cut(self, seq: int, length: int) -> None:
        """Keep the first `length` tokens, and the blocks that those need."""
        sequence = self._sequences[seq]
        self._require_window(sequence, length)
        kept = self._entries_kept(sequence, length)
        dropped = sequence.blocks[kept:]
        self._journal.set(sequence, "blocks", sequence.blocks[:kept])
        self._journal.set(sequence, "length", length)
        self._journal.set(sequence, "tokens", sequence.tokens[:length])
        self._journal.set(sequence, "mark", self._mark_kept(sequence, length))
        self._let_go(present(dropped))

    def _share(self, parent: int, child: int) -> list[Copy]:
        """Begin `child` with the tokens and the blocks of `parent`."""
        origin = self._sequences[parent]
        to_copy = self._copied_at_fork(origin)
        fresh = self._take(len(to_copy))
        sequence = replace(origin, blocks=list(origin.blocks))
        self._journal.put(self._sequences, child, sequence)
        self._pin(sequence.held())
        return [self._copy_on_write(sequence, index, fresh.pop(0)) for index in to_copy]

    def _end(self, seq: int) -> None:
        """Forget `seq`, and let go of its blocks."""
        sequence = self._sequences[seq]
        self._journal.delete(self._sequences, seq)
        self._let_go(sequence.held())

    def _sequence(self, seq: int) -> SequenceState:
        """The state of `seq` in this group; `UnknownSequence` if there is none."""
        if seq not in self._sequences:
            raise UnknownSequence(f"sequence {seq} is not in use")
        return self._sequences[seq]

    def _lease(self, seq: int, lease: Lease) -> None:
        """Put the blocks that `seq` has now under `lease`, beside those of other groups."""
        blocks: list[int] = []
        for block in self._sequences[seq].held():
            self._checkpoint("lease a block")
            blocks.append(block)
        self._journal.put(self._leases, lease, self._leases.get(lease, []) + blocks)

    def _end_lease(self, lease: Lease) -> None:
        """Let go of what is under `lease` in the pool of this group."""
        blocks = self._leases[lease]
        self._journal.delete(self._leases, lease)
        self._give_back(blocks)

    # How much is needed, and of what.

    def _need(self, length: int) -> int:
        """The blocks that a sequence of this length holds."""
        return -(-length // self._block_size)

    def _growth(self, sequence: SequenceState, length: int) -> int:
        """The blocks that `sequence` lacks for this length."""
        return max(0, self._need(length) - len(sequence.blocks))

    def _entries_kept(self, sequence: SequenceState, length: int) -> int:
        """How many entries of the table a sequence keeps that is cut to this length."""
        return self._need(length)

    def _mark_kept(self, sequence: SequenceState, length: int) -> int:
        """Up to where a sequence is published that is cut to this length."""
        return min(sequence.mark, length)

    def _written(self, sequence: SequenceState, length: int) -> range:
        """The indices of the entries in the table that growing to `length` writes into."""
        if length == sequence.length:
            return range(0)
        first = sequence.length // self._block_size
        last = (length - 1) // self._block_size
        return range(first, min(last + 1, len(sequence.blocks)))

    def _to_copy(self, sequence: SequenceState, length: int) -> list[int]:
        """The indices of the entries to be copied before growing to `length`: the shared ones."""
        written = self._written(sequence, length)
        return [index for index in written if self._references[_block(sequence, index)] > 1]

    def _copied_at_fork(self, origin: SequenceState) -> list[int]:
        """The indices of the entries that a fork copies at once: none, they are shared."""
        return []

    def _copy_on_write(self, sequence: SequenceState, index: int, fresh: int) -> Copy:
        """Give `sequence` the block `fresh` for the one at `index`, which its other users keep."""
        old = _block(sequence, index)
        self._checkpoint("copy a block")
        self._journal.replace(sequence.blocks, index, fresh)
        self._let_go([old])
        return Copy(old, fresh)

    def _overwrite(self, sequence: SequenceState, written: range) -> None:
        """Give up what is cached in the blocks at these indices, which are about to change."""
        for index in written:
            block = _block(sequence, index)
            if self._cached(block):
                self._unpublish(block)

    # The window.

    def _outside(self, length: int) -> int:
        """How many leading entries lie wholly before the window of a sequence of this length."""
        return 0 if self._window is None else max(0, length - self._window) // self._block_size

    def _judged_at(self, sequence: SequenceState, length: int) -> int:
        """The length whose window decides what growing to `length` releases.

        It ends with the first new token, since that needs the most of what is there.
        """
        return sequence.length + 1

    def _release(self, sequence: SequenceState, outside: int) -> None:
        """Let go of the first `outside` entries of the table, which the window has left."""
        released = present(sequence.blocks[:outside])
        for index in range(outside):
            if sequence.blocks[index] is not None:
                self._journal.replace(sequence.blocks, index, None)
        self._let_go(released)

    def _require_window(self, sequence: SequenceState, length: int) -> None:
        """Raise `InvalidLength` unless all is there that the window of this length needs."""
        if None in sequence.blocks[self._outside(length) : self._need(length)]:
            raise InvalidLength(f"some of what the window of {length} tokens needs was released")


def tokens_of(number: SupportsIndex, most: int | None = None) -> int:
    """`number` as an int; `InvalidLength` unless it is whole, not negative and at most `most`."""
    try:
        tokens = operator.index(number)
    except TypeError:
        raise InvalidLength(f"{number!r} is not a whole number of tokens") from None
    if tokens < 0:
        raise InvalidLength(f"{tokens} tokens are fewer than none")
    if most is not None and tokens > most:
        raise InvalidLength(f"{tokens} tokens are more than the {most} that are allowed here")
    return tokens


def present(entries: Iterable[Entry]) -> list[int]:
    """The blocks of those entries that were not released."""
    return [entry for entry in entries if entry is not None]


def _block(sequence: SequenceState, index: int) -> int:
    """The block of an entry that cannot have been released, as the window still needs it."""
    block = sequence.blocks[index]
    assert block is not None
    return block
