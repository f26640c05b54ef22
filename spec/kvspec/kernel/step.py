"""One call, before and after: what the laws are judged on."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import field, frozen

from kvspec.geometry import table_index
from kvspec.kernel.derived import derived
from kvspec.kernel.events import Cloned, Copied, Event, Grew, Inherited
from kvspec.kernel.operation import Expected, Operation
from kvspec.kernel.outcome import Answer, Observation, Outcome
from kvspec.kernel.state import Entries, State, TableOf

if TYPE_CHECKING:
    from kvspec.kernel.law import Law
    from kvspec.kernel.specification import Specification

T = TypeVar("T")


@frozen
class Change:
    """One table entry that is another block after the step than before it."""

    table: TableOf
    index: int
    before: int
    after: int

    @property
    def seq(self) -> int:
        """The sequence whose table it is."""
        return self.table.seq


@frozen(slots=False)
class Step:
    """One operation with its outcome, what was expected, and the states around it.

    `answer` is the allocator's, and `seen` what was looked at after the call. `done` says whether
    the call succeeded, as a right call may: a wrong one that did has no meaning.
    """

    spec: "Specification"
    before: State
    operation: Operation
    outcome: Outcome
    expected: Expected
    after: State
    events: tuple[Event, ...]
    answer: Answer = field(init=False, repr=False, eq=False)
    seen: Observation = field(init=False, repr=False, eq=False)
    done: bool = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        """Set what nearly every law asks for."""
        facts, expected = self.__dict__, self.expected
        answer = facts["answer"] = self.outcome.answer
        facts["seen"] = self.outcome.observation
        facts["done"] = answer.kind == "done" and not (expected.errors or expected.injected)

    @derived
    def seen_again(self) -> Set[int]:
        """The sequences that lived before the step and whose tables were looked at after it."""
        before = self.before.sequences
        return before.keys() & {table.seq for table in self.seen.tables}

    @derived
    def still(self) -> bool:
        """Whether no history, table or content is another than before; false if that is unknown."""
        before, after = self.before, self.after
        return (
            self.spec.shortcuts
            and before.holds is after.holds
            and before.sequences is after.sequences
            and before.contents is after.contents
        )

    def untouched(self, table: TableOf) -> bool:
        """Whether a table, its history and what is in its blocks are just as before."""
        seq, before, after = table.seq, self.before, self.after
        if not self.spec.shortcuts or before.sequences.get(seq) is not after.sequences[seq]:
            return False
        entries = after.holds.get(table, ())
        if before.holds.get(table, ()) is not entries:
            return False
        if before.contents is after.contents:
            return True
        place, was, now = table.place, before.contents, after.contents
        return all(was.get((place, b)) is now.get((place, b)) for b in entries if b is not None)

    def once(self, derive: Callable[["Step"], T]) -> T:
        """What `derive` makes of this step: several laws of a room may ask, it is made once."""
        made = self._made
        if derive not in made:
            made[derive] = derive(self)
        return cast("T", made[derive])

    @derived
    def _made(self) -> dict[Any, Any]:
        return {}

    @derived
    def copies(self) -> tuple[Copied, ...]:
        """The copies that were reported."""
        if not self.answer.copies:
            return ()
        return tuple(event for event in self.events if isinstance(event, Copied))

    @derived
    def reserved(self) -> Mapping[TableOf, range]:
        """By table, the indices of the entries in which a live sequence reserved slots.

        It writes into these, at once or later; the last ones may be new.
        """
        found = {}
        for event in self.events:
            if isinstance(event, Grew) and event.num_tokens:
                start = self.before.sequences[event.seq].length
                for table in self.after.homes(event.seq):
                    size = self.spec.block_size(table)
                    last = table_index(start + event.num_tokens - 1, size)
                    found[table] = range(table_index(start, size), last + 1)
        return found

    @derived
    def relevant(self) -> tuple["Law", ...]:
        """The laws that this step is about, in the published order."""
        return tuple([law for law in self.spec.judged if law.relevant(self)])

    @derived
    def survivors(self) -> tuple[tuple[TableOf, Entries, Entries], ...]:
        """The tables of sequences that live, where they are, before and after the step."""
        return tuple(
            (table, self.before.entries(table), self.after.entries(table))
            for seq in self.before.sequences
            if seq in self.after.sequences
            for table in self.before.homes(seq)
            if self.before.sequences[seq].tier == self.after.sequences[seq].tier
        )

    @derived
    def renewed(self) -> tuple[TableOf, ...]:
        """The tables of live sequences that may not be as they were; all others are."""
        before, after = self.before.holds, self.after.holds
        if before is after:
            return ()
        homes, nothing = self.after.homes, ()
        return tuple(
            [
                table
                for seq in self.after.sequences
                for table in homes(seq)
                if before.get(table, nothing) is not after.get(table, nothing)
            ]
        )

    @derived
    def altered(self) -> tuple[tuple[TableOf, Entries, Entries], ...]:
        """The survivors that are not as they were."""
        if not self.renewed:
            return ()
        lived, live = self.before.sequences, self.after.sequences
        found = []
        for table in self.renewed:
            was = lived.get(table.seq)
            if was is not None and was.tier == live[table.seq].tier:
                before, after = self.before.entries(table), self.after.entries(table)
                if before != after:
                    found.append((table, before, after))
        return tuple(found)

    @derived
    def changes(self) -> tuple[Change, ...]:
        """The entries that are another block than before, in tables that live on."""
        if not self.altered:
            return ()
        return tuple(
            [
                Change(table, i, old, new)
                for table, before, after in self.altered
                for i, (old, new) in enumerate(zip(before, after, strict=False))
                if old is not None and new is not None and old != new
            ]
        )

    def replaceable(self, change: Change) -> bool:
        """Whether the sequence reserved slots in that entry while its block was not its alone.

        Then it may have got a block of its own: it must where another table has the block,
        and it may where a lease pins it or a cache keeps its contents.
        """
        if change.index not in self.reserved.get(change.table, ()):
            return False
        occupancy, block = self.before.at(change.table.place), change.before
        shared = len(occupancy.users.get(block, ())) > 1
        return shared or block in occupancy.pins or block in occupancy.keeps

    @derived
    def moves(self) -> Mapping[int, int]:
        """Where the device blocks of bystanders went: old block to new, for those that moved.

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
        for table, before, after in self.survivors:
            if table.place.tier != "device":
                continue
            for i, (old, new) in enumerate(zip(before, after, strict=False)):
                if old is not None and new is not None:
                    own = i in self.reserved.get(table, ())
                    if own and self.replaceable(Change(table, i, old, new)):
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
            for table, before, after in self.survivors
            for i in self.reserved.get(table, ())
            if i < len(before) and i < len(after) and before[i] == after[i]
        }
        return {old: new for old, new in moved.items() if old in written_shared}

    def origin(self, entries: Entries) -> Entries:
        """A table from before the step, with the blocks where they are now."""
        if not self.moves:
            return entries
        return tuple(self.moves.get(b, b) if b is not None else None for b in entries)

    @derived
    def unjustified(self) -> tuple[Change, ...]:
        """The changed entries that nothing explains: no move, no write into a shared block.

        Where the contract has equal contents become one block, that explains a change too.
        """
        if not self.changes:
            return ()
        return tuple(
            change
            for change in self.changes
            if self.moves.get(change.before) != change.after
            and not self.replaceable(change)
            and (change.table, change.index) not in self.adopted
        )

    def released_anyway(self, table: TableOf, after: Entries) -> bool:
        """Whether a refused call only let go of what lies before the window, where it may."""
        if not self.spec.contract.window_before_refusal or self.answer.kind != "refused":
            return False
        return after == self.spec.slid(self.before, table, self.operation.added(table.seq))

    @derived
    def inherited(self) -> frozenset[tuple[int, int]]:
        """The pairs of a forked parent's block and the other block that the child got for it."""
        return frozenset(
            (old, new)
            for child, parent in self._parents.items()
            for old, new in zip(
                self.before.entries(parent), self.after.entries(child), strict=False
            )
            if old is not None and new is not None and old != new
        )

    @derived
    def needless(self) -> tuple[Copied, ...]:
        """The copies that no table entry explains, and those that were reported before.

        Where several sequences write one after the other, an entry may go from block to block
        before it comes to rest, and may be released in the end: so what is copied may be a copy.
        """
        if not self.copies:
            return ()
        explained = {(c.before, c.after) for c in self.changes} | self.inherited
        went: dict[int, set[int]] = {}
        for source, to in explained:
            went.setdefault(to, {to}).add(source)
        written: set[int | None] = set()
        released: set[int | None] = set()
        for table, before, after in self.survivors:
            indices = self.reserved.get(table)
            for i, (old, new) in enumerate(zip(before, after, strict=False)):
                if indices is not None and new is None:
                    released.add(old)
                elif indices is not None and i in indices:
                    written.add(old)
        needless: list[Copied] = []
        filled: set[int] = set()
        for copy in self.copies:
            origins = went.get(copy.source, {copy.source})
            known = copy.source != copy.destination and any(
                (origin, copy.destination) in explained for origin in origins
            )
            passing = copy.source in written & released
            if not (passing or (known and copy.destination not in filled)):
                needless.append(copy)
            filled.add(copy.destination)
        return tuple(needless)

    @derived
    def adopted(self) -> frozenset[tuple[TableOf, int]]:
        """The entries with a block that a cache kept before, and whose contents they took over."""
        found = set()
        for event in self.events:
            if isinstance(event, Inherited):
                for table in self.after.homes(event.seq):
                    keeps = self.before.at(table.place).keeps
                    count = event.num_tokens // self.spec.block_size(table)
                    for i, block in enumerate(self.after.entries(table)[:count]):
                        if block in keeps:
                            found.add((table, i))
        # Where slots are reserved nothing is published: a block that was cached is then another
        # sequence's own copy, for which its contents were given up.
        if self.spec.contract.deduplicates and not self.reserved:
            found |= {
                (change.table, change.index)
                for change in self.changes
                if change.after in self.before.at(change.table.place).keeps
            }
        return frozenset(found)

    @derived
    def taken(self) -> tuple[tuple[TableOf, int, int], ...]:
        """The entries with a block that was not theirs: (table, index, block).

        Seen from where the blocks are now, so that a block that moved was theirs before; a
        fork's child takes only what it does not share with its parent, and what a cache kept is
        not taken but adopted.
        """
        if not self.renewed:
            return ()
        return tuple(self._new_entries(self.origin))

    @property
    def entered(self) -> Iterator[tuple[TableOf, int]]:
        """The tables that have a block at an entry where it was not before: (table, block)."""
        return ((table, block) for table, _, block in self._new_entries(lambda entries: entries))

    def began_with(self, table: TableOf) -> Entries:
        """The entries with which a table began the step: what it had, or what its parent had."""
        parent = self._parents.get(table)
        if parent is not None:
            return self.before.entries(parent)
        return self.before.table(table.seq, table.group)

    @derived
    def _parents(self) -> Mapping[TableOf, TableOf]:
        found: dict[TableOf, TableOf] = {}
        for event in self.events:
            if isinstance(event, Cloned):
                parents = self.before.homes(event.parent)
                found.update(zip(self.after.homes(event.child), parents, strict=True))
        return found

    def _new_entries(self, was: Callable[[Entries], Entries]) -> Iterator[tuple[TableOf, int, int]]:
        before, after, parents = self.before.holds, self.after.holds, self._parents
        tables: Iterable[TableOf] = self.renewed
        if self.moves:  # then what a table had may be elsewhere, though it is as it was
            tables = [t for seq in self.after.sequences for t in self.after.homes(seq)]
        for table in tables:
            base, entries = was(before.get(parents.get(table, table), ())), after.get(table, ())
            for i, block in enumerate(entries):
                if block is None or (i < len(base) and base[i] == block):
                    continue
                if (table, i) not in self.adopted:
                    yield table, i, block
