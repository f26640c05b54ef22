"""What may be called, and what the specification expects of the answer.

An operation is a frozen value: the method, its arguments, and what it means. It says which
errors apply, how many fresh blocks it needs, and which events a success stands for. It does
not say which blocks are handed out: that is the allocator's choice.
"""

from collections.abc import Iterator, Mapping
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import evolve, frozen

from kvspec.geometry import DEVICE, Place
from kvspec.kernel.events import Event, Written
from kvspec.kernel.outcome import DONE, Answer, Outcome
from kvspec.kernel.state import Entries, State

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

AnswerShape = Literal["copies", "handle", "admission", "table", "number", "blocks", "nothing"]

ANY_ERROR = "AllocatorError"
"""Where any error of the interface will do."""


@frozen
class Handle:
    """Stands for the opaque value that the allocator answered to the operation named `name`."""

    name: int


@frozen
class Values:
    """Stands for `num_tokens` rows of a store's width, all zeros."""

    num_tokens: int


@frozen
class Query:
    """Stands for the query of zeros, in the shape of a store's heads."""


@frozen
class Array:
    """Stands for an array of whole numbers; a tuple stands for the caller's own list of them."""

    numbers: tuple[int, ...]


@frozen(slots=False)
class Need:
    """How many fresh blocks of a place an operation takes, the fewest that the contract allows.

    So many of them as `copied` are for entries that are shared and written into, and so many
    blocks as `freed` become free in the same call before any is taken, as `doubtful` of which
    perhaps do not. Where placement matters, `held` is the extent that grows, and `target` the size
    of the one that the sequence would move to, if it may move.
    """

    fresh: int
    copied: int = 0
    freed: int = 0
    doubtful: int = 0
    held: Entries = ()
    target: int = 0
    place: Place = DEVICE


_NOTHING = (Need(0),)
_NO_ERRORS: frozenset[str] = frozenset()
_INVALID_LENGTH = frozenset({"InvalidLength"})


@frozen(slots=False)
class Expected:
    """What the answer may be.

    `errors` are the misuse errors of which one must be raised, if any. `done` and `refused`
    say whether success and refusal are allowed, `fresh` and `available` are the blocks of `place`
    that decide it. After an injected fault nothing is allowed but the fault itself.
    """

    errors: frozenset[str] = frozenset()
    done: bool = True
    refused: bool = False
    fresh: int = 0
    available: int = 0
    place: Place = DEVICE
    injected: bool = False

    def allows(self, answer: Answer) -> bool:
        """Whether the specification allows `answer`, apart from its copies and its value."""
        match answer.kind:
            case "injected":
                return self.injected
            case _ if self.injected:
                return False
            case "done":
                return self.done
            case "refused":
                return self.refused
            case "error":
                return answer.value in self.errors or ANY_ERROR in self.errors
            case _:
                return False


@frozen
class Operation:
    """One call of the interface. Rooms define the kinds."""

    capability: ClassVar[str]
    method: ClassVar[str]
    answers: ClassVar[AnswerShape] = "copies"
    queries: ClassVar[bool] = False
    """Whether it only asks: nothing may change."""
    everywhere: ClassVar[bool] = False
    """Whether it makes sense wherever in memory its subjects are."""
    writes_first: ClassVar[bool] = False
    """Whether the caller writes before the call, and not after it."""
    tiers: ClassVar[tuple[str, str]] = ("device", "device")
    """From which tier of memory to which its copies go."""

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Positional and keyword arguments; a `Handle`, `Values` or `Query` stands for a value."""
        raise NotImplementedError

    @property
    def handle(self) -> int | None:
        """The name under which the opaque answer is kept, for operations that give one."""
        return None

    @property
    def subjects(self) -> tuple[int, ...]:
        """The sequences that must exist for the call to make sense."""
        return ()

    @property
    def touched(self) -> tuple[int, ...]:
        """The sequences that the call starts, changes or ends; all others are bystanders."""
        return ()

    def added(self, seq: int) -> int:
        """By how many tokens a success makes `seq` longer."""
        return 0

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The errors that apply; where there are several, any of them may be raised."""
        return frozenset()

    def needs(self, state: State, spec: "Specification") -> tuple[Need, ...]:
        """The fresh blocks that a success takes, by place; asked only where no error applies."""
        return ()

    def verdict(self, state: State, spec: "Specification") -> Expected:
        """Whether a right call must succeed or be refused; asked only where no error applies."""
        takes = self.needs(state, spec)
        needs = takes or _NOTHING
        short = [need for need in needs if not spec.fits(state, need, need.fresh + len(need.held))]
        decides = (short or needs)[0]
        refused = any(not spec.surely_fits(state, need) for need in needs)
        return Expected(
            _NO_ERRORS,
            not short,
            refused or (bool(takes) and spec.any_refusal),
            decides.fresh,
            spec.available(state, decides.place) + decides.freed,
            place=decides.place,
        )

    def sensible(self, state: State) -> bool:
        """Whether a caller would ever do this, so that the conventions say what it means."""
        return True

    def asks(self, state: State, spec: "Specification") -> int:
        """The blocks that a wrong call would take if it were right, as far as one can say."""
        return 0

    def history(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The events of a success that come before the tables are looked at."""
        yield from ()

    def effects(self, state: State, spec: "Specification", answer: Answer) -> Iterator[Event]:
        """The events of a success that come after the tables were looked at."""
        yield from ()

    def writes(self, state: State, spec: "Specification") -> Written | None:
        """What the caller writes with a right call, if anything."""
        return None

    def all_writes(self, state: State, spec: "Specification") -> tuple[Written, ...]:
        """All of that, where a call is about several sequences."""
        written = self.writes(state, spec)
        return () if written is None else (written,)

    def value(self, state: State, spec: "Specification") -> str:
        """What a query must answer; empty where that is not one thing."""
        return ""

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """The successes that are allowed, up to the names of the blocks that are free."""
        raise NotImplementedError

    def renamed(self, names: Mapping[int, int]) -> "Operation":
        """The same call with sequences renamed."""
        return self


@frozen
class SequenceOperation(Operation):
    """A call on one sequence that must be in use, given first by its id."""

    seq: int

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The id."""
        return (self.seq,), {}

    @property
    def subjects(self) -> tuple[int, ...]:
        """The sequence."""
        return (self.seq,)

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown."""
        return _NO_ERRORS if self.seq in state.sequences else frozenset({"UnknownSequence"})

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """There is nothing to choose, unless the kind says otherwise."""
        yield spec.result(state, self, Outcome(DONE))

    def renamed(self, names: Mapping[int, int]) -> "Operation":
        """The same call for another id."""
        return evolve(self, seq=names.get(self.seq, self.seq))


def length_errors(num_tokens: object, *bounds: int | None) -> frozenset[str]:
    """`InvalidLength` for what is not an integer, is negative, or is beyond one of `bounds`.

    >>> length_errors(3, None, 4), sorted(length_errors(5, None, 4)), sorted(length_errors("3"))
    (frozenset(), ['InvalidLength'], ['InvalidLength'])
    """
    tokens = whole(num_tokens)
    if tokens is None or tokens < 0:
        return _INVALID_LENGTH
    for bound in bounds:
        if bound is not None and tokens > bound:
            return _INVALID_LENGTH
    return _NO_ERRORS


def whole(value: object) -> int | None:
    """`value` as an int, or `None` where `operator.index` has no answer."""
    try:
        return index(value)  # type: ignore[arg-type]  # asking is the test
    except TypeError:
        return None


def expect(operation: Operation, state: State, spec: "Specification") -> Expected:
    """What the answer to `operation` may be in `state`."""
    errors = operation.errors(state, spec) | spec.guards(state, operation)
    if errors:
        # Where several errors apply any may be raised, and too few free blocks are one more.
        available = spec.available(state)
        short = operation.asks(state, spec) > available
        return Expected(errors=errors, done=False, refused=short, available=available)
    return operation.verdict(state, spec)
