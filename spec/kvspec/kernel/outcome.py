"""What one call gave: the answer, and what was looked at afterwards.

An observation is partial. What is absent was *not looked at*, which never means that it was
unchanged. What to look at after an operation is a `Look`, and is part of the trace, since a
query may disturb a bad allocator.
"""

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from kvspec.interface import Copy
from kvspec.kernel.state import Cell, Entries

AnswerKind = Literal["done", "refused", "error", "raised", "nonsense", "hang"]


@frozen
class Answer:
    """How a call ended.

    `done` (with its `copies` and, for a query, its `value`), `refused` (not enough blocks),
    `error` (an error of the interface; `value` is its name), or outside the interface:
    `raised` (something else was raised), `nonsense` (a value of a wrong type), `hang`.
    """

    kind: AnswerKind
    value: str = ""
    copies: tuple[Copy, ...] = ()

    def __str__(self) -> str:
        if self.kind in ("done", "error", "nonsense", "raised"):
            return self.value or self.kind
        return self.kind


DONE = Answer("done")
REFUSED = Answer("refused")


@frozen
class Look:
    """What to look at after an operation: everything, or only the tables that it concerns."""

    full: bool = True


FULL = Look()
TOUCHED = Look(full=False)


@frozen
class Observation:
    """What was seen after a call.

    `tables` and `readings` are by sequence; a reading is what `read` gave, as cells, with
    `None` for values that were never written. `free` is the allocator's own count.
    `aliased` names the sequences whose earlier table changed in the caller's hands, and
    `oddities` says what the queries gave that is outside the interface.
    """

    tables: Mapping[int, Entries] = field(factory=dict)
    free: int | None = None
    readings: Mapping[int, tuple[Cell | None, ...]] = field(factory=dict)
    aliased: tuple[int, ...] = ()
    oddities: tuple[str, ...] = ()


@frozen
class Outcome:
    """An answer and an observation."""

    answer: Answer
    observation: Observation = field(factory=Observation)

    @property
    def hangs(self) -> bool:
        """Whether the call itself did not come back."""
        return self.answer.kind == "hang"
