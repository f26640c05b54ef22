"""The room of sharing: a child has its parent's tokens, in its parent's blocks.

It has no facts of its own: that several tables hold one block is in the kernel. Blocks that
are written into while shared are the core's business (whoever writes gets them alone); here
stand the laws that say so, and what a fork shares.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen

from kvspec.contract import Contract, Paged
from kvspec.geometry import Geometry, Place, table_index
from kvspec.interface import Copy
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Cloned, Event
from kvspec.kernel.generation import length_near_boundary, live, new_ids, room_for_another
from kvspec.kernel.law import Law
from kvspec.kernel.names import blocks_text, entries_text, plural, sequence_name, table_name
from kvspec.kernel.operation import Need, Operation
from kvspec.kernel.outcome import Answer, Observation, Outcome
from kvspec.kernel.perturb import other_count, other_table, table_kept
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import Entries, State, TableOf
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


@frozen
class Fork(Operation):
    """`fork(parent, child)`: blocks are shared, but for those that the contract copies at once."""

    capability: ClassVar[str] = "sharing"
    method: ClassVar[str] = "fork"

    parent: int
    child: int

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Parent, then child."""
        return (self.parent, self.child), {}

    @property
    def subjects(self) -> tuple[int, ...]:
        """The parent."""
        return (self.parent,)

    @property
    def touched(self) -> tuple[int, ...]:
        """The child."""
        return (self.child,)

    def sensible(self, state: State) -> bool:
        """All slots of the parent are written: a copy of others would say nothing."""
        parent = state.sequences.get(self.parent)
        return parent is None or parent.written == parent.length

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The parent is unknown, or the child's id is in use."""
        unknown = {"UnknownSequence"} if self.parent not in state.sequences else set()
        taken = {"SequenceExists"} if self.child in state.sequences else set()
        return frozenset(unknown | taken)

    def needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """One block for each entry that the contract copies at once."""
        needs = []
        for place in dict.fromkeys(state.places):
            tables = [table for table in state.homes(self.parent) if table.place == place]
            copied = sum(len(copied_at_once(state, spec, table)) for table in tables)
            needs.append(Need(copied, copied=copied, place=place))
        return tuple(needs)

    def asks(self, state: State, spec: "Specification") -> int:
        """The blocks that would be copied at once, of a parent that there is."""
        if self.parent not in state.sequences:
            return 0
        return sum(len(copied_at_once(state, spec, t)) for t in state.homes(self.parent))

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The child has the parent's history."""
        yield Cloned(self.parent, self.child)

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Any free blocks for the entries that are copied; unwritten ones may go unreported."""
        written = state.sequences[self.parent].written
        copied = [(t, i) for t in state.homes(self.parent) for i in copied_at_once(state, spec, t)]
        reports = [
            (True,) if i * spec.block_size(table) < written else (True, False)
            for table, i in copied
        ]
        for reported in product(*reports):
            free = {place: list(spec.free_blocks(state, place)) for place in state.places}
            tables = {t: list(state.entries(t)) for t in state.homes(self.parent)}
            copies = []
            for (table, i), told in zip(copied, reported, strict=True):
                block, fresh = tables[table][i], free[table.place].pop(0)
                tables[table][i] = fresh
                if told:
                    copies.append(Copy(block or 0, fresh))
            seen: dict[TableOf, Entries] = {
                evolve(table, seq=self.child): tuple(entries) for table, entries in tables.items()
            }
            answer = Answer("done", copies=tuple(copies))
            yield spec.result(state, self, Outcome(answer, Observation(tables=seen)))

    def renamed(self, names: Mapping[int, int]) -> Operation:
        """The same call for other ids."""
        parent, child = (names.get(seq, seq) for seq in (self.parent, self.child))
        return evolve(self, parent=parent, child=child)


def copied_at_once(state: State, spec: "Specification", parent: TableOf) -> list[int]:
    """The entries of a parent's table that a fork copies: none, a partly filled one, or all."""
    entries, size = state.entries(parent), spec.block_size(parent)
    there = [i for i, block in enumerate(entries) if block is not None]
    length = state.sequences[parent.seq].length
    match spec.contract.eager_fork:
        case "none":
            return []
        case "tail":
            return [i for i in there if length % size and i == table_index(length, size)]
        case "all":
            return there


# ------------------------------------------------------------------------------ the laws


def _forked(step: Step) -> bool:
    if not isinstance(step.operation, Fork) or not step.done:
        return False
    return any(step.before.entries(table) for table in step.before.homes(step.operation.parent))


def _fork(step: Step) -> str | None:
    operation = step.operation
    assert isinstance(operation, Fork)  # `_forked` has seen to it
    for group in step.spec.groups:
        why = _not_shared(
            step, step.after.home(operation.parent, group), step.after.home(operation.child, group)
        )
        if why:
            return why
    return None


def _not_shared(step: Step, ours: TableOf, theirs: TableOf) -> str | None:
    parent, child = step.after.entries(ours), step.after.entries(theirs)
    copied = copied_at_once(step.before, step.spec, ours)
    tables = (
        f"{table_name(ours)} has {entries_text(parent)} and its child "
        f"{table_name(theirs)} {entries_text(child)}"
    )
    if len(parent) != len(child):
        return f"{tables}: a child has as many entries as its parent."
    for i, (block, its) in enumerate(zip(parent, child, strict=True)):
        if i in copied and block == its:
            return f"{tables}: the contract says that entry {i} is copied at once."
        if i not in copied and block != its:
            return f"{tables}: entry {i} must be one shared block."
    return None


def _shared_written(step: Step) -> list[tuple[TableOf, int, int]]:
    """The entries (table, index, block) with new slots whose block was in another table too."""
    return [
        (table, i, block)
        for table, indices in step.reserved.items()
        for i, block in enumerate(step.before.entries(table))
        if i in indices and block is not None and len(step.before.users(table, block)) > 1
    ]


def _writes_shared(step: Step) -> bool:
    return bool(_shared_written(step))


def _copy_on_write(step: Step) -> str | None:
    for table, i, _ in _shared_written(step):
        entries = step.after.entries(table)
        block = entries[i] if i < len(entries) else None
        others = {user.seq for user in step.after.users(table, block)} - {table.seq}
        if others:
            names = " and ".join(sequence_name(other) for other in sorted(others))
            return (
                f"{table_name(table)} writes into block {block} (entry {i}), which is in the "
                f"table of {names} too: it must be copied first."
            )
    return None


def _let_go_but_used(step: Step, place: Place) -> set[int]:
    """The blocks that some table let go of in this step, and that another table still has."""
    before, after = step.before.at(place).users, step.after.at(place).users
    return {
        block
        for block, holders in before.items()
        if len(holders) > 1 and block in after and len(after[block]) < len(holders)
    }


def _lets_go_of_shared(step: Step) -> bool:
    if step.before.holds is step.after.holds:
        return False
    return any(_let_go_but_used(step, place) for place in step.seen.free)


def _ref_count(step: Step) -> str | None:
    for place, free in step.seen.free.items():
        expected = step.spec.free_counts(step.after, place)[-1]
        used = _let_go_but_used(step, place)
        if 0 < free - expected <= len(used):
            return (
                f"one table let go of {blocks_text(used)}, which another still has, so "
                f"{plural(expected, 'block')} can be free; the allocator says {free}."
            )
    return None


# ------------------------------------------------------------------------------ witnesses


def _fork_and_append(geometry: Geometry) -> tuple[Call, ...]:
    """Both sides of a fork write into the shared tail, and then one of them goes."""
    return (
        call("allocate", seq=0, num_tokens=max(1, geometry.block_size - 1)),
        call("fork", parent=0, child=1),
        call("append", seq=0, num_tokens=1),
        call("append", seq=1, num_tokens=1),
        call("free", seq=0),
    )


def _fork_and_free(geometry: Geometry) -> tuple[Call, ...]:
    """A child lets go of blocks that its parent still has."""
    return (
        call("allocate", seq=0, num_tokens=geometry.block_size),
        call("fork", parent=0, child=1),
        call("free", seq=1),
        call("free", seq=0),
    )


def _copies_all(contract: Contract) -> bool:
    """Nothing is ever shared."""
    return contract.eager_fork == "all"


def _copies_tails(contract: Contract) -> bool:
    """What is shared is full, so nobody writes into it; unless more is reserved than filled."""
    return _copies_all(contract) or (
        contract.eager_fork == "tail" and isinstance(contract.reservation, Paged)
    )


LAWS = (
    Law(
        "fork",
        "sharing",
        "A fork's child shares its parent's blocks, but for those that the contract copies "
        "at once.",
        "Kwon et al., SOSP 2023, section 4.4; vllm-project/vllm#3347",
        _forked,
        _fork,
        (other_table,),
        _fork_and_free,
    ),
    Law(
        "copy-on-write",
        "sharing",
        "A write into a block that another table has is preceded by a copy: whoever writes has it "
        "alone.",
        "Kwon et al., SOSP 2023, section 4.4; Avarok-Cybersecurity/atlas#1193",
        _writes_shared,
        _copy_on_write,
        (table_kept,),
        _fork_and_append,
        idle=_copies_tails,
    ),
    Law(
        "ref-count",
        "sharing",
        "A block that one table lets go of is not free while another table has it.",
        "apache/tvm#16666",
        _lets_go_of_shared,
        _ref_count,
        (other_count,),
        _fork_and_free,
        idle=_copies_all,
    ),
)


# ------------------------------------------------------------------------------ proposals


def _parents(state: State) -> list[int]:
    return [s for s in live(state) if Fork(s, s).sensible(state)]


def _can_fork(state: State, spec: "Specification") -> bool:
    return room_for_another(state, spec) and bool(_parents(state))


def _draw_fork(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    # A partly filled tail is what is easily written into by two.
    parents, size = _parents(state), spec.geometry.block_size
    partly = [seq for seq in parents if state.sequences[seq].length % size]
    return Fork(chooser.pick((*parents, *partly * 3)), chooser.pick(new_ids(state)))


def _sharers(state: State, spec: "Specification") -> list[int]:
    """Those that share a last block with room in it, and may grow."""
    users, most, size = state.at().users, spec.geometry.max_tokens, spec.geometry.block_size
    return [
        seq
        for seq in live(state)
        if state.sequences[seq].length % size
        and len(users.get(state.last_block(seq), ())) > 1
        and state.sequences[seq].length != state.sequences[seq].limit
        and state.sequences[seq].length != most
    ]


def _can_write(state: State, spec: "Specification") -> bool:
    return bool(_sharers(state, spec))


def _draw_write(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Into a shared block, and beyond it: what is easily wrong."""
    seq = chooser.pick(_sharers(state, spec))
    sequence = state.sequences[seq]
    bounds = [sequence.limit, spec.geometry.max_tokens]
    tokens = length_near_boundary(spec, state, chooser, sequence.length, bounds)
    return spec.operation(call("append", seq=seq, num_tokens=max(1, tokens)))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    unknown, other = new_ids(state)[:2]
    ids = live(state)
    calls: list[Operation] = [Fork(unknown, other)]
    return calls + ([Fork(ids[0], ids[-1]), Fork(unknown, ids[0])] if ids else [])


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    yield from (Fork(parent, child) for parent in state.sequences for child in ids)


ROOM = Room(
    capability="sharing",
    methods=("fork",),
    laws=LAWS,
    operations=(Fork,),
    proposals=(
        Proposal("fork", _can_fork, _draw_fork, weight=4),
        Proposal("write_shared", _can_write, _draw_write, weight=8),
    ),
    weight=3,
    wrong=_wrong,
    every=_every,
)
