"""The room of batches: one call appends to several sequences, as the loop over them would.

There is a second account of growing nowhere: what each sequence of a batch needs is asked of
the kernel's, in the state that the ones before it leave. What a batch adds is all or nothing, and
that the order in which several sharers write decides who keeps the block.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, field, frozen

from kvspec.geometry import Geometry, Place
from kvspec.interface import Copy
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Event, Written
from kvspec.kernel.generation import (
    HUGE,
    length_near_boundary,
    live,
    longest,
    new_ids,
    room_for_another,
    some_live,
)
from kvspec.kernel.growth import growth, growths, shared_and_written
from kvspec.kernel.law import Law
from kvspec.kernel.names import entries_text, table_name
from kvspec.kernel.operation import ANY_ERROR, Array, Need, Operation, whole
from kvspec.kernel.outcome import Answer, Observation, Outcome
from kvspec.kernel.perturb import other_table, table_kept
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import Entries, State, TableOf
from kvspec.kernel.step import Step
from kvspec.validation import as_tuple, each, of

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

LARGEST = 4
"""More sequences in one batch show nothing that four do not."""


@frozen
class AppendBatch(Operation):
    """`append_batch(seqs, num_tokens)`: so many tokens for each, in one call, or for none.

    `num_tokens` is one number for all, or a tuple of one for each. It succeeds exactly if the
    loop of `append` in this order would, for some choice of blocks, and leaves a state that the
    loop could reach.
    """

    capability: ClassVar[str] = "batch"
    method: ClassVar[str] = "append_batch"

    seqs: tuple[int, ...] = field(converter=as_tuple, validator=each(of(int)))
    num_tokens: Any = field(converter=as_tuple)

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arrays, and the number where it is one for all."""
        return (_array(self.seqs), _array(self.num_tokens)), {}

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The tokens for each sequence, as far as both are given."""
        if isinstance(self.num_tokens, tuple):
            return self.num_tokens
        return (self.num_tokens,) * len(self.seqs)

    @property
    def subjects(self) -> tuple[int, ...]:
        """The sequences."""
        return tuple(dict.fromkeys(self.seqs))

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequences that grow."""
        return self.subjects

    def added(self, seq: int) -> int:
        """The length of its part, where that is one."""
        numbers = dict(zip(self.seqs, self.numbers, strict=False))
        return max(0, whole(numbers.get(seq, 0)) or 0)

    def _appends(self, spec: "Specification") -> list[Operation]:
        """The calls of the loop."""
        pairs = zip(self.seqs, self.numbers, strict=False)
        return [spec.operation(call("append", seq=s, num_tokens=n)) for s, n in pairs]

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """A sequence is unknown or given twice, or the numbers are not one each, or no lengths."""
        odd = len(set(self.seqs)) < len(self.seqs) or len(self.numbers) != len(self.seqs)
        if odd or any(append.errors(state, spec) for append in self._appends(spec)):
            return frozenset({ANY_ERROR})
        return frozenset()

    def needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """The most that the loop has taken at any time, beyond what it has let go of by then."""
        taken: dict[Place, int] = {}
        needs: dict[Place, Need] = {}
        for seq, tokens in zip(self.seqs, self.numbers, strict=True):
            for need in growth(state, spec, seq, tokens):
                place, before = need.place, needs.get(need.place, Need(0, place=need.place))
                taken[place] = taken.get(place, 0) + need.fresh - need.freed
                needs[place] = evolve(
                    before,
                    fresh=max(before.fresh, taken[place]),
                    copied=before.copied + need.copied,
                    may_refuse=before.may_refuse or need.may_refuse,
                )
            state = _grown(state, spec, seq, tokens)
        return tuple(needs.values())

    def asks(self, state: State, spec: "Specification") -> int:
        """What the calls of the loop would take."""
        asked = 0
        for append in self._appends(spec):
            if append.errors(state, spec):
                asked += append.asks(state, spec)
            else:
                asked += sum(need.fresh for need in append.needs(state, spec))
        return asked

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequences grow, one after the other."""
        for append in self._appends(spec):
            yield from append.history(state, spec, answer)

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The new slots of each are written."""
        yield from self.all_writes(state, spec)

    def all_writes(self, state: State, spec: "Specification") -> tuple[Written, ...]:
        """What the caller writes after each call of the loop."""
        return tuple(
            written for append in self._appends(spec) for written in append.all_writes(state, spec)
        )

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """What the loop may come to, each once, up to the names of free blocks.

        A copy of a copy may as well be one of the original, since what is written comes later.
        """
        free = {place: frozenset(spec.free_blocks(state, place)) for place in state.places}
        known = set()
        for answer, tables in _loop(state, spec, tuple(zip(self.seqs, self.numbers, strict=True))):
            first = Answer("done", copies=_of_originals(answer.copies))
            name = _unnamed(first, tables, free)
            if name not in known:
                known.add(name)
                yield spec.result(state, self, Outcome(first, Observation(tables=tables)))

    def renamed(self, names: Mapping[int, int]) -> Operation:
        """The same call for other ids."""
        return evolve(self, seqs=tuple(names.get(seq, seq) for seq in self.seqs))


def _array(numbers: Any) -> Any:
    """An array of whole numbers, of which there may be one; what is none stays as it is."""
    if isinstance(numbers, tuple) and all(type(n) is int and abs(n) < 2**63 for n in numbers):
        return Array(numbers)
    return numbers


def _grown(state: State, spec: "Specification", seq: int, tokens: int) -> State:
    """What an append leaves for those after it, as far as it matters for what they need.

    The writer keeps what was shared, and the others get the copy, which has a name that is no
    block's. The other way round is as good, unless something pins the block: then what they let
    go of before their window would not become free.
    """
    if not tokens:
        return state
    for table in state.homes(seq):
        for _, block in shared_and_written(state, spec, table, tokens):
            users = state.at(table.place).users
            copy = min((*users, 0)) - 1
            for user in dict.fromkeys(users[block]):
                if user != table:
                    theirs = (copy if its == block else its for its in state.entries(user))
                    state = state.holding(user, tuple(theirs))
        entries = state.entries(table)
        gone = min(spec.released(state.sequences[seq].length, tokens, table.group), len(entries))
        if gone:
            state = state.holding(table, (*[None] * gone, *entries[gone:]))
    return state


def _loop(
    state: State, spec: "Specification", calls: tuple[tuple[int, Any], ...]
) -> Iterator[tuple[Answer, dict[TableOf, Entries]]]:
    """The copies and changed tables of all ways through the rest of the loop."""
    if not calls:
        yield Answer("done"), {}
        return
    (seq, tokens), *later = calls
    for answer, tables in growths(state, spec, seq, tokens):
        after = state.having(holds={**state.holds, **tables})
        for further, rest in _loop(after, spec, tuple(later)):
            copies = (*answer.copies, *further.copies)
            yield Answer("done", copies=copies), {**tables, **rest}


def _of_originals(copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
    """The same copies, of what those are copies of which are copied again."""
    sources: dict[int, int] = {}
    for source, to in copies:
        sources[to] = sources.get(source, source)
    return tuple(Copy(sources[to], to) for _, to in copies)


def _unnamed(
    answer: Answer, tables: Mapping[TableOf, Entries], free: Mapping[Place, frozenset[int]]
) -> Hashable:
    """An outcome in which the blocks that were free are named in the order of their mention."""
    places = {block: place for place, blocks in free.items() for block in blocks}
    names: dict[int, int] = {}

    def named(block: int | None) -> Hashable:
        if block is None or block not in places:
            return block
        return places[block], names.setdefault(block, len(names))

    order = sorted(tables, key=lambda table: (table.seq, table.group))
    entries = tuple((table, tuple(named(block) for block in tables[table])) for table in order)
    copies = Counter((named(source), named(to)) for source, to in answer.copies)
    return entries, frozenset(copies.items())


# ------------------------------------------------------------------------------ the law


def _grew(step: Step) -> bool:
    operation = step.operation
    return isinstance(operation, AppendBatch) and step.done and bool(step.reserved)


def _batch(step: Step) -> str | None:
    return _not_alone(step) or _not_kept(step) or _too_early(step)


def _not_alone(step: Step) -> str | None:
    """Whether a sequence does not have what it writes into alone, and why that is wrong."""
    for table, indices in step.reserved.items():
        entries = step.after.entries(table)
        for i in indices:
            users = step.after.users(table, entries[i]) if i < len(entries) else ()
            if len(users) > 1:
                others = [user for user in users if user != table]
                whose = f"{table_name(others[0])} has too" if others else "it has twice"
                return (
                    f"after the batch entry {i} of {table_name(table)} is block {entries[i]}, "
                    f"which {whose}: a sequence that grew has what it writes into alone."
                )
    return None


def _turns(step: Step) -> dict[int, int]:
    """When in the loop each sequence of the batch has its turn, of those that grow."""
    seqs = [seq for seq in step.operation.touched if step.operation.added(seq)]
    return {seq: turn for turn, seq in enumerate(seqs)}


def _written(step: Step) -> Iterator[tuple[Place, int]]:
    """The blocks that there were and into which some sequence of the batch writes."""
    found: dict[tuple[Place, int], None] = {}
    for table, indices in step.reserved.items():
        entries = step.before.entries(table)
        for i in indices:
            block = entries[i] if i < len(entries) else None
            if block is not None:
                found[table.place, block] = None
    yield from found


def _not_kept(step: Step) -> str | None:
    """Whether a block that was written into is not where the loop could leave it, and why.

    At the turn of a writer it leaves the block or all the others do. So the bystanders stay
    together; and somebody keeps the block, unless the last to have a turn was alone with it and
    let go of it before its window, or was free to get another as something else holds the block.
    """
    turns = _turns(step)
    for place, block in _written(step):
        before, bystanders, last = step.before.at(place), dict[TableOf, int | None](), (-1, False)
        kept = False
        for table in dict.fromkeys(before.users[block]):
            index, entries = step.before.entries(table).index(block), step.after.entries(table)
            now = entries[index] if index < len(entries) else None
            kept = kept or now == block
            writes = index in step.reserved.get(table, ())
            if table.seq in turns and (writes or now is None):
                last = max(last, (turns[table.seq], now is None))
            else:
                bystanders[table] = now
        names = " and ".join(table_name(table) for table in dict.fromkeys(before.users[block]))
        if len(set(bystanders.values())) > 1:
            return (
                f"block {block} was in the table of {names}; those of them that wrote nothing into "
                f"it must still have one block, and have {_blocks(bystanders.values())}."
            )
        held = block in before.pins or block in before.keeps
        free_to_go = not bystanders and (last[1] or held)
        if not kept and not free_to_go and not step.spec.contract.relocates:
            return (
                f"block {block} was in the table of {names}, and in the loop of appends one of "
                "them would keep it; after the batch none has it there."
            )
    return None


def _blocks(entries: Iterable[int | None]) -> str:
    return entries_text(dict.fromkeys(entries))


def _too_early(step: Step) -> str | None:
    """Whether a sequence got a block that another lets go of only later in the loop, and why."""
    turns = _turns(step)
    if step.spec.contract.relocates:
        return None
    for table, i, block in step.taken:
        had = step.before.entries(table)
        if table.seq not in turns or (i < len(had) and had[i] == block):
            continue
        for user in step.before.users(table, block):
            if turns.get(user.seq, len(turns)) > turns[table.seq]:
                return (
                    f"block {block} was handed to {table_name(table)} (entry {i}), and in the loop "
                    f"of appends {table_name(user)} would still have it then."
                )
    return None


def _append_two(geometry: Geometry) -> tuple[Call, ...]:
    """Two sequences grow in one call, within a block and into another; and none does."""
    size = geometry.block_size
    return (
        call("allocate", seq=0, num_tokens=1),
        call("allocate", seq=1, num_tokens=size),
        call("append_batch", seqs=(0, 1), num_tokens=(1, 1)),
        call("append_batch", seqs=(), num_tokens=()),
        call("append_batch", seqs=(1, 0), num_tokens=1),
    )


LAWS = (
    Law(
        "batch",
        "batch",
        "A batch of appends leaves what the loop over them could leave: each writer has its block "
        "alone, one of those that shared a block keeps it, and the others stay together.",
        "LMCache/LMCache#3130, ggml-org/llama.cpp#18720",
        _grew,
        _batch,
        (other_table, table_kept),
        _append_two,
    ),
)


# ------------------------------------------------------------------------------ proposals


def _sharers(state: State, seq: int) -> list[int]:
    """The sequences on the device that share the last block of `seq`, itself among them."""
    last = state.table(seq)[-1:]
    users = state.users(state.home(seq), last[0]) if last else ()
    return list(dict.fromkeys(user.seq for user in users if state.sequences[user.seq].resident))


def _some(state: State, chooser: Chooser) -> list[int]:
    """Some sequences in some order; those that share a last block come first in half of the draws.

    A write of one of them decides what is left for the others.
    """
    seqs = list(live(state))
    shared = [seq for seq in seqs if len(_sharers(state, seq)) > 1]
    if bool(shared) and chooser.pick((True, False)):
        first = _sharers(state, chooser.pick(shared))
        seqs = [*first, *(seq for seq in seqs if seq not in first)]
        count = chooser.integer(1, min(LARGEST, len(seqs)), near=[min(len(first), LARGEST)])
        chosen = seqs[:count]
    else:
        count = chooser.integer(1, min(LARGEST, len(seqs)))
        chosen = []
        for _ in range(count):
            chosen.append(chooser.pick([seq for seq in seqs if seq not in chosen]))
    return chosen[:: chooser.pick((1, -1))]


def _bounds(state: State, spec: "Specification", seq: int) -> list[int | None]:
    return [state.sequences[seq].limit, spec.geometry.max_tokens]


def _draw(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    if chooser.integer(0, 11) == 11:
        return AppendBatch((), chooser.pick(((), 1, 0)))
    seqs = _some(state, chooser)
    lengths = [state.sequences[seq].length for seq in seqs]
    rooms = [
        min((b - length for b in _bounds(state, spec, seq) if b is not None), default=HUGE)
        for seq, length in zip(seqs, lengths, strict=True)
    ]
    if chooser.pick((True, False)):
        tokens = chooser.pick((1, 1, 2, spec.geometry.block_size, 0))
        return AppendBatch(tuple(seqs), min([tokens, *rooms]))
    numbers = [min(room, chooser.pick((1, 1, 0, 2, spec.geometry.block_size))) for room in rooms]
    how = chooser.pick(("small", "small", "any", "fit", "more"))
    at = len(seqs) - 1
    if how == "any":
        at = chooser.pick(range(len(seqs)))
        bounds = _bounds(state, spec, seqs[at])
        numbers[at] = length_near_boundary(spec, state, chooser, lengths[at], bounds)
    elif how != "small":
        # The last takes all that the others leave, or one token more.
        others = AppendBatch(tuple(seqs[:-1]), tuple(numbers[:-1]))
        needed = sum(n.fresh for n in others.needs(state, spec) if n.place == state.places[0])
        size, left = spec.geometry.block_size, max(0, spec.available(state) - needed)
        most = left * size + -lengths[-1] % size + (how == "more")
        numbers[-1] = min(rooms[-1], most)
    return AppendBatch(tuple(seqs), tuple(numbers))


def _partly_filled(state: State, spec: "Specification") -> list[int]:
    """Those with room in a last block that nobody shares yet, all of it written."""
    size = spec.geometry.block_size
    return [
        seq
        for seq in live(state)
        if state.sequences[seq].length % size
        and state.sequences[seq].written == state.sequences[seq].length
        and len(_sharers(state, seq)) == 1
    ]


def _can_share(state: State, spec: "Specification") -> bool:
    shares = spec.claims("sharing") and room_for_another(state, spec)
    return shares and bool(_partly_filled(state, spec))


def _share(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """A fork, where there are any: a batch over sharers is what is easily wrong."""
    parent = chooser.pick(_partly_filled(state, spec))
    return spec.operation(call("fork", parent=parent, child=chooser.pick(new_ids(state))))


def _sharing(state: State, spec: "Specification") -> list[list[int]]:
    """The sequences, at most so many as a batch has, that share a last block with room in it."""
    size = spec.geometry.block_size
    found = {
        tuple(_sharers(state, seq)) for seq in live(state) if state.sequences[seq].length % size
    }
    return [list(seqs) for seqs in sorted(found) if 1 < len(seqs) <= LARGEST]


def _some_share(state: State, spec: "Specification") -> bool:
    return bool(_sharing(state, spec))


def _draw_sharers(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """All who share a block write into it, with or without others."""
    seqs = chooser.pick(_sharing(state, spec))[:: chooser.pick((1, -1))]
    rooms = [
        bound - state.sequences[seq].length
        for seq in seqs
        for bound in _bounds(state, spec, seq)
        if bound is not None
    ]
    return AppendBatch(tuple(seqs), min([1, *rooms]))


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    unknown = new_ids(state)[0]
    calls: list[Operation] = [AppendBatch((unknown,), 1), AppendBatch((), (1,))]
    for seq in live(state)[-1:]:
        calls += [
            AppendBatch((seq, seq), (1, 1)),
            AppendBatch((seq, seq), 0),
            AppendBatch((seq, unknown), 1),
            AppendBatch((unknown, seq), (0, 1)),
            AppendBatch((seq,), (1, 1)),
            AppendBatch((seq,), ()),
            AppendBatch((seq,), (-1,)),
            AppendBatch((seq,), -1),
        ]
    ids = live(state)[:2]
    return [*calls, AppendBatch(ids, (1,)), AppendBatch(ids, (1, -1))] if len(ids) == 2 else calls


def _every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    most = longest(spec)
    for count in range(len(state.sequences) + 1):
        for seqs in permutations(state.sequences, count):
            lengths = (range(most - state.sequences[seq].length + 1) for seq in seqs)
            yield from (AppendBatch(seqs, numbers) for numbers in product(*lengths))


ROOM = Room(
    capability="batch",
    methods=("append_batch",),
    laws=LAWS,
    operations=(AppendBatch,),
    proposals=(
        Proposal("append_batch", some_live, _draw, weight=2),
        Proposal("share", _can_share, _share, weight=3),
        Proposal("append_sharers", _some_share, _draw_sharers, weight=5),
    ),
    wrong=_wrong,
    every=_every,
)
