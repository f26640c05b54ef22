"""What one call gave: the answer, and what was looked at afterwards.

An observation is partial. What is absent was *not looked at*, which never means that it was
unchanged. What to look at after an operation is a `Look`, and is part of the trace, since a
query may disturb a bad allocator.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from kvspec.geometry import Place
from kvspec.interface import Copy
from kvspec.kernel.state import Cell, Entries, TableOf
from kvspec.validation import at_least

if TYPE_CHECKING:
    from kvspec.kernel.operation import Operation

AnswerKind = Literal["done", "refused", "error", "injected", "raised", "nonsense", "hang"]


@frozen
class Answer:
    """How a call ended.

    `done` (with its `copies` and, where the call gives one, its `value` as a text), `refused`
    (not enough blocks), `error` (an error of the interface; `value` is its name), `injected` (the
    fault that the suite raised came through; `value` is the point), or outside the interface:
    `raised` (something else was raised), `nonsense` (a value of a wrong type), `hang`.
    """

    kind: AnswerKind
    value: str = ""
    copies: tuple[Copy, ...] = ()

    @property
    def number(self) -> int:
        """The value as a number; 0 where it is none."""
        return int(self.value) if self.value.isdecimal() else 0

    @property
    def blocks(self) -> tuple[int, ...]:
        """The ids that the value names."""
        return tuple(int(block) for block in self.value.split() if block.isdecimal())

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
class Heads:
    """The shape of an attention, and how precise the store's dtype is.

    Query head `h` reads key-value head `h // (n_heads // n_kv_heads)`; a key has `d_k` numbers
    and a value `d_v`. The dtype holds whole numbers of `bits` bits exactly. Raises
    `ValueError` where the query heads cannot share the others evenly.
    """

    n_heads: int = field(validator=at_least(1))
    n_kv_heads: int = field(validator=at_least(1))
    d_k: int = field(validator=at_least(1))
    d_v: int = field(validator=at_least(1))
    bits: int = field(validator=at_least(1))

    def __attrs_post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.n_heads} query heads cannot share {self.n_kv_heads} key-value heads evenly"
            )

    @property
    def width(self) -> int:
        """Numbers in a row: all keys, then all values, head by head."""
        return self.n_kv_heads * (self.d_k + self.d_v)


@frozen
class Probe:
    """One query and its output, both flat, head by head; NaN is always `math.nan` itself.

    `position` is the one along whose key the query is, in the heads where it is not zero.
    """

    query: tuple[float, ...]
    output: tuple[float, ...]
    position: int


@frozen
class Attended:
    """What a store that computes attention gave for one sequence."""

    heads: Heads
    probes: tuple[Probe, ...]

    def __attrs_post_init__(self) -> None:
        sizes = self.heads.n_heads * self.heads.d_k, self.heads.n_heads * self.heads.d_v
        if any((len(probe.query), len(probe.output)) != sizes for probe in self.probes):
            raise ValueError("a query or an output has not the shape of the heads")


@frozen
class Asked:
    """A query, and how it was answered."""

    query: "Operation"
    answer: Answer


@frozen(slots=False)
class Observation:
    """What was seen after a call.

    `tables` are by table, and `free` is the allocator's own count, by place. `readings` are by
    sequence: what `read` gave, as cells, with `None` for values that were never written; so is
    `attended`, from stores that compute attention. `asked` are the answers to the standing queries
    of the rooms. `aliased` names the tables that changed in the caller's hands, and `oddities`
    says what the queries gave that is outside the interface.
    """

    tables: Mapping[TableOf, Entries] = field(factory=dict)
    free: Mapping[Place, int] = field(factory=dict)
    readings: Mapping[int, tuple[Cell | None, ...]] = field(factory=dict)
    asked: tuple[Asked, ...] = ()
    aliased: tuple[TableOf, ...] = ()
    oddities: tuple[str, ...] = ()
    attended: Mapping[int, Attended] = field(factory=dict)


@frozen(slots=False)
class Outcome:
    """An answer and an observation; `fault` is the point at which the suite made the call fail."""

    answer: Answer
    observation: Observation = field(factory=Observation)
    fault: str | None = None

    @property
    def hangs(self) -> bool:
        """Whether the call itself did not come back."""
        return self.answer.kind == "hang"
