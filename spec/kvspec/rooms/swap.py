"""The room of swapping: a sequence moves to the host as a whole, and back.

The host is a place like another: its blocks are held by the tables there. So conservation,
no-overlap and read-back hold on the host as they do on the device, without a word here. Here
stand where a sequence is, and which copies take it there.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from attrs import evolve, frozen

from kvspec.contract import Geometries
from kvspec.geometry import HOST, Geometry, Place
from kvspec.interface import Copy
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Event, Moved
from kvspec.kernel.generation import live, new_ids, room_for_another, some_live
from kvspec.kernel.law import Law
from kvspec.kernel.names import entries_text, plural, sequence_name, table_name
from kvspec.kernel.operation import ANY_ERROR, AnswerShape, Need, Operation, SequenceOperation
from kvspec.kernel.outcome import Answer, Observation, Outcome
from kvspec.kernel.perturb import other_copies, other_count, other_table, with_table
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import Entries, State, TableOf, table_of
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

Pair = tuple[int, int]


# ------------------------------------------------------------------------------ operations


@frozen
class _Swap(SequenceOperation):
    """A move of a whole sequence to the other tier."""

    capability: ClassVar[str] = "swap"

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequence that moves."""
        return (self.seq,)

    @classmethod
    def goes_to(cls, state: State, group: int) -> Place:
        """Where the blocks of a group go."""
        return HOST if cls.tiers[1] == "host" else state.places[group]

    def needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """A fresh block there for each entry that has a block here."""
        return tuple(
            Need(len(_present(state.entries(table))), place=self.goes_to(state, table.group))
            for table in state.homes(self.seq)
        )

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequence moves."""
        yield Moved(self.seq, self.tiers[1])

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Any free blocks there; copies of what was never written may be left out."""
        tables: dict[TableOf, Entries] = {}
        needed, idle = [], []
        for table in state.homes(self.seq):
            place = self.goes_to(state, table.group)
            free = iter(spec.free_blocks(state, place))
            before = state.entries(table)
            after = tuple(None if block is None else next(free) for block in before)
            tables[table] = ()
            tables[table_of(self.seq, table.group, place)] = after
            needed += _pairs(state, spec, table, before, after)[0]
            idle += _pairs(state, spec, table, before, after)[1]
        for told in product((True, False), repeat=len(idle)):
            pairs = [*needed, *(pair for pair, one in zip(idle, told, strict=True) if one)]
            answer = Answer("done", copies=tuple(Copy(*pair) for pair in pairs))
            yield spec.result(state, self, Outcome(answer, Observation(tables=tables)))


@frozen
class SwapOut(_Swap):
    """`swap_out(seq)`: the copies name (device, host)."""

    method: ClassVar[str] = "swap_out"
    tiers: ClassVar[tuple[str, str]] = ("device", "host")


@frozen
class SwapIn(_Swap):
    """`swap_in(seq)`: the copies name (host, device)."""

    method: ClassVar[str] = "swap_in"
    tiers: ClassVar[tuple[str, str]] = ("host", "device")
    everywhere: ClassVar[bool] = True

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown; a sequence that is on the device is outside the conventions."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return frozenset({"UnknownSequence"})
        return frozenset({ANY_ERROR}) if sequence.resident else frozenset()


@frozen
class ShowHostTable(SequenceOperation):
    """`host_block_table(seq)` as a call of its own: how it answers for an id not in use."""

    capability: ClassVar[str] = "swap"
    method: ClassVar[str] = "host_block_table"
    answers: ClassVar[AnswerShape] = "table"
    queries: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True


def _present(entries: Entries) -> list[int]:
    return [block for block in entries if block is not None]


def _pairs(
    state: State, spec: "Specification", table: TableOf, before: Entries, after: Entries
) -> tuple[list[Pair], list[Pair]]:
    """The copies that a move takes, from the old block of each entry to its new one.

    First those that must be made, then those of blocks into which nothing was written.
    """
    size, cells = spec.block_size(table), state.sequences[table.seq].cells
    needed: list[Pair] = []
    idle: list[Pair] = []
    for i, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not None and new is not None:
            written = any(cell is not None for cell in cells[i * size : (i + 1) * size])
            (needed if written else idle).append((old, new))
    return needed, idle


# ------------------------------------------------------------------------------ the laws


def _away(state: State) -> list[int]:
    """The sequences that are swapped out."""
    return [seq for seq, sequence in state.sequences.items() if not sequence.resident]


def _somewhere(step: Step) -> bool:
    return any(table.seq in step.after.sequences for table in step.seen.tables)


def _residence(step: Step) -> str | None:
    for table, entries in step.after.tables():
        tier = step.after.sequences[table.seq].tier
        if table.place.tier != tier and entries:
            return (
                f"{sequence_name(table.seq)} is on the {tier}, so its table on the "
                f"{table.place.tier} must be empty; it is {entries_text(entries)}."
            )
    for seq, was, now in _moved(step):
        before, after = step.before.entries(was), step.after.entries(now)
        moved = (
            f"{sequence_name(seq)} moved with {entries_text(before)} from the {was.place.tier}, "
            f"and has {entries_text(after)} on the {now.place.tier}"
        )
        if len(before) != len(after):
            return f"{moved}: it must have {plural(len(before), 'entry')} there, as here."
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            if (old is None) != (new is None):
                must = "was released, and stays so" if old is None else "must have a block there"
                return f"{moved}: entry {i} {must}."
    return None


def _moved(step: Step) -> Iterator[tuple[int, TableOf, TableOf]]:
    """The tables that went to another tier: where they were and where they are."""
    for seq, sequence in step.after.sequences.items():
        was = step.before.sequences.get(seq)
        if was is not None and was.tier != sequence.tier:
            for here, there in zip(step.before.homes(seq), step.after.homes(seq), strict=True):
                yield seq, here, there


def _in_both_tiers(step: Step) -> Iterator[Outcome]:
    """A sequence that is or was swapped out, or was to be, is shown in the other tier too."""
    away = {*_away(step.before), *_away(step.after)}
    if isinstance(step.operation, _Swap):
        away.add(step.operation.seq)
    for table, entries in step.seen.tables.items():
        sequence = step.after.sequences.get(table.seq)
        blocks = step.after.blocks(table.place)
        if sequence and table.seq in away and table.place.tier != sequence.tier and blocks:
            yield with_table(step, table, (*entries, blocks[0]))


def _swaps(step: Step) -> bool:
    return isinstance(step.operation, _Swap)


def _swap(step: Step) -> str | None:
    return _wrong_copies(step) if step.done else _half_done(step)


def _wrong_copies(step: Step) -> str | None:
    reported = [(copy.source, copy.destination) for copy in step.copies]
    explained: list[Pair] = []
    for _, was, now in _moved(step):
        before, after = step.before.entries(was), step.after.entries(now)
        needed, idle = _pairs(step.before, step.spec, was, before, after)
        explained += [*needed, *idle]
        for old, new in needed:
            # A store has done its copies itself; what it holds is read.
            if (old, new) not in reported and step.spec.shadowed:
                return (
                    f"block {old} of the {was.place.tier} went to block {new} of the "
                    f"{now.place.tier}, and no copy from the one to the other was reported: what "
                    f"{sequence_name(was.seq)} wrote there is lost."
                )
    source, to = step.operation.tiers
    for i, (old, new) in enumerate(reported):
        pair = f"a copy of block {old} of the {source} to block {new} of the {to}"
        if (old, new) not in explained:
            return f"{pair} was reported, but no entry went from the one to the other."
        if (old, new) in reported[:i]:
            return f"{pair} was reported twice."
    return None


def _half_done(step: Step) -> str | None:
    operation = step.operation
    assert isinstance(operation, _Swap)  # `_swaps` has seen to it
    if operation.seq not in step.before.sequences:
        return None
    for table in step.before.homes(operation.seq):  # elsewhere there are none: `_residence`
        before, after = step.before.entries(table), step.after.entries(table)
        if before != after:
            return (
                f"the swap did not succeed, so the table of {table_name(table)} must still be "
                f"{entries_text(before)}; it is {entries_text(after)}."
            )
    for place, free in step.seen.free.items():
        expected = step.spec.free_counts(step.after, place)
        if free not in expected:
            return (
                f"the swap did not succeed, so {plural(expected[-1], 'block')} of the {place} "
                f"must still be free; the allocator says {free}."
            )
    return None


def _out_and_in(geometry: Geometry) -> tuple[Call, ...]:
    """A sequence of two blocks goes, another uses the device meanwhile, and it comes back."""
    tokens = min(geometry.block_size + 1, geometry.capacity)
    return (
        call("allocate", seq=0, num_tokens=tokens),
        call("swap_out", seq=0),
        call("allocate", seq=1, num_tokens=1),
        call("free", seq=1),
        call("swap_in", seq=0),
        call("append", seq=0, num_tokens=1),
    )


LAWS = (
    Law(
        "residence",
        "swap",
        "A sequence is in one tier: swapped out it has all its entries on the host and none on "
        "the device, else the other way round.",
        "Kwon et al., SOSP 2023, section 4.5; NVIDIA/TensorRT-LLM#12834",
        _somewhere,
        _residence,
        (_in_both_tiers,),
        _out_and_in,
    ),
    Law(
        "swap",
        "swap",
        "A swap is all or nothing, and one copy takes what was written in each block to the block "
        "that its entry has in the other tier.",
        "Kwon et al., SOSP 2023, section 4.5; sgl-project/sglang#27108, vllm-project/vllm#8824",
        _swaps,
        _swap,
        (other_copies, other_table, other_count),
        _out_and_in,
    ),
)


# ------------------------------------------------------------------------------ proposals


def _draw_out(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    # What others have too, what is in flight, and what is filled in part is easily wrong.
    ids, size = live(state), spec.geometry.block_size
    occupancy = state.at()
    delicate = [
        seq
        for seq in ids
        if state.sequences[seq].length % size
        or any(
            block in occupancy.pins or len(occupancy.users[block]) > 1
            for block in _present(state.table(seq))
        )
    ]
    return SwapOut(chooser.pick((*ids, *delicate, *delicate)))


def _slid(state: State, seqs: Sequence[int]) -> list[int]:
    """Those of which entries were released: these need no block, neither there nor here."""
    return [seq for seq in seqs if None in state.table(seq)]


def _some_slid(state: State, spec: "Specification") -> bool:
    return bool(_slid(state, live(state)))


def _draw_slid_out(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return SwapOut(chooser.pick(_slid(state, live(state))))


def _some_away(state: State, spec: "Specification") -> bool:
    return bool(_away(state))


def _draw_in(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    away = _away(state)
    return SwapIn(chooser.pick((*away, *_slid(state, away) * 3)))


def _can_fill(state: State, spec: "Specification") -> bool:
    return room_for_another(state, spec) and _some_away(state, spec)


def _draw_fill(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Another sequence, which leaves just the blocks for one to come back, or one too few."""
    away, size = _away(state), spec.geometry.block_size
    slid = _slid(state, away)
    seq = chooser.pick((*away, *slid * 3))
    spare = spec.available(state) - len(_present(state.table(seq)))
    most = spec.geometry.max_tokens
    tokens = max(0, spare + chooser.pick((0, 0, 1) if seq in slid else (1, 1, 0))) * size
    tokens = tokens if most is None else min(tokens, most)
    return spec.operation(call("allocate", seq=chooser.pick(new_ids(state)), num_tokens=tokens))


def _may_be_wrong(state: State, spec: "Specification") -> bool:
    return spec.contract.misuse == "raises" and bool(_away(state))


def _draw_not_resident(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Anything that another room proposes, of a sequence that is swapped out instead."""
    away = chooser.pick(_away(state))
    others = [
        proposal
        for room in spec.rooms
        if room.capability != ROOM.capability
        for proposal in room.proposals
        if proposal.possible(state, spec)
    ]
    for _ in range(3 if others else 0):  # many are not about a sequence that there is
        drawn = chooser.pick(others).draw(state, spec, chooser)
        if drawn.subjects and not drawn.everywhere:
            return drawn.renamed({drawn.subjects[-1]: away})
    return spec.operation(call("append", seq=away, num_tokens=1))


def _wrong(state: State, spec: "Specification") -> Sequence[Operation]:
    unknown = new_ids(state)[0]
    calls: list[Operation] = [SwapOut(unknown), SwapIn(unknown), ShowHostTable(unknown)]
    for seq in _away(state)[-1:]:
        others = (call(method, seq=seq, num_tokens=1) for method in ("append", "allocate"))
        calls += [SwapOut(seq), *map(spec.operation, others)]
    return calls


def _guard(state: State, operation: Operation) -> frozenset[str]:
    """No other call is about a sequence that is swapped out."""
    if operation.everywhere:
        return frozenset()
    subjects = (state.sequences.get(seq) for seq in operation.subjects)
    away = any(sequence is not None and not sequence.resident for sequence in subjects)
    return frozenset({"NotResident"}) if away else frozenset()


def _has_a_host(geometry: Geometry) -> bool:
    return geometry.num_host_blocks > 0  # which a geometry with groups has not


def _with_a_host(geometry: Geometry, allowed: Geometries, chooser: Chooser | None) -> Geometry:
    """As many host blocks as on the device; drawn, often so few that swapping out is refused."""
    if geometry.groups is not None:
        return geometry
    most = geometry.num_blocks
    sizes = (most, most // 2 or 1, min(2, most), 1)
    return evolve(geometry, num_host_blocks=chooser.pick(sizes) if chooser else most)


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    yield from (move(seq) for seq in state.sequences for move in (SwapOut, SwapIn))


ROOM = Room(
    capability="swap",
    methods=("swap_out", "swap_in", "host_block_table", "num_free_host_blocks"),
    laws=LAWS,
    applies=_has_a_host,
    needed_by=_has_a_host,
    shaped=_with_a_host,
    views={"host": ("host_block_table", "num_free_host_blocks")},
    operations=(SwapOut, SwapIn, ShowHostTable),
    guard=_guard,
    proposals=(
        Proposal("swap_out", some_live, _draw_out),
        Proposal("slid_out", _some_slid, _draw_slid_out, weight=4),
        Proposal("swap_in", _some_away, _draw_in, weight=4),
        Proposal("fill", _can_fill, _draw_fill, weight=3),
        Proposal("not_resident", _may_be_wrong, _draw_not_resident, weight=2),
    ),
    weight=3,
    wrong=_wrong,
    every=_every,
)
