"""Ways of disturbing an outcome: the raw material of bites.

Each gives outcomes that differ from the step's own in one respect: the answer, the count,
one table entry, the copies, a reading, an output.
"""

import math
from collections.abc import Iterator

from attrs import evolve

from kvspec.interface import Copy
from kvspec.kernel.outcome import DONE, REFUSED, Answer, Attended, Outcome
from kvspec.kernel.state import Cell, Entries
from kvspec.kernel.step import Step

_ELSEWHERE = Cell(position=-1, writer=-1, operation=-1)


def other_answer(step: Step) -> Iterator[Outcome]:
    """Success becomes refusal, and anything else success."""
    answer = REFUSED if step.done else DONE
    yield evolve(step.outcome, answer=answer)


def other_value(step: Step) -> Iterator[Outcome]:
    """A query answers something else."""
    for value in ("OK", "LATER", "NEVER"):
        if value != step.answer.value:
            yield evolve(step.outcome, answer=Answer("done", value=value))


def other_count(step: Step) -> Iterator[Outcome]:
    """The count of free blocks is one off."""
    if step.seen.free is not None:
        for free in (step.seen.free + 1, step.seen.free - 1):
            yield evolve(step.outcome, observation=evolve(step.seen, free=free))


def other_table(step: Step) -> Iterator[Outcome]:
    """The table of one sequence has another last entry, none, or one more."""
    blocks = step.spec.blocks
    for seq, entries in step.seen.tables.items():
        if entries:
            for block in blocks:
                if block != entries[-1]:
                    yield _with_table(step, seq, (*entries[:-1], block))
            yield _with_table(step, seq, entries[:-1])
        yield _with_table(step, seq, (*entries, blocks[0]))


def table_kept(step: Step) -> Iterator[Outcome]:
    """A table is shown as it was before the step, and no copy was reported."""
    for seq in step.seen.tables:
        before = step.before.table(seq)
        if before:
            yield evolve(_with_table(step, seq, before), answer=evolve(step.answer, copies=()))


def other_copies(step: Step) -> Iterator[Outcome]:
    """One copy more than was reported, or none."""
    blocks = step.spec.blocks
    extra = Copy(blocks[0], blocks[-1])
    yield evolve(step.outcome, answer=evolve(step.answer, copies=(*step.answer.copies, extra)))
    if step.answer.copies:
        yield evolve(step.outcome, answer=evolve(step.answer, copies=()))


def other_reading(step: Step) -> Iterator[Outcome]:
    """A position reads something that was never written there."""
    for seq, cells in step.seen.readings.items():
        if cells:
            readings = {**step.seen.readings, seq: (*cells[:-1], _ELSEWHERE)}
            yield evolve(step.outcome, observation=evolve(step.seen, readings=readings))


def other_output(step: Step) -> Iterator[Outcome]:
    """An attention gives another first number, or none."""
    for seq, attended in step.seen.attended.items():
        for i, probe in enumerate(attended.probes):
            for first in (probe.output[0] + 0.25, math.nan):
                other = evolve(probe, output=(first, *probe.output[1:]))
                probes = (*attended.probes[:i], other, *attended.probes[i + 1 :])
                yield with_attended(step, seq, evolve(attended, probes=probes))


def oddity(step: Step) -> Iterator[Outcome]:
    """A query gives something outside the interface."""
    odd = evolve(step.seen, oddities=("a query answered nonsense",))
    yield evolve(step.outcome, observation=odd)


def aliased(step: Step) -> Iterator[Outcome]:
    """A table that was handed out earlier changed in the caller's hands."""
    for seq in step.seen.tables:
        yield evolve(step.outcome, observation=evolve(step.seen, aliased=(seq,)))


def with_attended(step: Step, seq: int, attended: Attended) -> Outcome:
    """The outcome in which attention over `seq` gave this."""
    everything = {**step.seen.attended, seq: attended}
    return evolve(step.outcome, observation=evolve(step.seen, attended=everything))


def _with_table(step: Step, seq: int, entries: Entries) -> Outcome:
    tables = {**step.seen.tables, seq: entries}
    return evolve(step.outcome, observation=evolve(step.seen, tables=tables))
