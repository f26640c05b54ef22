"""The calls of the prefix cache: prompts, tokens, marks, lookups, and the reset."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import field, frozen

from kvspec.geometry import blocks_for
from kvspec.kernel.events import Event, Grew, Inherited, Started, Written
from kvspec.kernel.growth import growth, growths
from kvspec.kernel.operation import (
    AnswerShape,
    Expected,
    Need,
    Operation,
    SequenceOperation,
    length_errors,
    whole,
)
from kvspec.kernel.outcome import DONE, Answer, Observation, Outcome
from kvspec.kernel.state import Entries, State
from kvspec.rooms.prefix.events import Looked, Marked, Prompted, Reset, Told
from kvspec.rooms.prefix.facts import facts_of
from kvspec.rooms.prefix.hits import Hit, found, hits
from kvspec.rooms.prefix.identity import Tokens, chain, key_name

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


def _keyed(key: Any) -> Mapping[str, Any]:
    return {} if key is None else {"key": key}


@frozen
class AllocatePrompt(SequenceOperation):
    """`allocate_prompt(seq, tokens, key)`: the blocks before are taken over where they are cached.

    Hits that nobody uses are among the free blocks until they are taken, so they are needed too.
    """

    capability: ClassVar[str] = "prefix"
    method: ClassVar[str] = "allocate_prompt"
    answers: ClassVar[AnswerShape] = "number"

    tokens: Tokens
    key: Any = field(default=None, eq=key_name)

    @property
    def subjects(self) -> tuple[int, ...]:
        """None: the id is a new one."""
        return ()

    @property
    def touched(self) -> tuple[int, ...]:
        """The new sequence."""
        return (self.seq,)

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The key goes by keyword, and only where there is one."""
        return (self.seq, self.tokens), _keyed(self.key)

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is in use, or the prompt is too long."""
        errors = length_errors(len(self.tokens), spec.geometry.max_tokens)
        return errors | {"SequenceExists"} if self.seq in state.sequences else errors

    def verdict(self, state: State, spec: "Specification") -> Expected:
        """What is not a hit is fresh, and a hit without a user is no longer free."""
        available, possible = spec.available(state), list(hits(state, spec, self.tokens, self.key))
        surely = spec.surely_available(state)
        return Expected(
            done=any(hit.least <= available for hit in possible),
            refused=spec.any_refusal or any(hit.most > surely for hit in possible),
            fresh=possible[0].least,
            available=available,
        )

    def asks(self, state: State, spec: "Specification") -> int:
        """The blocks that the prompt fills."""
        return blocks_for(len(self.tokens), spec.geometry.block_size)

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequence starts, with known tokens."""
        yield Started(self.seq, len(self.tokens), None)
        yield Prompted(self.seq, self.tokens, self.key)

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """What was found is written already, whatever the allocator says has been found."""
        if 0 < answer.number <= len(self.tokens):
            yield Inherited(self.seq, answer.number)

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Each hit that there may be, with each block that has the contents; then free blocks."""
        for hit in hits(state, spec, self.tokens, self.key):
            for taken in self._taken(state, spec, hit):
                adopted = {block for block in taken if block is not None}
                free = [b for b in spec.free_blocks(state) if b not in adopted]
                count = blocks_for(len(self.tokens), spec.geometry.block_size) - len(taken)
                if count <= len(free):
                    seen = Observation(tables={state.home(self.seq): (*taken, *free[:count])})
                    answer = Answer("done", value=str(hit.num_tokens))
                    yield spec.result(state, self, Outcome(answer, seen))

    def _taken(self, state: State, spec: "Specification", hit: Hit) -> Iterator[Entries]:
        """The entries that a hit takes over: `None` where the window needs no block."""
        size, facts = spec.geometry.block_size, facts_of(state)
        run = enumerate(chain(self.tokens[: hit.num_tokens], self.key, size))
        yield from product(*([None] * (i < hit.gone) or facts.blocks_of(c) for i, c in run))


@frozen
class AppendTokens(SequenceOperation):
    """`append_tokens(seq, tokens)`: as `append`, but the tokens are known, and written later."""

    capability: ClassVar[str] = "prefix"
    method: ClassVar[str] = "append_tokens"

    tokens: Tokens

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequence that grows."""
        return (self.seq,)

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Both by position."""
        return (self.seq, self.tokens), {}

    def added(self, seq: int) -> int:
        """As many as there are tokens."""
        return len(self.tokens) if seq == self.seq else 0

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown, or the length goes beyond a bound."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return length_errors(len(self.tokens), spec.geometry.max_tokens) | {"UnknownSequence"}
        length = sequence.length + len(self.tokens)
        return length_errors(length, sequence.limit, spec.geometry.max_tokens)

    def needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """As an append of so many tokens."""
        return growth(state, spec, self.seq, len(self.tokens))

    def asks(self, state: State, spec: "Specification") -> int:
        """The blocks that the tokens fill."""
        return blocks_for(len(self.tokens), spec.geometry.block_size)

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The sequence grows by known tokens."""
        yield Told(self.seq, self.tokens)
        yield Grew(self.seq, len(self.tokens))

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """As an append of so many tokens."""
        for answer, tables in growths(state, spec, self.seq, len(self.tokens)):
            yield spec.result(state, self, Outcome(answer, Observation(tables=tables)))


@frozen
class MarkWritten(SequenceOperation):
    """`mark_written(seq, num_tokens)`: the caller has written so far; full blocks are published.

    A mark that is not above the last one does nothing.
    """

    capability: ClassVar[str] = "prefix"
    method: ClassVar[str] = "mark_written"
    writes_first: ClassVar[bool] = True

    num_tokens: Any

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequence."""
        return (self.seq,)

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Both by position."""
        return (self.seq, self.num_tokens), {}

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown, or the mark is not one or is beyond the length."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return length_errors(self.num_tokens) | {"UnknownSequence"}
        return length_errors(self.num_tokens, sequence.length)

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The mark rises, where it is above the last one.

        What equal contents have become one block for reads what was written into that.
        """
        mark, size = whole(self.num_tokens) or 0, spec.geometry.block_size
        yield Marked(self.seq, mark)
        if spec.contract.deduplicates and mark // size:
            yield Inherited(self.seq, mark // size * size)

    def writes(self, state: State, spec: "Specification") -> Written | None:
        """The slots up to the mark that were not written yet."""
        start = state.sequences[self.seq].written
        cells = spec.cells(state, self.seq, start, whole(self.num_tokens) or 0)
        return Written(self.seq, start, cells) if cells else None


@frozen
class Lookup(Operation):
    """`lookup(tokens, key)`: how many leading tokens are cached; changes nothing."""

    capability: ClassVar[str] = "prefix"
    method: ClassVar[str] = "lookup"
    answers: ClassVar[AnswerShape] = "number"
    queries: ClassVar[bool] = True

    tokens: Tokens
    key: Any = field(default=None, eq=key_name)

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The key goes by keyword, and only where there is one."""
        return (self.tokens,), _keyed(self.key)

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """What was doubtful is known now."""
        yield Looked(self.tokens, self.key, answer.number)

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """Whatever lies between what must and what may be found."""
        size, whole_ = spec.geometry.block_size, found(state, spec, self.tokens, self.key)
        for count in range(whole_.must, whole_.may + 1, size):
            answer = Answer("done", value=str(count))
            yield spec.result(state, self, Outcome(answer))


@frozen
class ResetCache(Operation):
    """`reset_prefix_cache()`: all cached contents are forgotten.

    Under the contract `reset_when_used = refused` it is refused while any block is in use.
    """

    capability: ClassVar[str] = "prefix"
    method: ClassVar[str] = "reset_prefix_cache"

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """None."""
        return (), {}

    def verdict(self, state: State, spec: "Specification") -> Expected:
        """Refused while something is in use, if the contract says so; else a success."""
        refused = spec.contract.reset_when_used == "refused" and bool(state.at().held)
        return Expected(done=not refused, refused=refused, available=spec.available(state))

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The cache is empty."""
        yield Reset()

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """There is nothing to choose."""
        yield spec.result(state, self, Outcome(DONE))
