"""The room of sharing: a child has its parent's tokens, in its parent's blocks.

It has no facts of its own: that several tables hold one block is in the kernel. Blocks that
are written into while shared are the core's business (whoever writes gets them alone); here
stand the laws that say so, and what a fork shares.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen

from kvspec.contract import Contract, Paged
from kvspec.geometry import Geometry, table_index
from kvspec.interface import Copy
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Cloned, Event
from kvspec.kernel.generation import live, new_ids, room_for_another, some_live
from kvspec.kernel.law import Law
from kvspec.kernel.names import blocks_text, entries_text, plural, sequence_name
from kvspec.kernel.operation import Need, Operation
from kvspec.kernel.outcome import Answer, Observation, Outcome
from kvspec.kernel.perturb import other_count, other_table, table_kept
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
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

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The parent is unknown, or the child's id is in use."""
        unknown = {"UnknownSequence"} if self.parent not in state.sequences else set()
        taken = {"SequenceExists"} if self.child in state.sequences else set()
        return frozenset(unknown | taken)

    def need(self, state: State, spec: "Specification") -> Need:
        """One block for each entry that the contract copies at once."""
        copied = len(copied_at_once(state, spec, self.parent))
        return Need(copied, copied=copied)

    def asks(self, state: State, spec: "Specification") -> int:
        """The blocks that would be copied at once, of a parent that there is."""
        known = self.parent in state.sequences
        return len(copied_at_once(state, spec, self.parent)) if known else 0

    def history(self, state: State, spec: "Specification") -> Iterator[Event]:
        """The child has the parent's history."""
        yield Cloned(self.parent, self.child)

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Any free blocks for the entries that are copied; unwritten ones may go unreported."""
        entries, size = copied_at_once(state, spec, self.parent), spec.geometry.block_size
        written = state.sequences[self.parent].written
        reports = [(True,) if i * size < written else (True, False) for i in entries]
        for reported in product(*reports):
            free, table = list(spec.free_blocks(state)), list(state.table(self.parent))
            copies = []
            for i, copied in zip(entries, reported, strict=True):
                block, table[i] = table[i], free.pop(0)
                if copied:
                    copies.append(Copy(block or 0, table[i] or 0))
            seen = Observation(tables={self.child: tuple(table)})
            yield spec.result(state, self, Outcome(Answer("done", copies=tuple(copies)), seen))

    def renamed(self, names: Mapping[int, int]) -> Operation:
        """The same call for other ids."""
        parent, child = (names.get(seq, seq) for seq in (self.parent, self.child))
        return evolve(self, parent=parent, child=child)


def copied_at_once(state: State, spec: "Specification", parent: int) -> range:
    """The entries of `parent` that a fork copies: none, a partly filled one, or all."""
    entries, size = len(state.table(parent)), spec.geometry.block_size
    length = state.sequences[parent].length
    match spec.contract.eager_fork:
        case "none":
            return range(0)
        case "tail":
            tail = table_index(length, size)
            return range(tail, tail + 1) if length % size and tail < entries else range(0)
        case "all":
            return range(entries)


# ------------------------------------------------------------------------------ the laws


def _forked(step: Step) -> bool:
    return (
        isinstance(step.operation, Fork)
        and step.done
        and not step.expected.errors
        and bool(step.before.table(step.operation.parent))
    )


def _fork(step: Step) -> str | None:
    operation = step.operation
    assert isinstance(operation, Fork)  # `_forked` has seen to it
    parent = step.after.table(operation.parent)
    child = step.after.table(operation.child)
    copied = copied_at_once(step.before, step.spec, operation.parent)
    tables = (
        f"{sequence_name(operation.parent)} has {entries_text(parent)} and its child "
        f"{sequence_name(operation.child)} {entries_text(child)}"
    )
    if len(parent) != len(child):
        return f"{tables}: a child has as many entries as its parent."
    for i, (ours, theirs) in enumerate(zip(parent, child, strict=True)):
        if i in copied and ours == theirs:
            return f"{tables}: the contract says that entry {i} is copied at once."
        if i not in copied and ours != theirs:
            return f"{tables}: entry {i} must be one shared block."
    return None


def _shared_written(step: Step) -> list[tuple[int, int, int]]:
    """The written entries (seq, index, block) whose block was in more than one table before."""
    users = step.before.at().users
    return [
        (seq, i, block)
        for seq, entries in step.written_entries.items()
        for i, block in enumerate(step.before.table(seq))
        if i in entries and block is not None and len(users.get(block, ())) > 1
    ]


def _writes_shared(step: Step) -> bool:
    return bool(_shared_written(step))


def _copy_on_write(step: Step) -> str | None:
    for seq, i, _ in _shared_written(step):
        table = step.after.table(seq)
        block = table[i] if i < len(table) else None
        others = {
            holder.seq
            for holder in step.after.at().users.get(block if block is not None else -1, ())
        } - {seq}
        if others:
            names = " and ".join(sequence_name(other) for other in sorted(others))
            return (
                f"{sequence_name(seq)} writes into block {block} (entry {i}), which is in the "
                f"table of {names} too: it must be copied first."
            )
    return None


def _let_go_but_used(step: Step) -> set[int]:
    """The blocks that some table let go of in this step, and that another table still has."""
    before, after = step.before.at().users, step.after.at().users
    return {
        block
        for block, holders in before.items()
        if block in after and len(after[block]) < len(holders)
    }


def _lets_go_of_shared(step: Step) -> bool:
    return step.seen.free is not None and bool(_let_go_but_used(step))


def _ref_count(step: Step) -> str | None:
    free, expected = step.seen.free, step.spec.available(step.after)
    used = _let_go_but_used(step)
    if free is None or not 0 < free - expected <= len(used):
        return None
    return (
        f"one table let go of {blocks_text(used)}, which another still has, so "
        f"{plural(expected, 'block')} can be free; the allocator says {free}."
    )


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


def _can_fork(state: State, spec: "Specification") -> bool:
    return some_live(state, spec) and room_for_another(state, spec)


def _draw_fork(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return Fork(chooser.pick(live(state)), chooser.pick(new_ids(state)))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    unknown, other = new_ids(state)[:2]
    ids = live(state)
    calls: list[Operation] = [Fork(unknown, other)]
    return calls + ([Fork(ids[0], ids[-1]), Fork(unknown, ids[0])] if ids else [])


ROOM = Room(
    capability="sharing",
    methods=("fork",),
    laws=LAWS,
    operations=(Fork,),
    proposals=(Proposal("fork", _can_fork, _draw_fork, weight=2),),
    wrong=_wrong,
)
