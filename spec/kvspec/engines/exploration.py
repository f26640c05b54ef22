"""How far a search through a small scope has come, and the stories to what it found."""

import time
from array import array
from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from kvspec.engines.ledger import Ledger
from kvspec.engines.scope import Scope
from kvspec.kernel.law import Breach
from kvspec.kernel.operation import Operation
from kvspec.kernel.step import Step
from kvspec.traces.trace import Trace, TraceStep

ALONE = "specification alone"
PRODUCT = "exhausted over the product"
DRIVEN = "every model transition driven once"

CROSS_CHECK = 64
"""Every so manieth transition is judged once more without shortcuts."""

_TELL = 0.25
"""Seconds between two reports of how far the search has come."""


@frozen
class Move:
    """An edge: a call, at which of its checkpoints it fails, or which of its choices is taken."""

    operation: Operation
    fault: int = 0
    choice: int = 0


@define
class Exploration:
    """How far a search has come, and what it found.

    `transitions` counts all edges, among them refusals, wrong calls and questions. `answered`
    counts the states once more for each way in which the last call before them was answered, as
    a model does that keeps the answer. `depth` is the length of the longest of the shortest
    stories. `trace` is the violation with the shortest story, unless the search was `cut` off
    before: by the number of states, or by that of the checkpoints of one call.
    """

    mode: str
    scope: Scope
    most_states: int
    ledger: Ledger = field(factory=Ledger)
    states: int = 0
    transitions: int = 0
    refusals: int = 0
    wrong: int = 0
    waiting: int = 0
    depth: int = 0
    exhausted: bool = False
    cut: str = ""
    """By what the search was cut off, if it was, in the words of the report."""
    seconds: float = 0.0
    trace: Trace | None = None
    told_apart: str = ""
    """By what allocators are told apart inside, in the words of the report."""
    _answers: set[tuple[int, str]] = field(factory=set, repr=False)
    _parents: "array[int]" = field(factory=lambda: array("q"), repr=False)
    _moves: list[tuple[Move, ...]] = field(factory=list, repr=False)
    _depths: "array[int]" = field(factory=lambda: array("q"), repr=False)
    _began: float = field(factory=time.monotonic, repr=False)
    _told: float = field(default=0.0, repr=False)

    @property
    def title(self) -> str:
        """What the search was, in the words of the report: exhausted only where it came to that."""
        if self.exhausted:
            return self.mode
        mode = "over the product" if self.mode == PRODUCT else self.mode
        if self.trace is None:
            return f"NOT EXHAUSTED, {mode}"
        more = ", and a shorter story may be there" if self.cut else ""
        return f"{mode}: a law is broken{more}"

    @property
    def rate(self) -> float:
        """Transitions a second."""
        return self.transitions / self.seconds if self.seconds else 0.0

    @property
    def answered(self) -> int:
        """How many states there are, each with how the last call before it was answered."""
        return len(self._answers)

    def reached(self, parent: int, moves: tuple[Move, ...]) -> None:
        """One state more, by those moves from the state numbered `parent`; by none, the first."""
        depth = self._depths[parent] + len(moves) if moves else 0
        self._parents.append(parent)
        self._moves.append(moves)
        self._depths.append(depth)
        self.depth = max(self.depth, depth)
        self.states += 1

    def length(self, number: int, moves: Sequence[Move] = ()) -> int:
        """How many calls first led to the state of that number, and those moves after it."""
        return self._depths[number] + len(moves)

    def shorter(self, length: int) -> bool:
        """Whether a violation at the end of a story of that length is the shortest so far."""
        return self.trace is None or length < len(self.trace.steps)

    def story(self, number: int, *more: Move) -> list[Move]:
        """The story that first led to the state of that number, and goes on with `more`."""
        moves = list(reversed(more))
        while self._moves[number]:
            moves += reversed(self._moves[number])
            number = self._parents[number]
        return moves[::-1]

    def note(self, step: Step, breaches: tuple[Breach, ...]) -> None:
        """One transition more, which has been judged."""
        self.ledger.note(step, breaches)
        self.refusals += step.answer.kind == "refused"
        self.wrong += bool(step.expected.errors)
        spec = step.spec
        if self.transitions % CROSS_CHECK == 0 and spec.shortcuts:
            assert spec.agrees(step, breaches), f"shortcuts mislead at {step.operation}"
        self.transitions += 1

    def answers(self, number: int, step: Step | None) -> None:
        """The state of that number was reached by that right call; by none, if it is the first."""
        if step is None:
            self._answers.add((number, "none"))
        elif step.expected.errors or step.operation.queries:
            return
        elif step.answer.kind in ("done", "refused"):
            self._answers.add((number, step.answer.kind))

    def goes_on(self, progress: "Progress", waiting: int, number: int) -> bool:
        """Whether the state of that number is to be looked at, which is the next of those waiting.

        Not after a violation, unless there may be a shorter one. Tells how far it has come now
        and then.
        """
        self._note_time(waiting)
        if self.seconds - self._told >= _TELL:
            self._told = self.seconds
            progress(self)
        if not self.shorter(self.length(number) + 1):
            return False
        if self.states > self.most_states:
            self.cut = f"--max-states {self.most_states:,}"
            return False
        return True

    def ended(self, waiting: int) -> None:
        """The search is over, with so many states that were not looked at yet."""
        self._note_time(waiting)
        self.exhausted = not (waiting or self.cut) and self.trace is None

    def _note_time(self, waiting: int) -> None:
        self.seconds, self.waiting = time.monotonic() - self._began, waiting


Progress = Callable[[Exploration], None]


def untold(exploration: Exploration) -> None:
    """Tell nobody."""


def trace_of(
    scope: Scope, name: str, steps: Sequence[TraceStep], breaches: tuple[Breach, ...]
) -> Trace:
    """A story with its outcomes as a trace."""
    spec = scope.spec
    return Trace(
        allocator=name,
        geometry=spec.geometry,
        contract=spec.contract,
        capabilities=tuple(room.capability for room in spec.rooms),
        steps=tuple(steps),
        breaches=breaches,
    )
