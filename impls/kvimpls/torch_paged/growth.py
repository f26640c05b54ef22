"""How sequences grow: one, or many at once.

Of a sequence's last block, where it is partly filled and others have it too, a copy is taken
first. With a window, the blocks that the first new token no longer sees are let go before others
are taken, and count for them.
"""

from collections.abc import Collection
from itertools import accumulate, chain
from typing import SupportsIndex

from kvimpls.torch_paged.arguments import integers, whole
from kvimpls.torch_paged.base import Base, atomic
from kvimpls.torch_paged.tables import NONE, Sequence, Tables
from kvspec import AllocatorError, Copy


class Growing(Base):
    """Capability batch, and `append` of core."""

    @atomic
    def append(self, seq: int, num_tokens: int) -> tuple[Copy, ...]:
        """Reserve slots for `num_tokens` more tokens of `seq`, after copying a shared last block.

        With a window, the blocks that the first of them no longer sees are let go before others
        are taken. A copy is done when this returns; it is reported all the same. Raises
        `UnknownSequence`, `NotResident`, `InvalidLength` or `OutOfBlocks`.
        """
        state = self._resident(seq)
        tokens = whole(num_tokens)
        self._check_length(state.length + tokens, state.limit)
        return self._grow(state, tokens) if tokens else ()

    def append_batch(
        self, seqs: Collection[int], num_tokens: int | Collection[int]
    ) -> tuple[Copy, ...]:
        """Append to each of `seqs`, as many tokens to all or one number each: all or nothing.

        Raises what `append` raises, and `AllocatorError` for a sequence named twice or numbers
        of which there are not as many as sequences.
        """
        names = integers(seqs)
        tokens = self._numbers(num_tokens, len(names))
        if len(set(names)) < len(names):
            raise AllocatorError("a sequence is named twice")
        states = [self._resident(name) for name in names]
        for state, number in zip(states, tokens, strict=True):
            self._check_length(state.length + number, state.limit)

        growing = [(state, number) for state, number in zip(states, tokens, strict=True) if number]
        if not self._windowed:
            return self._grow_together(growing) if growing else ()
        # What one lets go may be what the next one takes: they have to be done in order.
        return self._undoable(
            lambda: tuple(chain.from_iterable(self._grow(*each) for each in growing))
        )

    def _numbers(self, num_tokens: int | Collection[int], length: int) -> list[int]:
        """One number of tokens for all, or one each, as a list of `length`."""
        if isinstance(num_tokens, SupportsIndex) and not getattr(num_tokens, "ndim", 0):
            return [whole(num_tokens)] * length
        numbers = [whole(number) for number in integers(num_tokens)]
        if len(numbers) != length:
            raise AllocatorError(f"{len(numbers)} numbers of tokens for {length} sequences")
        return numbers

    def _grow(self, state: Sequence, added: int) -> tuple[Copy, ...]:
        """Reserve slots for `added > 0` more tokens; the only refusal left is `OutOfBlocks`."""
        row, length = state.row, state.length
        plan = []
        lacks = []
        for tables, gone in zip(self._groups, state.gone, strict=True):
            column = tables.blocks_for(length)  # of the first new table entry
            last = int(tables.entries[row, column - 1]) if length % tables.block_size else NONE
            shared = last != NONE and int(tables.pool.users[last]) > 1
            need = tables.blocks_for(length + added) - column + shared
            leaving = tables.gone_before(length, gone)
            freed = 0
            if leaving > gone:
                freed = tables.pool.num_sole(tables.entries[row, gone:leaving])
            lacks.append(need - freed)
            plan.append((tables, gone, leaving, last, shared, column - shared, need))
        self._check_free(lacks)
        for tables, gone, leaving, *_ in plan:
            if leaving > gone:
                self._let_go(tables, row, gone, leaving)
        copies = []
        for tables, _, _, last, shared, column, need in plan:
            fresh = self._take(tables, row, column, need)
            if shared:  # the last entry too has become a new one
                tables.pool.leave(last)
                copies.append(self._copied(tables, last, int(fresh[0])))
            elif last in self._index:  # it was cut, and will hold something else
                self._index.remove([last])
                tables.pool.withdraw(tables.entries[row, column - 1 : column])
        self._journal.keep_fields(state, "length", "gone")
        state.length += added
        if self._windowed:
            state.gone = tuple(leaving for _, _, leaving, *_ in plan)
        return tuple(copies)

    @atomic
    def _grow_together(self, growing: list[tuple[Sequence, int]]) -> tuple[Copy, ...]:
        """The same for several sequences, in as many tensor operations as for two of them."""
        plans = [_Growth(tables, growing) for tables in self._groups]
        self._check_free([sum(plan.needs) for plan in plans])
        copies = []
        for group, (tables, plan) in enumerate(zip(self._groups, plans, strict=True)):
            fresh = self._fresh(tables.pool, sum(plan.needs))
            tables.put_each(plan.rows, plan.columns, plan.needs, fresh)
            left = fresh.new_tensor(list(plan.copied.values()))
            tables.pool.count("users", left, -1)
            taken = fresh.tolist() if plan.copied else []
            starts = list(accumulate(plan.needs, initial=0))
            for i, block in plan.copied.items():
                copies.append((i, group, self._copied(tables, block, taken[starts[i]])))
            cut = [block for block in plan.in_place if block in self._index]
            if cut:
                self._index.remove(cut)
                tables.pool.withdraw(fresh.new_tensor(cut))
        for state, added in growing:
            self._journal.keep_fields(state, "length")
            state.length += added
        return tuple(copy for _, _, copy in sorted(copies))

    def _copied(self, tables: Tables, source: int, destination: int) -> Copy:
        """Copy the contents of a block, where there are any, to one of the same group."""
        self._may_fail("copying a block")
        if self._store is not None:
            self._store.copy(source, destination)
        return Copy(source + tables.start, destination + tables.start)


class _Growth:
    """What several sequences, each given with a number of new tokens, need in one group.

    `needs` blocks each, from the `columns` of their `rows` on; `copied` are last blocks that the
    sequences of these indices have to copy, and `in_place` the other last blocks with room.
    """

    def __init__(self, tables: Tables, growing: list[tuple[Sequence, int]]) -> None:
        size = tables.block_size
        self.rows = [state.row for state, _ in growing]
        self.columns = [tables.blocks_for(state.length) for state, _ in growing]
        partly = [i for i, (state, _) in enumerate(growing) if state.length % size]
        lasts = tables.at([self.rows[i] for i in partly], [self.columns[i] - 1 for i in partly])
        users = tables.pool.users[lasts]
        self.copied: dict[int, int] = {}
        self.in_place: list[int] = []
        staying: dict[int, int] = {}  # users of last blocks, once the sequences so far have left
        for i, block, sharers in zip(partly, lasts.tolist(), users.tolist(), strict=True):
            others = staying.setdefault(block, sharers) - 1
            if others:
                staying[block] = others
                self.copied[i] = block
                self.columns[i] -= 1  # the last entry too becomes a new one
            else:  # the last of the sharers needs no copy
                self.in_place.append(block)
        self.needs = [
            tables.blocks_for(state.length + added) - column
            for (state, added), column in zip(growing, self.columns, strict=True)
        ]
