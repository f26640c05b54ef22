"""The room of attention: a store that computes attention itself, from the rows it holds.

Read-back shows what a store *reads*; a kernel finds its rows by itself, and may see one too
many, one too few, or those of a block that was left behind. So the caller writes small floats
that are a pure function of the cell: keys of +1 and -1, and values in eighths. From the
sequence's own history the law then knows what must come out, to rounding.

A query shows it that is zero in every other head: there the plain mean of the values comes out,
in which each row that is seen counts alike. In the remaining heads it is a multiple of the key
of one position, so small that the weights stay apart: under a much larger one the softmax is
saturated, and whether the scores were scaled no longer shows. From step to step the heads
change places, and the positions take turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen

from kvspec.geometry import Geometry, blocks_for, first_in_window, table_index
from kvspec.kernel.generation import live, new_ids
from kvspec.kernel.law import Law
from kvspec.kernel.names import plural, sequence_name
from kvspec.kernel.operation import AnswerShape, Operation, Query, SequenceOperation
from kvspec.kernel.outcome import DONE, Attended, Heads, Outcome, Probe
from kvspec.kernel.perturb import other_output, with_attended
from kvspec.kernel.room import Room, ungrouped
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import Cell, Entries, State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

Numbers = tuple[float, ...]

_WORD = 64
_ODD = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio. Odd: multiplying by it permutes the numbers below 2**64."""

_START = 0x3C6EF372FE94F82B
"""Where the numbers of the first words begin: 0 would be mixed into 0, all -1."""

_VALUE_BITS = 4
"""A value is one of the 16 multiples of 1/8 from -1 on."""

_WRITERS = 16
"""Sequences whose ids differ by a multiple of this are not told apart within one call."""

_MOST_EXCUSES = 2**14
"""So many wrong attentions are tried, to say which one it was."""


# ------------------------------------------------------------------------------ the rows


def tag_bits(heads: Heads) -> int:
    """How many bits of cells a row of these heads tells apart, 64 at most.

    >>> tag_bits(Heads(4, 2, 8, 8, 11)), tag_bits(Heads(1, 1, 4, 2, 11))
    (64, 12)
    """
    return min(_WORD, heads.n_kv_heads * (heads.d_k + _VALUE_BITS * heads.d_v))


@lru_cache(maxsize=8192)
def row(position: int, operation: int, span: int, heads: Heads, writer: int = 0) -> Numbers:
    """The row of what was written at `position` by the operation numbered so: keys, then values.

    No two of the last `2 ** tag_bits(heads)` are equal, with positions below `span`: the first
    word is a permutation of the cell's number, in which those that one call writes for several
    sequences are told apart by the last bits of their ids. All of it is exact in float16.

    >>> row(0, 7, 8, Heads(1, 1, 4, 2, 11))
    (-1.0, -1.0, 1.0, 1.0, -0.875, -1.0)
    """
    signs = heads.n_kv_heads * heads.d_k
    values = heads.n_kv_heads * heads.d_v
    number = (operation * span + position) * _WRITERS + writer % _WRITERS
    bits = tag_bits(heads)
    digits = _mixed(number + _START, bits)
    for word in range(1, -(-(signs + _VALUE_BITS * values) // _WORD)):
        digits |= _mixed(number + (word + 1) * _START, _WORD) << (word * _WORD)
    keys = (1.0 if digits >> i & 1 else -1.0 for i in range(signs))
    eighths = (digits >> (signs + _VALUE_BITS * i) & 15 for i in range(values))
    return (*keys, *((eighth - 8) / 8 for eighth in eighths))


def row_of(cell: Cell, geometry: Geometry, heads: Heads) -> Numbers:
    """The row of one cell."""
    return row(cell.position, cell.operation, span(geometry), heads, cell.writer)


def _mixed(number: int, bits: int) -> int:
    """A permutation of the numbers of so many bits, in which each bit depends on many."""
    mask = 2**bits - 1
    for _ in range(3):
        number = number * _ODD & mask
        number ^= number >> (bits // 2 + 1)
    return number


def probing(
    cells: Sequence[Cell | None], clock: int, geometry: Geometry, heads: Heads
) -> tuple[int, Numbers]:
    """What a sequence with these cells is asked: a position, and the flat query about it.

    It is about as long as makes the score of that position's own key 1, by a power of two, so
    that it is exact. The positions of successive steps are spread evenly (Knuth, "The Art of
    Computer Programming", volume 3, section 6.4, on Fibonacci hashing).
    """
    first = first_in_window(len(cells), geometry.window)
    position = first + ((clock * _ODD % 2**_WORD) * (len(cells) - first) >> _WORD)
    cell = cells[position]
    if cell is None:  # what is there is nobody's: any query will do
        cell = Cell(position, 0, 0)
    keys, d_k = row_of(cell, geometry, heads), heads.d_k
    gain = 2.0 ** -((d_k.bit_length() - 1) // 2)
    group = heads.n_heads // heads.n_kv_heads
    query: list[float] = []
    for head in range(heads.n_heads):
        start = head // group * d_k
        if (head + clock) % 2:
            query += [0.0] * d_k
        else:
            query += (gain * key for key in keys[start : start + d_k])
    return position, tuple(query)


def span(geometry: Geometry) -> int:
    """More positions than a sequence has: twice what the pool holds, or with a window far more."""
    most = 2 * geometry.capacity  # a pool may be enlarged
    return most if geometry.window is None else max(most, 2**16)


# ------------------------------------------------------------------------------ operations


@frozen
class Attend(SequenceOperation):
    """`attend(seq, query)` with a query of zeros; what comes out is judged in the looks."""

    capability: ClassVar[str] = "attention"
    method: ClassVar[str] = "attend"
    answers: ClassVar[AnswerShape] = "nothing"
    queries: ClassVar[bool] = True

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The id, and the query."""
        return (self.seq, Query()), {}

    def errors(self, state: State, spec: "Specification") -> frozenset[str]:
        """The id is unknown, or nothing is there to be seen."""
        sequence = state.sequences.get(self.seq)
        if sequence is None:
            return frozenset({"UnknownSequence"})
        return frozenset() if sequence.cells else frozenset({"InvalidLength"})

    def choices(self, state: State, spec: "Specification") -> Iterator[Outcome]:
        """There is nothing to choose."""
        yield spec.result(state, self, Outcome(DONE))


# ------------------------------------------------------------------------------ the law


def all_there(written: int, entries: Entries, geometry: Geometry) -> bool:
    """Whether something is written, and the blocks that the last written position sees are there.

    Those of a sequence that has reserved more than it has written may lie before its window.
    """
    size = geometry.block_size
    first = table_index(first_in_window(written, geometry.window), size)
    return written > 0 and None not in entries[first : blocks_for(written, size)]


def _attended(step: Step) -> Iterator[tuple[int, Attended, list[Numbers], int]]:
    """Each sequence that was asked, with the rows that it must see, and where they begin."""
    geometry = step.spec.geometry
    for seq, attended in step.seen.attended.items():
        sequence = step.after.sequences.get(seq)
        if sequence is not None and all_there(sequence.written, step.after.table(seq), geometry):
            first = first_in_window(sequence.written, geometry.window)
            rows = _rows(sequence.cells[first:], geometry, attended.heads)
            if rows and attended.probes:
                yield seq, attended, rows, first


def _rows(cells: Sequence[Cell | None], geometry: Geometry, heads: Heads) -> list[Numbers]:
    # What is in the window was written by somebody, or else read-back has said so.
    return [row_of(cell, geometry, heads) for cell in cells if cell is not None]


def _something_attended(step: Step) -> bool:
    return any(True for _ in _attended(step))


def _attention(step: Step) -> str | None:
    from kvspec.attention.probe import expected, tolerance  # numpy: not before it is needed

    for seq, attended, rows, first in _attended(step):
        heads, probes = attended.heads, attended.probes
        right = expected([probe.query for probe in probes], rows, heads).tolist()
        for probe, outputs in zip(probes, right, strict=True):
            most = tolerance(probe.query, len(rows), heads)
            off = [abs(out - should) for out, should in zip(probe.output, outputs, strict=True)]
            if all(difference <= most for difference in off):  # which NaN is not
                continue
            worst = next((i for i, d in enumerate(off) if d != d), off.index(max(off)))
            head, number = divmod(worst, heads.d_v)
            return (
                f"{sequence_name(seq)} attends to {_positions(first, len(rows))} with "
                f"{_query(probe, heads, head)}: number {number} of head {head} must be "
                f"{outputs[worst]:.4g} and "
                f"is {_away(probe.output[worst], off[worst], most)}"
                f"{_explained(step, probe, rows, first, heads, most)}."
            )
    return None


def _away(number: float, off: float, most: float) -> str:
    if not isfinite(number):
        return str(number)
    return f"{number:.4g}, {off:.2g} away where rounding explains {most:.1g}"


def _positions(first: int, count: int) -> str:
    if first == 0:
        return f"all its {plural(count, 'position')}" if count > 1 else "its one position"
    return f"the last {plural(count, 'position')}"


def _query(probe: Probe, heads: Heads, head: int) -> str:
    if not any(probe.query[head * heads.d_k : (head + 1) * heads.d_k]):
        return "a query of zeros"
    return f"a query along the key of position {probe.position}"


def _explained(
    step: Step, probe: Probe, rows: list[Numbers], first: int, heads: Heads, most: float
) -> str:
    """What one wrong position would explain the output; empty where none does."""
    from kvspec.attention.probe import excuses

    if not all(map(isfinite, probe.output)):
        return ""
    cells = _known_cells(step)[: max(1, _MOST_EXCUSES // len(rows))]
    others = [(0.0,) * heads.width, *_rows(cells, step.spec.geometry, heads)]
    short, long, other = excuses(probe.query, rows, others, heads)
    contents = ["what nobody wrote", *map(_contents, cells)]

    def fits(outputs: Sequence[float]) -> bool:
        return all(abs(a - b) <= most for a, b in zip(outputs, probe.output, strict=True))

    for i, outputs in enumerate(short.tolist()):
        if fits(outputs):
            return f"; it is what comes out without position {first + i}"
    for text, outputs in zip(contents, long.tolist(), strict=True):
        if fits(outputs):
            return f"; it is what comes out with one row more, {text}"
    for i, outputs_of in enumerate(other.tolist()):
        for text, outputs in zip(contents, outputs_of, strict=True):
            if fits(outputs):
                return f"; it is what comes out where position {first + i} has {text}"
    return ""


def _known_cells(step: Step) -> list[Cell]:
    """What lies in the pool by the beliefs before and after the step."""
    blocks = [*step.after.contents.values(), *step.before.contents.values()]
    return list(dict.fromkeys(cell for block in blocks for cell in block if cell is not None))


def _contents(cell: Cell) -> str:
    name = sequence_name(cell.writer)
    return f"what {name} wrote at position {cell.position} in step {cell.operation}"


def one_position_short(step: Step) -> Iterator[Outcome]:
    """An attention leaves out the last position."""
    from kvspec.attention.probe import expected

    for seq, attended, rows, _ in _attended(step):
        if len(rows) > 1 and attended.probes:
            asked = [probe.query for probe in attended.probes]
            outputs = expected(asked, rows[:-1], attended.heads).tolist()
            probes = tuple(
                evolve(probe, output=tuple(output))
                for probe, output in zip(attended.probes, outputs, strict=True)
            )
            yield with_attended(step, seq, evolve(attended, probes=probes))


def _two_grow(geometry: Geometry) -> tuple[Call, ...]:
    """Two sequences grow by turns into other blocks; one ends, and a third gets what it had.

    Who has ended, and who has nothing yet, has nothing to attend to.
    """
    return (
        call("allocate", seq=0, num_tokens=1),
        call("allocate", seq=1, num_tokens=1),
        call("append", seq=0, num_tokens=geometry.block_size),
        call("append", seq=1, num_tokens=1),
        call("attend", seq=0),
        call("free", seq=0),
        call("attend", seq=0),
        call("allocate", seq=2, num_tokens=0),
        call("attend", seq=2),
        call("append", seq=2, num_tokens=geometry.block_size),
    )


LAWS = (
    Law(
        "attention",
        "attention",
        "What a sequence attends to is its own history: each position that it sees once, no "
        "other row, by the right heads and the right scale.",
        "Kwon et al., SOSP 2023, section 4.1; sgl-project/sglang#32477",
        _something_attended,
        _attention,
        (one_position_short, other_output),
        _two_grow,
    ),
)


def _wrong(state: State, spec: "Specification") -> list[Operation]:
    empty = [seq for seq in live(state) if not state.sequences[seq].cells]
    return [Attend(new_ids(state)[0]), *map(Attend, empty[-1:])]


ROOM = Room(
    capability="attention",
    methods=("attend",),
    attributes=("n_heads", "n_kv_heads", "d_k", "d_v"),
    needs=("store",),
    laws=LAWS,
    applies=ungrouped,
    operations=(Attend,),
    wrong=_wrong,
)
