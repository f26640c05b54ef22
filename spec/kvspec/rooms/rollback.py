"""The room of rollback: a sequence gives up its last tokens, as after rejected drafts.

That the marks are lowered and that what is let go of becomes free is said elsewhere: other rooms
hear that the sequence was rewound. Here stands what is left of the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen

from kvspec.geometry import Geometry, first_in_window, table_index
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Event, Rewound
from kvspec.kernel.generation import ODD_LENGTHS, length_near_boundary, live, new_ids
from kvspec.kernel.law import Law
from kvspec.kernel.names import entries_text, plural, table_name
from kvspec.kernel.operation import Operation, SequenceOperation, length_errors, whole
from kvspec.kernel.outcome import DONE, Answer, Observation, Outcome
from kvspec.kernel.perturb import other_table
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import Entries, State, TableOf
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


@frozen
class Truncate(SequenceOperation):
    """`truncate(seq, num_tokens)`: the first `num_tokens` tokens stay, and what those need."""

    capability: ClassVar[str] = "rollback"
    method: ClassVar[str] = "truncate"

    num_tokens: Any

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Both by position."""
        return (self.seq, self.num_tokens), {}

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequence that is cut."""
        return (self.seq,)

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown, or the length is beyond the present one, or its window has gone."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return length_errors(self.num_tokens) | {"UnknownSequence"}
        errors = length_errors(self.num_tokens, sequence.length)
        if not errors and any(self._lacks(table, state, spec) for table in state.homes(self.seq)):
            return frozenset({"InvalidLength"})
        return errors

    def _lacks(self, table: TableOf, state: State, spec: "Specification") -> bool:
        """Whether something is gone that the last of the tokens that stay attends to."""
        window, size = spec.geometry.layout[table.group].window, spec.block_size(table)
        length = whole(self.num_tokens) or 0
        if window is None or length == 0:
            return False
        first = table_index(first_in_window(length, window), size)
        return None in state.entries(table)[first : table_index(length - 1, size) + 1]

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequence is rewound, unless it stays as long as it is."""
        length = whole(self.num_tokens) or 0
        if length < state.sequences[self.seq].length:
            yield Rewound(self.seq, length)

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """As many leading entries as the reservation allows, in each group."""
        homes, length = state.homes(self.seq), whole(self.num_tokens) or 0
        for counts in product(*(kept(state, spec, table, length) for table in homes)):
            tables: dict[TableOf, Entries] = {
                table: state.entries(table)[:count]
                for table, count in zip(homes, counts, strict=True)
            }
            if all(spec.well_placed(e, state.blocks(t.place)) for t, e in tables.items()):
                yield spec.result(state, self, Outcome(DONE, Observation(tables=tables)))


def kept(state: State, spec: "Specification", table: TableOf, length: int) -> range:
    """How many leading entries a table may keep whose sequence is cut to `length` tokens."""
    held, sequence = len(state.entries(table)), state.sequences[table.seq]
    if length == sequence.length:
        return range(held, held + 1)
    past = spec.past(evolve(sequence, length=length), held, table.group)
    allowed = spec.holdings(state, past, table.group)
    return range(min(allowed.start, held), min(allowed.stop, held + 1))


# ------------------------------------------------------------------------------ the law


def _cut(step: Step) -> bool:
    if not isinstance(step.operation, Truncate) or not step.done:
        return False
    return any(step.before.entries(table) for table in step.before.homes(step.operation.seq))


def _rollback(step: Step) -> str | None:
    operation = step.operation
    assert isinstance(operation, Truncate)  # `_cut` has seen to it
    for table in step.before.homes(operation.seq):
        why = _not_a_prefix(step, table, whole(operation.num_tokens) or 0)
        if why:
            return why
    return None


def _not_a_prefix(step: Step, table: TableOf, length: int) -> str | None:
    before, after = step.origin(step.before.entries(table)), step.after.entries(table)
    counts = kept(step.before, step.spec, table, length)
    if after == before[: len(after)] and len(after) in counts:
        return None
    had = step.before.sequences[table.seq].length
    tables = f"{entries_text(before)} before and is {entries_text(after)} now"
    if length == had:
        return (
            f"{table_name(table)} had {plural(had, 'token')} and is cut to as many, so nothing may "
            f"change; its table was {tables}."
        )
    left = f"{counts.start}" if len(counts) == 1 else f"{counts.start} to {counts.stop - 1}"
    left = f"just its first {left} entries" if counts[-1] else "no entry"
    return (
        f"{table_name(table)} is cut from {plural(had, 'token')} to {length}, so {left} must be "
        f"left; its table was {tables}."
    )


def _cut_and_grow(geometry: Geometry) -> tuple[Call, ...]:
    """A sequence is cut within a block, to where it is, and to nothing, and grows again."""
    size = geometry.block_size
    return (
        call("allocate", seq=0, num_tokens=size),
        call("append", seq=0, num_tokens=1),
        call("truncate", seq=0, num_tokens=max(1, size - 1)),
        call("append", seq=0, num_tokens=1),
        call("truncate", seq=0, num_tokens=1),
        call("truncate", seq=0, num_tokens=1),
        call("truncate", seq=0, num_tokens=0),
        call("append", seq=0, num_tokens=size),
    )


LAWS = (
    Law(
        "rollback",
        "rollback",
        "Truncating leaves the first entries of the table as they were, as many as the length "
        "that is left needs, and to the present length it changes nothing.",
        "sgl-project/sglang#13826, ml-explore/mlx-lm#1868",
        _cut,
        _rollback,
        (other_table,),
        _cut_and_grow,
    ),
)


# ------------------------------------------------------------------------------ proposals


def _with_tokens(state: State) -> list[int]:
    return [seq for seq in live(state) if state.sequences[seq].length]


def _can_cut(state: State, spec: "Specification") -> bool:
    return bool(_with_tokens(state))


def _in_other_hands(state: State, seq: int) -> bool:
    """Whether anybody else holds a block of `seq`: there a cut is easily done wrong."""
    return any(
        block is not None and (len(at.users[block]) > 1 or block in at.pins or block in at.keeps)
        for table in state.homes(seq)
        for at in (state.at(table.place),)
        for block in state.entries(table)
    )


def _draw(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    seqs = _with_tokens(state)
    held = [seq for seq in seqs if _in_other_hands(state, seq)]
    seq = chooser.pick((*seqs, *held * 2))
    length = state.sequences[seq].length
    group = chooser.pick(spec.groups)
    size = spec.geometry.layout[group].block_size
    last = length // size * size
    near = (length - 1, last, last - 1, last - size + 1, last - size, size, 1, 0, length)
    lengths = [n for n in dict.fromkeys(near) if 0 <= n <= length]
    drawn = Truncate(seq, chooser.integer(0, length, near=lengths))
    if spec.contract.misuse == "callers_duty" and drawn.errors(state, spec):
        return Truncate(seq, length)  # the window of a shorter one has gone
    return drawn


def _cut_within(state: State, spec: "Specification") -> list[int]:
    """The sequences whose next token goes where another is: they were cut within a block."""
    found = []
    for seq in _with_tokens(state):
        table, length = state.home(seq), state.sequences[seq].length
        size, entries = spec.block_size(table), state.entries(table)
        index = table_index(length, size)
        block = entries[index] if index < len(entries) else None
        cells = () if block is None else state.contents.get((table.place, block), ())
        if cells[length % size : length % size + 1] not in ((), (None,)):
            found.append(seq)
    return found


def _can_grow_again(state: State, spec: "Specification") -> bool:
    return bool(_cut_within(state, spec))


def _grow_again(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    seq = chooser.pick(_cut_within(state, spec))
    sequence = state.sequences[seq]
    bounds = [sequence.limit, spec.geometry.max_tokens]
    tokens = length_near_boundary(spec, state, chooser, sequence.length, bounds)
    return spec.operation(call("append", seq=seq, num_tokens=tokens))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    calls: list[Operation] = [Truncate(new_ids(state)[0], 0)]
    for seq in live(state)[-1:]:
        length = state.sequences[seq].length
        calls += [Truncate(seq, n) for n in (length + 1, *ODD_LENGTHS)]
    return calls


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    for seq, sequence in state.sequences.items():
        yield from (Truncate(seq, tokens) for tokens in range(sequence.length + 1))


ROOM = Room(
    capability="rollback",
    methods=("truncate",),
    laws=LAWS,
    operations=(Truncate,),
    proposals=(
        Proposal("truncate", _can_cut, _draw, weight=2),
        Proposal("grow_again", _can_grow_again, _grow_again),
    ),
    weight=3,
    wrong=_wrong,
    every=_every,
)
