"""The call of the room, and the loop of appends that it stands for."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, field, frozen

from kvspec.geometry import Place
from kvspec.interface import Copy
from kvspec.kernel.events import Event, Written
from kvspec.kernel.growth import growth, growths, shared_and_written
from kvspec.kernel.operation import ANY_ERROR, Array, Need, Operation, whole
from kvspec.kernel.outcome import Answer, Observation, Outcome
from kvspec.kernel.script import call
from kvspec.kernel.state import Entries, State, TableOf
from kvspec.validation import as_tuple, each, of

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


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
        feared: dict[Place, int] = {}  # the same, if all is kept of which it is in doubt
        needs: dict[Place, Need] = {}
        for seq, tokens in zip(self.seqs, self.numbers, strict=True):
            for need in growth(state, spec, seq, tokens):
                place, before = need.place, needs.get(need.place, Need(0, place=need.place))
                taken[place] = taken.get(place, 0) + need.fresh - need.freed
                feared[place] = feared.get(place, 0) + need.fresh - need.freed + need.doubtful
                fresh = max(before.fresh, taken[place])
                needs[place] = evolve(
                    before,
                    fresh=fresh,
                    copied=before.copied + need.copied,
                    doubtful=max(before.fresh + before.doubtful, feared[place]) - fresh,
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
        kept = spec.slid(state, table, tokens)
        if kept != state.entries(table):
            state = state.holding(table, kept)
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
