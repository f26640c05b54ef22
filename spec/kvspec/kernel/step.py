"""One call, before and after: what the laws are judged on."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from attrs import frozen

from kvspec.geometry import table_index
from kvspec.kernel.events import Cloned, Copied, Event, Written
from kvspec.kernel.operation import Expected, Operation
from kvspec.kernel.outcome import Answer, Observation, Outcome
from kvspec.kernel.state import Entries, State

if TYPE_CHECKING:
    from kvspec.kernel.law import Law
    from kvspec.kernel.specification import Specification


@frozen
class Change:
    """One table entry that is another block after the step than before it."""

    seq: int
    index: int
    before: int
    after: int


@frozen
class Step:
    """One operation with its outcome, what was expected, and the states around it."""

    spec: "Specification"
    before: State
    operation: Operation
    outcome: Outcome
    expected: Expected
    after: State
    events: tuple[Event, ...]

    @property
    def answer(self) -> Answer:
        """The allocator's answer."""
        return self.outcome.answer

    @property
    def seen(self) -> Observation:
        """What was looked at after the call."""
        return self.outcome.observation

    @property
    def done(self) -> bool:
        """Whether the call succeeded, as a right call may: a wrong one that did has no meaning."""
        return self.outcome.answer.kind == "done" and not self.expected.errors

    @cached_property
    def copies(self) -> tuple[Copied, ...]:
        """The copies that were reported."""
        return tuple(event for event in self.events if isinstance(event, Copied))

    @cached_property
    def written_entries(self) -> Mapping[int, range]:
        """By sequence, the indices of the table entries that were written in this step."""
        size = self.spec.geometry.block_size
        return {
            event.seq: range(
                table_index(event.start, size),
                table_index(event.start + len(event.cells) - 1, size) + 1,
            )
            for event in self.events
            if isinstance(event, Written) and event.cells
        }

    @cached_property
    def relevant(self) -> tuple["Law", ...]:
        """The laws that this step is about, in the published order."""
        return tuple(law for law in self.spec.laws if law.relevant(self))

    @cached_property
    def survivors(self) -> tuple[tuple[int, Entries, Entries], ...]:
        """The sequences that live before and after the step, with both tables."""
        return tuple(
            (seq, self.before.table(seq), self.after.table(seq))
            for seq in self.before.sequences
            if seq in self.after.sequences
        )

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The entries that are another block than before, in tables that live on."""
        return tuple(
            Change(seq, i, old, new)
            for seq, before, after in self.survivors
            if before != after
            for i, (old, new) in enumerate(zip(before, after, strict=False))
            if old is not None and new is not None and old != new
        )

    def replaceable(self, change: Change) -> bool:
        """Whether the sequence wrote into that entry while its block was not its alone.

        Then it may have got a block of its own: it must where another table has the block,
        and it may where only a lease pins it.
        """
        if change.index not in self.written_entries.get(change.seq, ()):
            return False
        occupancy = self.before.at()
        return len(occupancy.users.get(change.before, ())) > 1 or change.before in occupancy.pins

    @cached_property
    def moves(self) -> Mapping[int, int]:
        """Where the blocks of bystanders went: old block to new, for those that moved.

        A block moves when every entry that held it, other than entries replaced by a write,
        holds one and the same other block now, and no two blocks went to the same place.
        Under a contract that relocates this may happen to any block. Under any other it is
        allowed only to a shared block that was written into: the writer stayed, and the
        others got the copy. Moves that are not allowed are not in here: the frame law sees
        them as changes.
        """
        if not self.changes:
            return {}
        targets: dict[int, set[int]] = {}
        for seq, before, after in self.survivors:
            for i, (old, new) in enumerate(zip(before, after, strict=False)):
                if old is not None and new is not None:
                    own = i in self.written_entries.get(seq, ())
                    if own and self.replaceable(Change(seq, i, old, new)):
                        continue
                    targets.setdefault(old, set()).add(new)
        went = {old: next(iter(new)) for old, new in targets.items() if len(new) == 1}
        claims: dict[int, int] = {}
        for new in went.values():
            claims[new] = claims.get(new, 0) + 1
        moved = {old: new for old, new in went.items() if old != new and claims[new] == 1}
        if self.spec.contract.relocates:
            return moved
        written_shared = {
            before[i]
            for seq, before, after in self.survivors
            for i in self.written_entries.get(seq, ())
            if i < len(before) and i < len(after) and before[i] == after[i]
        }
        return {old: new for old, new in moved.items() if old in written_shared}

    def origin(self, entries: Entries) -> Entries:
        """A table from before the step, with the blocks where they are now."""
        if not self.moves:
            return entries
        return tuple(self.moves.get(b, b) if b is not None else None for b in entries)

    @cached_property
    def unjustified(self) -> tuple[Change, ...]:
        """The changed entries that neither a move nor a write into a shared block explains."""
        return tuple(
            change
            for change in self.changes
            if self.moves.get(change.before) != change.after and not self.replaceable(change)
        )

    @cached_property
    def inherited(self) -> frozenset[tuple[int, int]]:
        """The pairs of a forked parent's block and the other block that the child got for it."""
        return frozenset(
            (old, new)
            for event in self.events
            if isinstance(event, Cloned)
            for old, new in zip(
                self.before.table(event.parent), self.after.table(event.child), strict=False
            )
            if old is not None and new is not None and old != new
        )

    @cached_property
    def taken(self) -> tuple[tuple[int, int, int], ...]:
        """The entries with a block that was not theirs: (seq, index, block).

        Seen from where the blocks are now, so that a block that moved was theirs before; a
        fork's child takes only what it does not share with its parent.
        """
        return tuple(self._new_entries(self.origin))

    @property
    def entered(self) -> Iterator[tuple[int, int]]:
        """The sequences that have a block at an entry where it was not before: (seq, block)."""
        return ((seq, block) for seq, _, block in self._new_entries(lambda entries: entries))

    def _new_entries(self, was: Callable[[Entries], Entries]) -> Iterator[tuple[int, int, int]]:
        parents = {e.child: e.parent for e in self.events if isinstance(e, Cloned)}
        for seq in self.after.sequences:
            base, table = was(self.before.table(parents.get(seq, seq))), self.after.table(seq)
            if base == table:
                continue
            for i, block in enumerate(table):
                if block is not None and (i >= len(base) or base[i] != block):
                    yield seq, i, block
